"""How fast tasks may put small messages for a peer: each session at its rate, and all below what the peer reads."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.peers.metering import FRAME_BYTES
from fedrdma_fate.gateway.peers.session_rates import MOST_SESSIONS, SHARE_OF_ALL, SessionRates


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put_for(rates: SessionRates, clock: Clock, session: str, seconds: float, body_bytes: int = 0) -> int:
    """Put one after the other, each as soon as the one before is answered; how many were."""
    end, count = clock.now + seconds, 0
    while clock.now < end:
        rates.note(session, body_bytes)
        clock.now += rates.pause(session)
        count += 1
    return count


@pytest.mark.parametrize(("body_bytes", "counts_as"), [(0, 1), (FRAME_BYTES, 2), (4 * FRAME_BYTES, 5)])
def test_a_session_puts_at_its_rate_after_a_burst_and_long_messages_count_as_several(
    clock: Clock, body_bytes: int, counts_as: int
) -> None:
    rates = SessionRates(100.0, 20_000.0, clock)
    # the rate for ten seconds, and a burst of one second
    assert put_for(rates, clock, "s", 10.0, body_bytes) == pytest.approx(1100 / counts_as, abs=2)


def test_a_session_that_floods_does_not_make_another_wait(clock: Clock) -> None:
    rates = SessionRates(100.0, 20_000.0, clock)
    for _ in range(1000):
        rates.note("floods", 0)
    rates.note("other", 0)
    assert rates.pause("floods") == pytest.approx(9.0)
    assert rates.pause("other") == 0.0


def test_all_sessions_together_put_less_than_makes_the_peer_cut_us_off(clock: Clock) -> None:
    rates = SessionRates(100.0, 200.0, clock)
    sessions = [f"s{number}" for number in range(10)]
    count = 0
    while clock.now < 10.0:
        pauses = []
        for session in sessions:
            rates.note(session, 0)
            pauses.append(rates.pause(session))
            count += 1
        clock.now += min(pauses)
    assert count <= 200.0 * SHARE_OF_ALL * (10 + 1) + len(sessions)


def test_who_keeps_to_the_rate_never_waits(clock: Clock) -> None:
    rates = SessionRates(100.0, 20_000.0, clock)
    for _ in range(1000):
        rates.note("s", 0)
        assert rates.pause("s") == 0.0
        clock.now += 0.01
    assert rates.pause("never put anything") == 0.0


def test_sessions_are_forgotten_before_they_are_too_many(clock: Clock) -> None:
    rates = SessionRates(1.0, 1e9, clock)
    for number in range(MOST_SESSIONS + 10):
        for _ in range(3):
            rates.note(f"s{number}", 0)
    assert rates.pause("s0") == 0.0
    assert rates.pause(f"s{MOST_SESSIONS + 9}") > 0.0
