"""Which rate each peer that is sent to has, of a sender that knows who begins and the way to each."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.shares.link_rate import PACED_SHARE
from fedrdma_fate.core.shares.receive_shares import PATH_HEADROOM, TOLD_SHARE, ReceiveShares
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.core.shares.window import Window

LINK = 1e8
RTT = 0.02
NOW = 1.0


def sender(ways: list[float], joint: float | None = None) -> ReceiveShares:
    """Peers at the end of ways that carry so much, known to one that sends to them."""
    shares = ReceiveShares(gathers=False)
    for number, rate in enumerate(ways):
        shares.join(str(number), NOW, RTT)
        shares.on_path(str(number), NOW, rate, RTT)
    if joint is not None:
        shares.on_joint_train(joint, NOW)
    shares.settle(NOW)
    return shares


def begin(shares: ReceiveShares, count: int) -> list[float]:
    """The shares of the first so many, when all begin."""
    for number in range(count):
        shares.on_begin(str(number), 1, NOW)
    shares.settle(NOW)
    return [shares.senders[str(number)].share for number in range(count)]


def test_one_that_is_sent_to_alone_has_no_bound_at_once() -> None:
    assert begin(sender([LINK] * 8), 1) == [math.inf]


def test_when_all_begin_each_has_its_part_at_once_and_nobody_is_waited_for() -> None:
    shares = sender([LINK] * 8)
    assert begin(shares, 8) == pytest.approx([PACED_SHARE * LINK / 8] * 8)
    shares = sender([LINK] * 8)
    assert begin(shares, 2) == pytest.approx([PACED_SHARE * LINK / 2] * 2)


def test_when_all_others_have_ended_the_last_has_no_bound() -> None:
    shares = sender([LINK] * 3)
    begin(shares, 3)
    for name in "01":
        shares.on_end(name, 1, NOW)
    shares.settle(NOW)
    assert shares.senders["2"].share == math.inf


def test_when_a_round_is_over_the_link_carries_what_trains_have_told() -> None:
    shares = sender([LINK] * 4, joint=4 * LINK)
    for number in (1, 2):
        begin(shares, 4)
        shares.link._on_overrun(Window(4 * LINK, LINK, LINK, 0.75))
        assert shares.link.rate == LINK
        for name in "0123":
            shares.on_end(name, 1, NOW)
            shares.settle(NOW)
        # not for a second time in a row
        assert shares.link.rate == (4 * LINK if number == 1 else LINK)


def test_nobody_has_more_than_its_way_takes_and_the_others_have_the_rest_at_once() -> None:
    slow, *others = begin(sender([LINK / 20, LINK, LINK]), 3)
    assert slow == pytest.approx(PATH_HEADROOM * LINK / 20)
    assert others == pytest.approx([(PACED_SHARE * LINK - slow) / 2] * 2)


def test_a_link_that_trains_have_told_too_little_of_is_found_while_all_send() -> None:
    shares = sender([LINK / 4] * 4)
    shares.settle(NOW)
    told = {str(number): share for number, share in enumerate(begin(shares, 4))}
    assert sum(told.values()) == pytest.approx(PACED_SHARE * LINK / 4)
    came, now = dict.fromkeys(told, 0.0), NOW
    while now < NOW + 2:
        now += 0.001
        for name, share in told.items():
            came[name] += min(share, LINK / 4) * 0.001
            shares.on_arrivals(name, Arrivals(int(came[name]), 0, now))
        # a gateway looks again when it is told to, and only then
        due = shares.timer()
        if due is not None and due <= now:
            shares.on_timer(now)
        told |= shares.take_told()
    assert set(told.values()) == {math.inf}


def test_whoever_makes_it_decide_what_was_decided_is_looked_at_again() -> None:
    shares = sender([LINK])
    begin(shares, 1)
    assert shares.timer() is None, "at a site with one peer there is nothing to share"
    shares.join("1", NOW, RTT)
    assert shares.timer() is not None


def test_a_link_that_carries_all_ways_bounds_nobody() -> None:
    assert begin(sender([LINK] * 8, joint=7 * LINK), 8) == [math.inf] * 8
    assert begin(sender([LINK] * 8, joint=3 * LINK), 8) == pytest.approx([PACED_SHARE * 3 * LINK / 8] * 8)


def test_of_a_link_that_carries_three_ways_two_are_not_bounded() -> None:
    assert begin(sender([LINK] * 8, joint=3 * LINK), 2) == [math.inf] * 2


@given(st.lists(st.floats(1e6, 1e9), min_size=2, max_size=16), st.floats(1e6, 1e10), st.integers(2, 16))
def test_shares_are_never_more_than_the_link_unless_nobody_is_bounded(
    ways: list[float], joint: float, count: int
) -> None:
    shares = sender(ways, joint)
    given = begin(shares, min(count, len(ways)))
    assert shares.link.rate is not None
    if any(math.isinf(share) for share in given):
        assert all(math.isinf(share) for share in given)
        assert shares.link.ample
    else:
        assert sum(given) <= shares.link.rate * (1 + TOLD_SHARE)
        assert all(share <= PATH_HEADROOM * way * (1 + TOLD_SHARE) for share, way in zip(given, ways, strict=False))


def test_what_a_peer_reports_makes_the_link_no_faster_while_it_is_shared() -> None:
    shares = sender([LINK] * 4)
    begin(shares, 4)
    now = NOW
    for step in range(1, 20):
        now = NOW + step * 0.021
        for number in range(4):
            # as much as was sent, and no more can be reported
            share = shares.senders[str(number)].share
            shares.on_arrivals(str(number), Arrivals(int(step * 0.021 * min(share, LINK / 4)), 0, now))
        shares.on_timer(now)
    assert shares.link.rate is not None
    assert shares.link.rate <= 1.05 * LINK


@pytest.mark.parametrize("sent_to", [1, 2, 4])
def test_reports_that_are_late_and_then_tell_of_all_at_once_make_the_link_no_faster(sent_to: int) -> None:
    shares = sender([LINK] * 4)
    begin(shares, sent_to)
    came, told = dict.fromkeys(map(str, range(sent_to)), 0.0), [Arrivals()] * sent_to
    for step in range(1, 3000):
        now = NOW + step * 0.001
        for number, name in enumerate(came):
            came[name] += min(shares.senders[name].share, LINK / sent_to) * 0.001
            if number or step % 30 < 2:
                told[number] = Arrivals(int(came[name]), 0, now)
            shares.on_arrivals(name, told[number])
        if (due := shares.timer()) is not None and due <= now:
            shares.on_timer(now)
        shares.take_told()
    assert shares.link.rate is not None
    assert shares.link.rate <= 1.06 * LINK
