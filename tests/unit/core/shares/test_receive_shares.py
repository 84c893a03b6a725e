"""Which rate each sender of a receiver is told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.shares.link_rate import PACED_SHARE
from fedrdma_fate.core.shares.receive_shares import (
    FORGOTTEN_SECONDS,
    GATHER_SECONDS,
    LONE_BURSTS,
    LONE_GATHER_SECONDS,
    MOST_TRANSFERS,
    PATH_HEADROOM,
    QUIET_GATHER_SECONDS,
    ReceiveShares,
)
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.core.x.controller import LEAST_SHARED_RATE

LINK = 1e8
RTT = 0.02
STEP = 0.001


class Receiver:
    """Senders whose bytes come half a round trip after they go, at the rate that they were told half of one before.

    Attributes:
        own: what each can send at most.
        obeys: who keeps to its share.
    """

    def __init__(
        self, count: int, configured: float | None = None, *, probed: float | None = LINK, turns: bool = False
    ) -> None:
        self.shares = ReceiveShares(configured, turns=turns)
        self.now = 1.0
        self.names = [str(number) for number in range(count)]
        self.own = dict.fromkeys(self.names, LINK)
        self.obeys = dict.fromkeys(self.names, True)
        self.told: dict[str, float] = dict.fromkeys(self.names, math.inf)
        self.count = 0
        self._coming: list[tuple[float, str, float]] = []
        self._bytes = dict.fromkeys(self.names, 0.0)
        self._join(probed)
        self.run(2 * RTT)

    def _join(self, probed: float | None) -> None:
        for name in self.names:
            self.shares.join(name, self.now, RTT)
            self.shares.on_path(name, self.now, probed, RTT)

    def restart(self) -> None:
        """Its gateway is another one, which knows nothing of what was, and to which all connect anew at once."""
        self.shares = ReceiveShares()
        self._bytes = dict.fromkeys(self.names, 0.0)
        self._coming.clear()
        self.told = dict.fromkeys(self.names, math.inf)
        self._join(LINK)
        for name, share in self.shares.take_told().items():
            # by the new path, before any slot is granted by it
            self.told[name] = share

    def begin(self, *names: str) -> None:
        for name in names:
            self.shares.on_begin(name, 1, self.now)

    def end(self, *names: str) -> None:
        for name in names:
            self.shares.on_end(name, 1, self.now)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP
            self._send()
            due = self.shares.timer()
            if due is not None and due <= self.now:
                self.shares.on_timer(self.now)
            for name, share in self.shares.take_told().items():
                self.count += 1
                self._coming.append((self.now + RTT, name, share))
            while self._coming and self._coming[0][0] <= self.now:
                _, name, self.told[name] = self._coming.pop(0)

    def _send(self) -> None:
        rates = {
            name: min(self.own[name], self.told[name]) if self.obeys[name] else self.own[name]
            for name in self.names
            if self.shares.senders[name].transfers
        }
        # what is beyond the link is lost without a trace
        fits = min(1.0, LINK / max(sum(rates.values()), 1.0))
        for name, rate in rates.items():
            self._bytes[name] += rate * fits * STEP
            if rate:
                self.shares.on_arrivals(name, Arrivals(int(self._bytes[name]), 0, self.now))

    def come(self, name: str) -> float:
        """Bytes of it that have come to this run of the gateway."""
        return self._bytes[name]

    def share(self, name: str) -> float:
        return self.shares.senders[name].share


def test_a_site_with_one_peer_never_bounds_it() -> None:
    receiver = Receiver(1)
    receiver.begin("0")
    receiver.run(1.0)
    assert receiver.count == 0
    assert receiver.shares.timer() is None


def test_nobody_is_bounded_while_nothing_is_known_of_the_link() -> None:
    receiver = Receiver(4, probed=None)
    assert receiver.count == 0


def test_before_anybody_has_sent_each_knows_the_part_that_it_has_when_all_begin() -> None:
    receiver = Receiver(8)
    assert [receiver.told[name] for name in receiver.names] == pytest.approx([LINK * PACED_SHARE / 8] * 8)
    receiver.begin(*receiver.names)
    told = receiver.count
    receiver.run(RTT)
    assert receiver.count == told, "what is right already is not told again"


def test_one_that_sends_alone_has_no_bound_after_a_while() -> None:
    receiver = Receiver(8)
    receiver.begin("3")
    receiver.run(GATHER_SECONDS / 2)
    assert math.isfinite(receiver.share("3"))
    receiver.run(GATHER_SECONDS)
    assert receiver.share("3") == math.inf


def test_the_link_is_not_judged_by_those_that_foreign_flows_hold_up_on_their_own_ways() -> None:
    receiver = Receiver(4, probed=LINK / 4)
    receiver.begin(*receiver.names)
    began = receiver.now
    while receiver.now < began + 2:
        for number, name in enumerate(receiver.names[:2]):
            # nine tenths of its share, a little more or less from window to window
            wavers = 0.03 * math.sin(40 * receiver.now + number)
            receiver.own[name] = (0.9 + wavers) * receiver.told[name]
        receiver.run(RTT)
    assert receiver.shares.link.rate is not None
    assert receiver.shares.link.rate >= 0.9 * LINK


def test_where_one_always_sends_alone_it_is_held_up_for_less() -> None:
    receiver = Receiver(2)
    for _ in range(LONE_BURSTS):
        receiver.begin("0")
        receiver.run(0.1)
        receiver.end("0")
        receiver.run(0.1)
    receiver.begin("0")
    receiver.run(LONE_GATHER_SECONDS + RTT / 2 + 3 * STEP)
    assert receiver.share("0") == math.inf


def test_single_transfers_between_two_rounds_do_not_make_it_forget_how_many_send_in_a_round() -> None:
    receiver = Receiver(8)
    receiver.begin("0", "1", "2", "3")
    receiver.run(0.1)
    receiver.end("0", "1", "2", "3")
    for _ in range(40):
        receiver.begin("5")
        receiver.run(0.1)
        receiver.end("5")
        receiver.run(0.01)
    assert receiver.shares.expected == 4
    assert receiver.share("0") == pytest.approx(LINK * PACED_SHARE / 4, rel=0.05)


def test_when_one_ends_the_others_are_told_at_once() -> None:
    receiver = Receiver(4)
    receiver.begin(*receiver.names)
    receiver.run(0.1)
    receiver.end("2")
    receiver.run(3 * STEP)
    shares = [receiver.share(name) for name in ("0", "1", "3")]
    assert shares == pytest.approx([LINK * PACED_SHARE / 3] * 3, rel=0.03)


def test_a_slow_one_keeps_what_it_uses_with_room_to_grow_and_the_others_get_the_rest() -> None:
    receiver = Receiver(8)
    receiver.own["0"] = LINK / 80
    receiver.begin(*receiver.names)
    receiver.run(0.5)
    assert receiver.own["0"] < receiver.share("0") < 2 * receiver.own["0"]
    others = [receiver.share(name) for name in receiver.names[1:]]
    assert min(others) > 0.95 * (LINK * PACED_SHARE - receiver.own["0"]) / 7
    assert max(others) <= 1.05 * min(others)
    # and when it can, it gets as much as they
    receiver.own["0"] = LINK
    receiver.run(0.5)
    assert receiver.share("0") == pytest.approx(LINK * PACED_SHARE / 8, rel=0.06)


def test_one_that_has_asked_and_sends_nothing_takes_nothing_from_the_others_and_counts_when_it_begins() -> None:
    receiver = Receiver(2)
    receiver.own["0"] = 0.0
    receiver.begin("0", "1")
    receiver.run(0.1)
    assert math.isfinite(receiver.share("1"))
    receiver.run(0.5)
    assert receiver.share("1") == math.inf
    receiver.own["0"] = LINK
    receiver.run(0.2)
    assert receiver.share("0") == pytest.approx(receiver.share("1"))
    assert math.isfinite(receiver.share("1"))


def test_what_was_announced_is_forgotten_when_nothing_of_it_has_come_for_long() -> None:
    receiver = Receiver(2)
    receiver.own["0"] = 0.0
    receiver.begin("0")
    receiver.run(FORGOTTEN_SECONDS - 1)
    assert receiver.shares.senders["0"].transfers
    receiver.run(3.0)
    assert not receiver.shares.senders["0"].transfers
    assert receiver.shares.timer() is None


def test_what_one_takes_that_does_not_keep_to_its_share_is_not_promised_to_the_others() -> None:
    receiver = Receiver(4)
    receiver.obeys["0"], receiver.own["0"] = False, LINK / 2
    receiver.begin(*receiver.names)
    receiver.run(0.5)
    assert receiver.shares.senders["0"].ignores
    others = sum(receiver.share(name) for name in receiver.names[1:])
    assert others <= receiver.shares.link.rate - LINK / 2 + 1  # type: ignore[operator]
    receiver.obeys["0"] = True
    receiver.run(0.5)
    assert not receiver.shares.senders["0"].ignores


def test_one_that_is_gone_leaves_its_share_to_the_others_and_knows_none_when_it_is_back() -> None:
    receiver = Receiver(3)
    receiver.begin("0", "1")
    receiver.run(0.1)
    receiver.shares.leave("0", receiver.now)
    receiver.names.remove("0")
    receiver.run(GATHER_SECONDS)
    assert receiver.share("1") == math.inf
    receiver.shares.join("0", receiver.now, RTT)
    assert math.isfinite(receiver.shares.take_told()["0"]), "told before it can send anything"


def test_64_that_begin_within_a_moment_are_not_told_64_times_each() -> None:
    receiver = Receiver(64)
    for _ in range(2):
        before = receiver.count
        receiver.begin(*receiver.names)
        receiver.run(0.05)
        receiver.end(*receiver.names)
        receiver.run(0.05)
        assert receiver.count - before <= 3 * 64


def test_a_sender_has_no_more_transfers_here_than_it_may_announce() -> None:
    receiver = Receiver(2)
    for transfer in range(2 * MOST_TRANSFERS):
        receiver.shares.on_begin("0", transfer, receiver.now)
    assert len(receiver.shares.senders["0"].transfers) == MOST_TRANSFERS


def test_of_who_takes_no_part_nothing_is_believed() -> None:
    receiver = Receiver(2)
    receiver.shares.on_begin("nobody", 1, receiver.now)
    receiver.shares.on_end("nobody", 1, receiver.now)
    receiver.shares.on_arrivals("nobody", Arrivals(1, 1, receiver.now))
    receiver.shares.on_path("nobody", receiver.now, 1e12, 1.0)
    receiver.shares.leave("nobody", receiver.now)
    assert receiver.shares.active == 0
    assert receiver.shares.link.rate == LINK


def test_the_first_chunks_of_many_are_spread_over_the_time_of_one() -> None:
    receiver = Receiver(16)
    places = sorted(sender.place for sender in receiver.shares.senders.values())
    assert places == [number / 16 for number in range(16)]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "leave", "join", "bytes", "probe", "wait"]),
        st.integers(0, 5),
        st.floats(0, 0.3),
        st.integers(0, 1 << 40),
    ),
    max_size=60,
)


@given(EVENTS, st.sampled_from([None, 1.0, 1e8, 1e13]))
def test_whatever_happens_shares_are_rates_that_can_be_kept_to_and_together_no_more_than_the_link(
    events: list[tuple[str, int, float, int]], configured: float | None
) -> None:
    shares, now, received = ReceiveShares(configured), 1.0, [0] * 6
    for kind, number, seconds, size in events:
        name, now = str(number), now + seconds
        match kind:
            case "begin":
                shares.on_begin(name, size, now)
            case "end":
                shares.on_end(name, size, now)
            case "leave":
                shares.leave(name, now)
            case "join":
                shares.join(name, now, seconds)
            case "bytes":
                received[number] += size
                shares.on_arrivals(name, Arrivals(received[number], size // 2, now))
            case "probe":
                shares.on_path(name, now, float(size) + 1, seconds)
            case _:
                pass
        due = shares.timer()
        if due is not None and due <= now:
            shares.on_timer(now)
        for told in shares.take_told().values():
            assert told >= LEAST_SHARED_RATE
        sending = [sender for sender in shares.senders.values() if sender.active and not sender.ignores]
        bounded = [sender.share for sender in sending if math.isfinite(sender.share)]
        total = shares.link.shared_out
        if total is not None and due is not None and due <= now and len(bounded) == len(sending):
            assert sum(bounded) <= max(1.05 * total, len(bounded) * LEAST_SHARED_RATE * 1.02) * 1.05


def test_who_is_known_to_have_a_slow_way_leaves_the_rest_to_the_others_from_the_beginning() -> None:
    receiver = Receiver(4)
    receiver.shares.on_path("0", receiver.now, LINK / 40, RTT)
    receiver.begin(*receiver.names)
    receiver.run(0.01)
    assert receiver.share("0") == pytest.approx(PATH_HEADROOM * LINK / 40)
    assert receiver.share("1") == pytest.approx((PACED_SHARE * LINK - receiver.share("0")) / 3)


def test_whose_train_met_others_and_came_late_has_its_equal_part_as_soon_as_it_uses_what_it_has() -> None:
    receiver = Receiver(4)
    receiver.shares.on_path("0", receiver.now, LINK / 10, RTT)
    receiver.begin(*receiver.names)
    receiver.run(10 * RTT)
    assert receiver.share("0") == pytest.approx(PACED_SHARE * LINK / 4, rel=0.1)


def spread_out(trips: list[float]) -> ReceiveShares:
    """A receiver with peers at such distances, who has never seen a crowd."""
    shares = ReceiveShares()
    for number, trip in enumerate(trips):
        shares.join(str(number), 0.0, trip)
        shares.on_path(str(number), 0.0, LINK, trip)
    return shares


def hear(shares: ReceiveShares, heard: dict[float, str], until: float) -> None:
    """Each is heard of at its moment, and nothing else is."""
    now = 1.0
    for moment, name in sorted([*heard.items(), (until, "")]):
        while (due := shares.timer()) is not None and due <= moment:
            now = max(now, due)
            shares.on_timer(now)
        now = moment
        if name:
            shares.on_begin(name, 1, now)


def test_whoever_would_have_been_heard_of_by_now_is_not_waited_for_and_who_is_farther_away_is() -> None:
    # sixteen near ones, of which two begin at 1.0, and sixteen that are heard of 30 ms after they have begun
    shares = spread_out([0.02] * 16 + [0.06] * 16)
    heard = {1.0101: "0", 1.0102: "1"}
    hear(shares, heard, 1.014)
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 32)
    hear(shares, {}, 1.02)
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 18, rel=0.02)
    hear(shares, {}, 1.03 + QUIET_GATHER_SECONDS + 0.002)
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 2)


def test_one_that_is_far_away_and_began_with_the_others_finds_its_part_still_there() -> None:
    shares = spread_out([0.02] * 4 + [0.06])
    hear(shares, {1.0101: "0", 1.0102: "1", 1.0301: "4"}, 1.034)
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 3)


def test_a_crowd_that_begins_within_a_while_is_waited_for_as_long_as_it_leaves_no_gap() -> None:
    shares = spread_out([0.02] * 8)
    hear(shares, {1.01 + 0.004 * number: str(number) for number in range(4)}, 1.0255)
    # the latest was heard of at 1.022
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 8)
    hear(shares, {}, 1.022 + QUIET_GATHER_SECONDS + 0.002)
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 4)


def test_only_those_that_are_to_send_are_expected_and_all_others_have_the_part_that_they_have_when_all_begin() -> None:
    receiver = Receiver(8)
    receiver.shares.expect(["0", "1"], receiver.now)
    receiver.run(RTT)
    assert [receiver.share(name) for name in "01"] == pytest.approx([LINK * PACED_SHARE / 2] * 2)
    assert [receiver.share(name) for name in "27"] == pytest.approx([LINK * PACED_SHARE / 8] * 2)
    told = receiver.count
    receiver.begin("0", "1")
    receiver.run(STEP)
    assert receiver.count == told, "nobody is waited for"
    receiver.end("0", "1")
    receiver.shares.expect([], receiver.now)
    receiver.run(RTT)
    assert [receiver.share(name) for name in "07"] == pytest.approx([LINK * PACED_SHARE / 2] * 2), "two did, last time"


def test_where_one_begins_that_is_not_to_send_anybody_may() -> None:
    shares = spread_out([0.02] * 8)
    shares.expect(["0", "1"], 0.5)
    hear(shares, {1.0101: "0", 1.0103: "5"}, 1.014)
    assert shares.expected == 8
    assert shares.senders["0"].share == pytest.approx(LINK * PACED_SHARE / 8)
    hear(shares, {}, 1.0103 + QUIET_GATHER_SECONDS + 0.002)
    assert [shares.senders[name].share for name in "05"] == pytest.approx([LINK * PACED_SHARE / 2] * 2)


def test_how_many_have_begun_at_once_tells_nothing_of_a_job_in_which_others_are() -> None:
    receiver = Receiver(8)
    for named, expected in [(["0", "1"], 2), (receiver.names, 8), (["3", "4", "5"], 3)]:
        receiver.shares.expect(named, receiver.now)
        assert receiver.shares.expected == expected
        receiver.begin(*named)
        receiver.run(0.2)
        receiver.end(*named)
        receiver.run(RTT)


def test_who_is_to_send_and_takes_no_part_is_not_waited_for() -> None:
    receiver = Receiver(4)
    receiver.shares.expect(["0", "elsewhere"], receiver.now)
    receiver.run(RTT)
    assert receiver.share("0") == pytest.approx(LINK * PACED_SHARE / 2)
    receiver.shares.expect(["elsewhere"], receiver.now)
    receiver.run(RTT)
    assert receiver.share("0") == pytest.approx(LINK * PACED_SHARE / 4), "any may begin"


def test_64_of_whom_eight_have_room_at_a_time_use_the_link_and_never_more_than_it() -> None:
    receiver = Receiver(64)
    each = 0.02 * LINK
    waiting, sending = list(receiver.names), set[str]()
    began = receiver.now
    while waiting or sending:
        for name in [name for name in sending if receiver.come(name) >= each]:
            sending.discard(name)
            receiver.end(name)
        while waiting and len(sending) < 8:
            sending.add(waiting[0])
            receiver.begin(waiting.pop(0))
        receiver.run(STEP)
        if receiver.now > began + 0.2:
            # who waits for a slot knows what it may send when it has one, and takes nothing until then
            assert sum(receiver.share(name) for name in sending) <= 1.15 * LINK
        assert receiver.now < began + 10
    least = 64 * each / (LINK * PACED_SHARE)
    assert receiver.now - began <= 1.2 * least
    assert receiver.shares.expected == 8


def test_a_gateway_that_is_restarted_in_the_middle_of_a_round_shares_at_once_among_those_that_go_on() -> None:
    receiver = Receiver(8)
    receiver.begin(*receiver.names)
    receiver.run(0.2)
    receiver.end("6", "7")
    receiver.run(0.05)
    assert receiver.share("0") == pytest.approx(LINK * PACED_SHARE / 6, rel=0.03)
    receiver.restart()
    # nothing is known of who sends: none begins with more than when all do
    assert [receiver.told[name] for name in receiver.names] == pytest.approx([LINK * PACED_SHARE / 8] * 8)
    receiver.begin(*receiver.names[:6])
    receiver.run(GATHER_SECONDS + 2 * RTT)
    assert [receiver.told[name] for name in receiver.names[:6]] == pytest.approx([LINK * PACED_SHARE / 6] * 6, rel=0.03)
    receiver.run(0.3)
    assert receiver.shares.link.rate == pytest.approx(LINK, rel=0.1)
    receiver.end(*receiver.names[:6])
    receiver.run(0.1)
    assert not receiver.shares.under_way


def test_who_does_not_go_on_after_a_restart_leaves_its_share_to_the_others() -> None:
    receiver = Receiver(4)
    receiver.begin(*receiver.names)
    receiver.run(0.2)
    receiver.restart()
    receiver.begin("0", "1")
    receiver.run(GATHER_SECONDS + 2 * RTT)
    assert receiver.share("0") == pytest.approx(LINK * PACED_SHARE / 2, rel=0.03)
