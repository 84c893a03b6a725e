"""How fast tasks may put small messages for a peer: each session at its rate, and all below what the peer reads."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from fedrdma_fate.gateway.peers.metering import SHORTEST_PAUSE_SECONDS
from fedrdma_fate.gateway.peers.session_rates import MOST_SESSIONS, SHARE_OF_ALL, SessionRates


class Clock:
    """A clock that is set by hand, or by who sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, session_rate: float, peer_rate: float) -> SessionRates:
    return SessionRates(session_rate, peer_rate, clock, clock.sleep)


async def put(rates: SessionRates, session: str, frames: int = 1) -> None:
    """One message, as the tasks' server puts it."""
    if rates.is_open(session):
        rates.take(session, frames)
    else:
        await rates.wait(session, frames)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_a_session_puts_at_its_rate_after_a_burst_and_long_messages_count_as_several(clock: Clock, frames: int) -> None:
    async def scenario() -> int:
        rates, count = made(clock, 100.0, 20_000.0), 0
        while clock.now < 10.0:
            await put(rates, "s", frames)
            count += 1
        return count

    # the rate for ten seconds, and a burst of one second
    assert asyncio.run(scenario()) == pytest.approx(1100 / frames, abs=3)


def test_a_session_that_floods_does_not_make_another_wait(clock: Clock) -> None:
    async def scenario() -> None:
        rates = made(clock, 100.0, 20_000.0)
        rates.take("floods", 1000)
        assert not rates.is_open("floods")
        assert rates.is_open("other")
        await put(rates, "floods")
        assert clock.now == pytest.approx(9.0)

    asyncio.run(scenario())


def test_all_sessions_together_put_less_than_makes_the_peer_cut_us_off_and_take_turns(clock: Clock) -> None:
    counts: Counter[str] = Counter()

    async def putting(rates: SessionRates, session: str) -> None:
        while clock.now < 10.0:
            await put(rates, session)
            counts[session] += 1

    async def scenario() -> None:
        rates = made(clock, 100.0, 200.0)
        floods = [putting(rates, f"s{number % 10}") for number in range(100)]
        await asyncio.gather(putting(rates, "one"), *floods)

    asyncio.run(scenario())
    assert counts.total() <= 200.0 * SHARE_OF_ALL * (10 + 1 + SHORTEST_PAUSE_SECONDS) + 102
    # eleven sessions, of which ten have ten tasks each that put as fast as they can
    assert counts["one"] >= 0.8 * counts.total() / 11


def test_who_goes_away_before_it_may_put_has_put_nothing_and_leaves_no_debt(clock: Clock) -> None:
    async def scenario() -> None:
        rates = SessionRates(100.0, 20_000.0, clock)
        rates.take("floods", 200)
        for _ in range(50):
            waiting = [asyncio.create_task(rates.wait("floods", 1000)) for _ in range(10)]
            await settle()
            for each in waiting:
                each.cancel()
            await settle()
            assert all(each.cancelled() for each in waiting)
        # its burst, and as much again: one second later it may
        clock.now += 1.0
        assert rates.is_open("floods")
        assert rates.is_open("other")

    asyncio.run(scenario())


def test_a_session_waits_for_the_rate_of_all_once_however_many_tasks_it_has(clock: Clock) -> None:
    async def scenario() -> None:
        rates = made(clock, 10_000.0, 200.0)
        rates.take("floods", 200)
        floods = [asyncio.create_task(rates.wait("floods", 15)) for _ in range(100)]
        await asyncio.sleep(0)
        one = asyncio.create_task(rates.wait("one", 1))
        await one
        # the first of the flood, and the next, which waits already
        assert sum(each.done() for each in floods) <= 2
        for each in floods:
            each.cancel()

    asyncio.run(scenario())


def test_who_keeps_to_the_rate_never_waits(clock: Clock) -> None:
    rates = made(clock, 100.0, 20_000.0)
    for _ in range(1000):
        assert rates.is_open("s")
        rates.take("s", 1)
        clock.now += 0.01
    assert rates.is_open("never put anything")


def test_short_pauses_are_saved_up(clock: Clock) -> None:
    async def scenario() -> None:
        rates = made(clock, 1000.0, 20_000.0)
        rates.take("s", 1000)
        slept = 0
        for _ in range(1000):
            before = clock.now
            await put(rates, "s")
            slept += clock.now > before
        assert slept <= 1000 * 1.1 / (1000.0 * SHORTEST_PAUSE_SECONDS)

    asyncio.run(scenario())


def test_a_session_that_has_long_put_nothing_is_forgotten_and_a_busy_one_is_not(
    clock: Clock,
) -> None:
    rates = made(clock, 100.0, 20_000.0)
    rates.take("busy", 100)
    for number in range(1000):
        rates.take(f"s{number}", 1)
        clock.now += 0.001
    assert len(rates._of_session) > 10
    assert "busy" in rates._of_session
    for number in range(1000):
        rates.take(f"later{number}", 1)
        clock.now += 0.1
    assert len(rates._of_session) < 10
    assert "busy" not in rates._of_session


def test_sessions_are_forgotten_before_they_are_too_many(clock: Clock) -> None:
    rates = made(clock, 1.0, 1e9)
    for number in range(MOST_SESSIONS + 10):
        rates.take(f"s{number}", 3)
    assert not rates.is_open(f"s{MOST_SESSIONS + 9}")
    assert rates.is_open("s0")
