"""Shares by which those that have about as much left end at one moment, and not the nearest first.

By equal shares those with short round trips end first, for they are heard of first, and what they leave comes of the
others a round trip after these were told: of eight with 20 to 60 ms the link is half empty for 25 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LEAST_ROUND_TRIPS = 2.0
"""So many of the longest round trips are to be left: what comes in the next one can not be changed any more."""

MOST_ROUND_TRIPS = 5.0
"""And no more than so many, for the later it is decided, the less comes in between. A window lasts about one, so one
ends between these two."""

MOST_UNEVEN = 1.25
"""Nobody has so many times an equal share, or so much less: who has much more left than the others is not waited for,
who has much less is not held up, and who says that it has more gains no more than this."""

_HALVINGS = 40
"""Of the time in which the end is looked for: to a billionth of a second."""


class Ending(NamedTuple):
    """One that sends.

    Attributes:
        left_bytes: that are to come.
        share: what it was told, bytes a second.
        round_trip: after which what it is told shows in what comes, seconds.
    """

    left_bytes: float
    share: float
    round_trip: float


def common_end(endings: Mapping[str, Ending], total: float) -> dict[str, float] | None:
    """Shares by which all end at one moment; None where it is not the time for that, or they have not as much left.

    Args:
        endings: who sends.
        total: bytes a second that there are for all.
    """
    longest = max((each.round_trip for each in endings.values()), default=0.0)
    left = sum(each.left_bytes for each in endings.values())
    least, most = LEAST_ROUND_TRIPS * longest, MOST_ROUND_TRIPS * longest
    if len(endings) < 2 or not least < left / total < most:
        return None
    low, high = longest, 2 * most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(_rate_until(middle, each) for each in endings.values()) > total:
            low = middle
        else:
            high = middle
    shares = {name: _rate_until(high, each) for name, each in endings.items()}
    equal = total / len(endings)
    is_uneven = min(shares.values()) * MOST_UNEVEN < equal or max(shares.values()) > MOST_UNEVEN * equal
    return None if is_uneven else shares


def _rate_until(end: float, each: Ending) -> float:
    """At which all of it has come by then: what comes in its next round trip comes at the share that it has."""
    rest = each.left_bytes - each.share * each.round_trip
    return max(rest, 0.0) / (end - each.round_trip)
