"""Shares by which all that send end at one moment."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.core.shares.common_end import MOST_ROUND_TRIPS, MOST_UNEVEN, Ending, common_end
from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from fedrdma_fate.core.shares.share_sender import Arrivals
from tests.support.sim.unifl import Setting, rounds

LINK = 1e8
NEAR, FAR = 0.02, 0.06


def ends(endings: dict[str, Ending], shares: dict[str, float]) -> list[float]:
    """When all of each has come, where it is told now."""
    return [
        each.round_trip + (each.left_bytes - each.share * each.round_trip) / shares[name]
        for name, each in endings.items()
    ]


def of_two(more_of_far: float) -> dict[str, Ending]:
    """Two, of whom the one that is far away has so much more left."""
    return {"near": Ending(1e7, LINK / 2, NEAR), "far": Ending(more_of_far * 1e7, LINK / 2, FAR)}


def test_who_was_heard_of_later_has_more_so_that_all_end_at_one_moment() -> None:
    endings = of_two(1.1)
    shares = common_end(endings, LINK)
    assert shares is not None
    assert shares["far"] > shares["near"]
    assert sum(shares.values()) == pytest.approx(LINK)
    first, last = sorted(ends(endings, shares))
    assert last - first < 1e-6
    even = dict.fromkeys(endings, LINK / 2)
    assert max(ends(endings, even)) > last + 0.005, "with equal shares the last is there later"


@pytest.mark.parametrize("more_of_far", [0.0, 0.6, 1.7, 100.0])
def test_where_one_has_much_more_left_than_another_all_have_as_much(more_of_far: float) -> None:
    assert common_end(of_two(more_of_far), LINK) is None


def test_nobody_gains_or_loses_more_by_it_than_a_quarter() -> None:
    for number in range(50):
        shares = common_end(of_two(0.5 + number / 50), LINK)
        if shares is not None:
            assert LINK / 2 / MOST_UNEVEN <= min(shares.values()) <= max(shares.values()) <= MOST_UNEVEN * LINK / 2


@pytest.mark.parametrize("left", [0.0, 2.0 * FAR * LINK, MOST_ROUND_TRIPS * FAR * LINK, math.inf])
def test_before_the_end_is_near_and_when_it_is_too_late_all_have_as_much(left: float) -> None:
    assert common_end(dict.fromkeys(("a", "b"), Ending(left / 2, LINK / 2, FAR)), LINK) is None


def test_of_none_or_one_there_is_nothing_to_share() -> None:
    assert common_end({}, LINK) is None
    assert common_end({"a": Ending(3 * FAR * LINK, LINK, FAR)}, LINK) is None


def two_that_send(announced: int) -> tuple[ReceiveShares, dict[str, float]]:
    """A near one that has come further than a far one; and what they are told in the end."""
    shares = ReceiveShares()
    for name, round_trip in (("near", NEAR), ("far", FAR)):
        shares.join(name, 0.0, round_trip)
        shares.on_path(name, 0.0, LINK, round_trip)
    for name in ("near", "far"):
        shares.on_begin(name, 1, 1.0, announced)
    told, now, part = shares.take_told(), 1.0, 0.98 * LINK / 2
    while now < 1.3:
        now += 0.01
        for name, later in (("near", 0.0), ("far", 0.04)):
            shares.on_arrivals(name, Arrivals(int(part * max(now - 1.0 - later, 0.0)), 0, now))
        if (due := shares.timer()) is not None and due <= now:
            shares.on_timer(now)
        told.update(shares.take_told())
    return shares, told


def test_towards_the_end_the_one_that_is_behind_is_told_more_and_the_link_is_not_overrun() -> None:
    _, told = two_that_send(int(0.5 * LINK / 2))
    assert told["far"] > 1.02 * told["near"]
    assert sum(told.values()) <= LINK


@pytest.mark.parametrize("announced", [0, int(10 * LINK)])
def test_of_whom_it_is_not_known_when_it_ends_all_have_as_much(announced: int) -> None:
    _, told = two_that_send(announced)
    assert told["far"] == pytest.approx(told["near"])


def test_when_another_begins_all_have_as_much_again() -> None:
    shares, _ = two_that_send(int(0.5 * LINK / 2))
    shares.join("third", 1.3, NEAR)
    shares.on_begin("third", 1, 1.3, 1000)
    shares.settle(1.3)
    assert shares.senders["far"].share == pytest.approx(shares.senders["near"].share)


def test_silos_at_any_distance_end_a_round_at_one_moment() -> None:
    setting = Setting(4, 4, round_trips=(0.02, 0.06), rate_bps=4e8, payload_bytes=4 << 20, told=True)
    ((least, played),) = rounds(setting, "fedrdma-x", 1, seed=2)
    moments = [each for each in played.ended if each is not None]
    assert len(moments) == 4
    assert max(moments) - min(moments) < 0.005, "by equal shares 0.015"
    assert played.seconds < 1.055 * least
