"""How far away senders are, for what is judged of a link has to wait for them: each says so, by when it answers."""

from __future__ import annotations

import statistics
from collections.abc import Collection

UNKNOWN_ROUND_TRIP_SECONDS = 0.1
"""Of senders whose round trip is not known yet."""

MOST_ROUND_TRIP_SECONDS = 1.0
"""Of no sender more is believed, whenever it answers: a satellite takes 0.6 s."""

FAR_FACTOR = 4
"""What is judged waits for who is no more than so many times as far away as the median sender: else one that is, or
says so, keeps all others at what the link is taken for at first. Ours."""

NEAR_SECONDS = 0.1
"""Nobody is too far away by less than this: across a continent."""


def believed_round_trip(seconds: float | None) -> float:
    """Of one, as far as it is known."""
    return UNKNOWN_ROUND_TRIP_SECONDS if seconds is None else min(seconds, MOST_ROUND_TRIP_SECONDS)


def common_round_trip(seconds: Collection[float]) -> float:
    """The longest of all, but of few that are much farther away than the others."""
    if not seconds:
        return UNKNOWN_ROUND_TRIP_SECONDS
    return min(max(seconds), max(FAR_FACTOR * statistics.median_high(seconds), NEAR_SECONDS))
