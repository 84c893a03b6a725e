"""How late a host comes to what was due, and what it may make up for at once.

On a host that trains on all of its cores, the thread that paces waits its turn for milliseconds, again and again. What
it was to send meanwhile it has not sent: so less arrives, which is no slower path, and reports lie here unread, which
is no queue. A kernel's TCP has none of that, for it sends what acknowledgements let go when they come. All rules and
numbers of this module are ours; times in seconds.
"""

from __future__ import annotations

import math

from fedrdma_fate.core.x.pacing import BURST_SECONDS
from fedrdma_fate.core.x.probe_queue import (
    LEAST_QUEUE_BYTES,
    LOSS_FACTOR,
    MOST_QUEUE_BYTES,
    LossCount,
)
from fedrdma_fate.core.x.queue_detection import OVERLOAD_LOSS

LATE_SECONDS = BURST_SECONDS
"""Who is later than this has lost pace: the token bucket holds no more. Threads of an idle host are later by some
tenths of it."""

MOST_LOST_SECONDS = 0.1
"""Of pace is made up for: a control group that has used up its processor time waits for no longer, by the kernel's
default period. Who stood still for seconds, as a guest that was moved, is not expected to do so again, and may find
another path."""

REPEATED_FACTOR = 2
"""A host that was so late is expected to be as late again, and up to so many times, before what it sent now is told of:
waits for a turn vary by as much."""

CATCH_UP_GROWTH_FACTOR = 1.25
"""Of what may be made up for at once, after one that lost nothing: by what BBR probes for more bandwidth (draft,
section 5.3.3), for a host that is late a dozen times a second comes to it soon."""


class Lateness:
    """Whether the host was late for what it does now.

    Attributes:
        looked_at: when something was looked at last.
    """

    def __init__(self) -> None:
        self.looked_at = -math.inf
        self._seconds = self._lost_pace = 0.0
        self._at = -math.inf

    def on_event(self, due: float | None, now: float) -> None:
        """Something is looked at.

        Args:
            due: when the host asked to be woken at the latest; None: it has not.
            now: when it was.
        """
        # what was learnt then may have made due what was not before: it has waited since then, and not for longer
        late = 0.0 if due is None else now - max(due, self.looked_at)
        self.looked_at = now
        if late > LATE_SECONDS:
            self._seconds, self._lost_pace = late, min(late, MOST_LOST_SECONDS)
            self._at = now

    def seconds(self, now: float) -> float:
        """By how much what is looked at now may have waited here; 0: it has not."""
        return self._seconds if now == self._at else 0.0

    def take(self) -> float:
        """By how much pace was lost, since this was asked for: what may be made up for."""
        seconds, self._lost_pace = self._lost_pace, 0.0
        return seconds


class CatchUp:
    """How much of what a late host has not sent it may send at once: as the buffers on the path have room for.

    While nothing was sent nothing stood in them, so that they are as empty as they get.

    Attributes:
        most_bytes: of it.
    """

    def __init__(self) -> None:
        self.most_bytes = LEAST_QUEUE_BYTES
        self._count = LossCount()

    def start(self, due: float) -> None:
        """So much goes at once; by `due` all that was lost of it is known. One is judged at a time."""
        if not self._count.is_open:
            self._count.start(due)

    def on_sample(self, lost: int, arrived: int, usual_loss: float, now: float) -> None:
        """A report has come: chunks lost and arrived, and the share that the path loses anyway."""
        if not self._count.on_sample(lost, arrived, usual_loss, now):
            return
        if self._count.end(OVERLOAD_LOSS):
            # a policer has no room at all
            self.most_bytes *= LOSS_FACTOR
        else:
            self.most_bytes = min(self.most_bytes * CATCH_UP_GROWTH_FACTOR, MOST_QUEUE_BYTES)
