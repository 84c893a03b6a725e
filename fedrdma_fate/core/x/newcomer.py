"""Whether somebody has just begun to send on a path that we had for ourselves, before a small buffer is full.

A TCP flow doubles what it sends each round trip until something is lost (RFC 5681, section 3.1; CUBIC begins so, too,
RFC 9438, section 4.10). In a full link all of that queues, 0.5 MB are full after four or five round trips, and the flow
goes on from a tenth of the link, of which it takes seconds to come up. So the first sign of a queue makes us leave room
for a round trip, which costs little where it was none, and when the queue has grown nevertheless, somebody sends. What
stood for some reports counts, the least of them, as Copa's standing round trip (NSDI 2018, section 2.2): what a busy
host is late with for once is no queue. All rules and numbers of this module are ours. Times in seconds.
"""

from __future__ import annotations

import enum
import math
from collections import deque

FIRST_SIGN_SECONDS = 0.0004
"""A queue of this makes us leave room, 50 kB at 1 Gbit/s: half of what counts as a competitor's, for the third round of
a flow that begins with ten packets queues 0.8 ms, the fifth overruns 0.5 MB, and what we leave shows a round later."""

STANDING_REPORTS = 3
"""The least of so many counts, 6 ms of reports: a host that pauses makes one or two late, and a flow's burst of a round
trip stays in the queue for longer."""

LEAST_SPACING_SECONDS = 0.001
"""Of reports that count: what came while a host paused is taken in at once, and is one delay. They come every 2 ms."""

GROWTH_FACTOR = 1.25
"""A queue that has become so many times as long within WATCH_ROUNDS, though we left room, is of somebody who sends ever
more: in slow start twice as much each round. What was there for once drains."""

WATCH_ROUNDS = 2
"""In the first the queue is still that of what was sent before we left room."""


class Sign(enum.Enum):
    """What a round trip says: nothing new, a queue that may be somebody's, or that somebody has begun to send."""

    NONE = "none"
    SUSPECTED = "suspected"
    FOUND = "found"


class Newcomer:
    """Watches a queue grow."""

    def __init__(self) -> None:
        self._queues: deque[float] = deque(maxlen=STANDING_REPORTS)
        self._until = -math.inf
        self._suspected = 0.0
        self._is_known = False
        self._taken_at = -math.inf

    def on_queue(self, queue: float, least_queue: float, rtt: float, now: float) -> Sign:
        """A round trip was longer than the least by this.

        Args:
            queue: by this.
            least_queue: what is a queue, and not ours.
            rtt: the round trip.
            now: the time.
        """
        if now - self._taken_at < LEAST_SPACING_SECONDS:
            return Sign.NONE
        self._taken_at = now
        self._queues.append(queue)
        standing = min(self._queues) if len(self._queues) == STANDING_REPORTS else 0.0
        if now < self._until:
            if standing <= GROWTH_FACTOR * self._suspected:
                return Sign.NONE
            self.clear()
            return Sign.FOUND
        if standing <= least_queue:
            self._is_known = False
            return Sign.NONE
        if self._is_known:
            # it stays, and does not grow: whose it is shows at the end of CRUISE
            return Sign.NONE
        self._is_known = True
        self._until, self._suspected = now + WATCH_ROUNDS * rtt, standing
        return Sign.SUSPECTED

    def clear(self) -> None:
        """What was seen so far counts no more."""
        self._queues.clear()
        self._until, self._is_known = -math.inf, False
