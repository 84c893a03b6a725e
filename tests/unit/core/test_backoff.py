"""When something that may be lost is sent again."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.backoff import LONGEST_DELAY_SECONDS, Backoff


def moments(backoff: Backoff, until: float) -> list[float]:
    """When it goes again."""
    times = []
    while (due := backoff.timer()) is not None and due <= until:
        assert not backoff.on_timer(due - 1e-6)
        assert backoff.on_timer(due)
        times.append(round(due, 6))
    return times


def test_each_repeat_waits_for_twice_as_long_and_their_number_is_bounded() -> None:
    assert moments(Backoff(0.0, 3), 100.0) == [0.002, 0.006, 0.014]
    assert Backoff(0.0, 0).timer() is None
    assert not Backoff(0.0, 0).on_timer(100.0)


def test_unbounded_repeats_go_on_at_a_steady_pace() -> None:
    times = moments(Backoff(1.0), 3.0)
    assert times[-1] - times[-2] == pytest.approx(LONGEST_DELAY_SECONDS)
