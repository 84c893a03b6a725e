"""Few send at a time, in the order in which they have asked."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.shares.link_rate import PACED_SHARE
from fedrdma_fate.core.shares.receive_shares import LEAST_PLACES, TOLD_SHARE, ReceiveShares
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.core.x.controller import LEAST_RATE

LINK = 1e8
RTT = 0.02
SIZE = 4_000_000
STEP = 0.001


class Round:
    """Senders that send so much each, whose bytes come a round trip after they were told a rate.

    Attributes:
        ended: when each had sent everything, seconds since the beginning.
        deepest: bytes that waited before the link, at most.
        dead: who sends nothing.
    """

    def __init__(self, count: int, *, link: float = LINK, size: int = SIZE, dead: str = "") -> None:
        self.shares = ReceiveShares(turns=True)
        self.names = [str(number) for number in range(count)]
        self.now, self.deepest, self.dead = 1.0, 0.0, dead
        self.ended: dict[str, float] = {}
        self._link, self._queue = link, 0.0
        self._told = dict.fromkeys(self.names, math.inf)
        self._coming: list[tuple[float, str, float]] = []
        self._left = dict.fromkeys(self.names, float(size))
        self._bytes = dict.fromkeys(self.names, 0.0)
        for name in self.names:
            self.shares.join(name, self.now, RTT)
            self.shares.on_path(name, self.now, link, RTT)
        self._tell()
        self.now += 1.0
        self.shares.on_timer(self.now)
        self._tell()
        self.now += 1.0
        self._began = self.now
        for name in self.names:
            self.shares.on_begin(name, 1, self.now, size)

    def play(self, seconds: float = 20.0) -> None:
        while self.now < self._began + seconds and len(self.ended) + len(self.dead) < len(self.names):
            self.now += STEP
            self._come()
            due = self.shares.timer()
            if due is not None and due <= self.now:
                self.shares.on_timer(self.now)
            self._tell()

    def in_turn(self) -> list[str]:
        return [name for name in self.names if self.shares.senders[name].share > LEAST_RATE]

    def _tell(self) -> None:
        for name, share in self.shares.take_told().items():
            self._coming.append((self.now + RTT, name, share))
        while self._coming and self._coming[0][0] <= self.now:
            _, name, self._told[name] = self._coming.pop(0)

    def _come(self) -> None:
        sending = [name for name in self.names if name not in self.ended and name not in self.dead]
        if self.now < self._began + RTT:
            sending = []
        offered = {name: min(self._told[name], self._link) * STEP for name in sending}
        # what does not pass at once waits, and holds up the others' as well
        fits = min(1.0, self._link * STEP / max(sum(offered.values()), 1.0))
        self._queue = max(0.0, self._queue + sum(offered.values()) - self._link * STEP)
        self.deepest = max(self.deepest, self._queue)
        for name in sending:
            amount = min(offered[name] * fits, self._left[name])
            self._left[name] -= amount
            self._bytes[name] += amount
            self.shares.on_arrivals(name, Arrivals(math.ceil(self._bytes[name]), 0, self.now))
            if not self._left[name]:
                self.ended[name] = self.now - self._began
                self.shares.on_end(name, 1, self.now)


def test_they_end_in_the_order_in_which_they_have_asked_as_soon_as_if_all_had_sent_at_once() -> None:
    one = Round(32)
    one.play()
    least = RTT + 32 * SIZE / LINK
    assert max(one.ended.values()) <= 1.05 * least
    assert sum(one.ended.values()) / 32 <= 0.65 * least
    order = sorted(one.ended, key=one.ended.__getitem__)
    assert all(abs(order.index(name) - place) < 2 * LEAST_PLACES for place, name in enumerate(one.names))


@pytest.mark.parametrize("link", [LINK, 1e9])
def test_a_small_buffer_is_not_overrun_when_one_follows_another(link: float) -> None:
    one = Round(32, link=link)
    one.play()
    # a step of this test at the link's rate, and what a trial for more queues
    assert one.deepest <= link * STEP + 200_000


@pytest.mark.parametrize(("link", "places"), [(LINK, 4), (1e9, 5)])
def test_so_many_go_at_a_time_that_a_turn_lasts_a_round_trip(link: float, places: int) -> None:
    one = Round(32, link=link)
    one.play(0.005)
    assert one.in_turn() == one.names[:places]
    waiting = (32 - places) * LEAST_RATE
    assert one.shares.senders["0"].share == pytest.approx((PACED_SHARE * link - waiting) / places)
    assert one.shares.senders["31"].share == LEAST_RATE


@pytest.mark.parametrize("announced", [1 << 62, -(1 << 62)])
def test_one_that_announces_what_cannot_be_does_not_change_how_many_go_at_a_time(announced: int) -> None:
    honest, lied_to = Round(32, link=1e9), Round(32, link=1e9)
    lied_to.shares.on_begin("31", 2, lied_to.now, announced)
    for each in (honest, lied_to):
        each.play(0.1)
    assert len(honest.in_turn()) == len(lied_to.in_turn()) > LEAST_PLACES


def test_who_asks_and_sends_nothing_loses_its_turn() -> None:
    one = Round(8, dead="1")
    one.play()
    assert len(one.ended) == 7
    assert max(one.ended.values()) <= 1.0, "a quarter of the link for a quarter of a second"


@pytest.mark.parametrize("told", [True, False], ids=["its path is seen to end", "it falls silent"])
def test_the_turn_of_one_that_dies_in_it_goes_to_those_that_wait(told: bool) -> None:
    one, least = Round(8), RTT + 8 * SIZE / LINK
    # most of its turn is still to come
    one.play(0.15 * least)
    assert "0" in one.in_turn()
    one.dead = "0"
    if told:
        one.shares.leave("0", one.now)
    one.play()
    assert sorted(one.ended) == one.names[1:]
    # what it has sent, what its turn still was, and a round trip until others have it
    assert max(one.ended.values()) <= least + RTT + (0.0 if told else 0.25)


def test_where_the_least_of_all_that_wait_would_take_the_link_all_send_at_once() -> None:
    one = Round(8, link=10e6 / 8)
    one.play(0.005)
    assert len(one.in_turn()) == 8


def test_who_has_begun_more_meanwhile_comes_after_those_that_wait() -> None:
    one = Round(8)
    one.play(0.05)
    first = one.in_turn()[0]
    one.shares.on_begin(first, 2, one.now, 100 * SIZE)
    one.shares.on_end(first, 1, one.now)
    one.play(0.06)
    assert first not in one.in_turn()
    one.play(1.0)
    assert len(one.ended) == 7 or first in one.ended


@given(
    st.lists(st.integers(0, 1 << 30), min_size=1, max_size=24),
    st.floats(1e6, 1e9),
    st.floats(0.0001, 0.2),
    st.integers(0, 2**32),
)
def test_all_together_never_have_more_than_the_link_but_for_those_about_to_end(
    sizes: list[int], link: float, round_trip: float, come: int
) -> None:
    shares = ReceiveShares(turns=True)
    for number in range(len(sizes)):
        shares.join(str(number), 1.0, round_trip)
        shares.on_path(str(number), 1.0, link, round_trip)
    for number, size in enumerate(sizes):
        shares.on_begin(str(number), 1, 2.0, size)
        shares.on_arrivals(str(number), Arrivals(come >> number, 0, 2.0))
    for moment in range(1, 40):
        now = 2.0 + 0.01 * moment
        shares.on_timer(now)
        assert (shares.timer() or math.inf) > now
        told = {name: each for name, each in shares.senders.items() if each.active}
        if any(math.isinf(each.share) for each in told.values()):
            assert len(told) <= 1
            continue
        staying = [each.share for each in told.values() if each.left_bytes > 2 * each.share * round_trip]
        assert sum(staying) <= link * (1 + TOLD_SHARE) + LEAST_RATE * len(told)
