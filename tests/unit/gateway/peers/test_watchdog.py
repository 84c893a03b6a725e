"""A peer that gives no sign of life is given up."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.gateway.peers.watchdog import TICKS, until_silent


class Life:
    """A peer's signs of life, by a clock of the test's own."""

    def __init__(self, signs: dict[int, float]) -> None:
        self.signs = signs
        self.ticks = 0
        self.pings = 0
        self.last = 0.0

    async def sleep(self, seconds: float) -> None:
        assert seconds == 5.0
        self.ticks += 1
        self.last = self.signs.get(self.ticks, self.last)
        assert self.ticks < 50, "it is never given up"

    def ping(self) -> None:
        self.pings += 1

    def watch(self) -> None:
        asyncio.run(until_silent(5.0 * TICKS, lambda: self.last, self.ping, self.sleep))


def test_a_silent_peer_is_given_up_after_the_time_out() -> None:
    life = Life({})
    life.watch()
    assert life.ticks == TICKS
    assert life.pings == TICKS


def test_a_sign_of_life_begins_the_count_anew() -> None:
    life = Life({3: 1.0, 6: 2.0})
    life.watch()
    assert life.ticks == 6 + TICKS


def test_a_peer_that_speaks_now_and_then_is_kept() -> None:
    life = Life({tick: float(tick) for tick in range(0, 60, TICKS - 1)})
    with pytest.raises(AssertionError, match="never given up"):
        life.watch()
