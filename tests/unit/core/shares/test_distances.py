"""Who is far away, or says so, does not decide for all."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.shares.distances import (
    MOST_ROUND_TRIP_SECONDS,
    NEAR_SECONDS,
    UNKNOWN_ROUND_TRIP_SECONDS,
    believed_round_trip,
    common_round_trip,
)


@pytest.mark.parametrize("seconds", [(0.02, 0.06), (0.005, 0.005, NEAR_SECONDS), (0.1, 0.1, 0.4), (0.02, 0.6)])
def test_who_is_not_much_farther_than_others_is_waited_for(seconds: tuple[float, ...]) -> None:
    assert common_round_trip(seconds) == max(seconds)


def test_who_is_much_farther_than_most_is_not() -> None:
    assert common_round_trip((0.02, 0.02, 0.6)) == NEAR_SECONDS
    assert common_round_trip((0.1, 0.1, 0.6)) == pytest.approx(0.4)


def test_where_nobody_sends_it_is_what_is_unknown() -> None:
    assert common_round_trip(()) == UNKNOWN_ROUND_TRIP_SECONDS == believed_round_trip(None)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 20.0])
def test_more_than_a_satellite_takes_is_not_believed(seconds: float) -> None:
    assert believed_round_trip(seconds) == min(seconds, MOST_ROUND_TRIP_SECONDS)
