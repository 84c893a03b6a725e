"""When signs of life are asked for, and when the path is lost."""

from __future__ import annotations

import pytest

from fedrdma_fate.transport.udp.liveness import (
    MOST_UNANSWERED,
    TICK_SECONDS,
    TICKS_BETWEEN_PINGS,
    TICKS_WHEN_IDLE,
    Liveness,
)


def ticks_until_ping(liveness: Liveness) -> tuple[int, int]:
    for count in range(1, 10_000):
        number = liveness.tick()
        if number:
            return count, number
    raise AssertionError("no ping")


def ticks_until_lost(falls_silent_after: int = 0) -> int:
    """Of a path that answers no ping, and whose peer sends messages for so many ticks."""
    liveness = Liveness()
    liveness.on_used()
    ticks = 0
    while not liveness.lost:
        liveness.tick()
        ticks += 1
        if ticks <= falls_silent_after:
            liveness.on_message()
    return ticks


def test_an_answered_path_is_pinged_while_it_sends_and_seldom_when_idle() -> None:
    liveness = Liveness()
    liveness.on_used()
    count, number = ticks_until_ping(liveness)
    assert count == TICKS_BETWEEN_PINGS
    liveness.on_pong(number)
    count, number = ticks_until_ping(liveness)
    assert count == TICKS_WHEN_IDLE
    assert 10 <= count * TICK_SECONDS <= 30
    assert not liveness.lost


def test_unanswered_it_is_pinged_at_each_tick_and_lost_within_three_seconds() -> None:
    ticks = ticks_until_lost()
    assert ticks == TICKS_BETWEEN_PINGS + MOST_UNANSWERED - 1
    assert ticks * TICK_SECONDS < 3


@pytest.mark.parametrize(("falls_silent_after", "seconds"), [(0, 2.3), (20, 5.0), (1000, 10.3)])
def test_while_the_peer_reports_its_answers_may_stand_in_a_long_queue(falls_silent_after: int, seconds: float) -> None:
    assert ticks_until_lost(falls_silent_after) * TICK_SECONDS == pytest.approx(seconds, abs=0.3)


def test_one_answer_in_time_keeps_it_alive_also_a_late_one() -> None:
    liveness = Liveness()
    for _ in range(1000):
        liveness.on_used()
        number = liveness.tick()
        if number and number % (MOST_UNANSWERED - 1) == 0:
            liveness.on_pong(number - 5)
        assert not liveness.lost


def test_answers_to_what_was_not_asked_prove_nothing() -> None:
    liveness = Liveness()
    liveness.on_used()
    while not liveness.lost:
        number = liveness.tick()
        liveness.on_pong(number + 1)
        liveness.on_pong(0)
    assert liveness.lost


def test_a_ping_that_is_wanted_goes_at_once() -> None:
    liveness = Liveness()
    assert liveness.tick() == 0
    assert liveness.tick(wanted=True) == 1
    liveness.on_pong(1)
    assert liveness.tick() == 0


def test_the_side_that_dialled_is_heard_of_soon_also_when_idle() -> None:
    count, _ = ticks_until_ping(Liveness(dials=True))
    # before the other side gives an address up that has changed
    assert count * TICK_SECONDS < MOST_UNANSWERED * TICK_SECONDS - 1
