"""When the next transfer begins: a while after the last; where a path changes by itself, at a set moment of it."""

from __future__ import annotations

import math
import os
import time

PAUSE_SECONDS = 0.5
"""Between two transfers: until the receiver's slot is free again, and queues are empty."""
PHASES = 4
"""At which transfers begin, in turns, of a path that repeats: as many as `fedrdma bench wan` makes."""


def begin_after(now: float, began: float, period: float, number: int) -> float:
    """When a transfer is to begin.

    All rows of a benchmark are to meet the same path: where it repeats, transfer by transfer at a quarter of its period
    more, however long those before took.

    Args:
        now: the earliest moment is a pause later.
        began: when the path began to change.
        period: after which it is as before, seconds; 0: it stays as it is.
        number: of the transfer, from 0.
    """
    earliest = now + PAUSE_SECONDS
    if not period:
        return earliest
    phase = began + number % PHASES * period / PHASES
    return phase + max(0, math.ceil((earliest - phase) / period)) * period


def pause_before(number: int) -> None:
    """Wait until it is time for a transfer, by its number from 0."""
    now, began = time.monotonic(), float(os.environ["TESTBED_BEGAN"])
    period = float(os.environ.get("TESTBED_PERIOD") or 0)
    time.sleep(begin_after(now, began, period, number) - now)
