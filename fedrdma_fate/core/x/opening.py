"""How a transfer begins on a path that lately gave more than it did at last.

A payload that is over within a few round trips never comes to a PROBE_UP. What it begins with decides: at a rate from a
moment at which the path was slow, it would stay slow for tens of transfers after that moment has passed. TCP goes on
from what it had open (BBR: the largest of ten round trips, ACM Queue 2016, which are few transfers of this size). Here
a transfer begins at the rate that the path lately gave, for as long as what that queues, if the path is still as slow,
is no more than it has held for us before. A round trip later the rate is known. All rules and numbers of this module
are ours; rates in bytes a second.
"""

from __future__ import annotations

from fedrdma_fate.core.x.estimators import EWMA_GAIN
from fedrdma_fate.core.x.pacing import BURST_SECONDS

LEAST_GAIN = 1.05
"""What the path gave more lately is worth an opening from here on: samples of a steady path differ by less."""

LEAST_QUEUED_BYTES = 64 * 1024
"""Less than this, a quarter of what the path probe sends at once, is no opening."""

HELD_SHARE = 0.9
"""Of what the path has held is used: chunks go as a whole, and with all of it some were lost in a buffer of 0.5 MB."""

LOST_FACTOR = 0.5
"""Of what the path has held stays when a full buffer has lost some of it: as of a probe's queue."""


class Opening:
    """What the path lately gave, and what it has held without losing any.

    Attributes:
        recent_rate: the most that it gave lately; less with each opening that did not find it.
        held_bytes: the longest queue that lost nothing.
    """

    def __init__(self, recent_rate: float, held_bytes: float, rate: float) -> None:
        """
        Args:
            recent_rate: that is remembered; 0: the rate.
            held_bytes: that are remembered.
            rate: that is remembered.
        """
        self.recent_rate = max(recent_rate, rate)
        self.held_bytes = held_bytes
        self._was_tried = False

    def begin(self, rate: float, most_bytes: float, round_seconds: float) -> tuple[float, float] | None:
        """At how many times the rate to begin, and for how long: until what the path may have to hold is sent, or it is
        known what it carries. None: at the rate.

        Args:
            rate: that is remembered.
            most_bytes: that may be queued, for other reasons.
            round_seconds: a round trip.
        """
        # of which the token bucket lets a part go at once
        queued = min(HELD_SHARE * self.held_bytes, most_bytes) - self.recent_rate * BURST_SECONDS
        if rate <= 0 or queued < LEAST_QUEUED_BYTES or self.recent_rate < LEAST_GAIN * rate:
            return None
        self._was_tried = True
        return self.recent_rate / rate, min(queued / (self.recent_rate - rate), round_seconds)

    def on_queue(self, queue_bytes: float, *, lost: bool) -> None:
        """So much was queued, and something was lost of it or not."""
        if not lost:
            self.held_bytes = max(self.held_bytes, queue_bytes)

    def on_full(self) -> None:
        """A buffer that was full has lost something."""
        self.held_bytes *= LOST_FACTOR

    def on_cycle(self, rate: float) -> None:
        """A whole cycle has probed for more than this rate, and what there is was found."""
        self.recent_rate = self._nearer(rate)

    def remembered_rate(self, rate: float) -> float:
        """What to remember when the transfer ends at this rate; 0: the rate."""
        recent = self._nearer(rate) if self._was_tried else max(self.recent_rate, rate)
        return recent if recent > rate else 0.0

    def _nearer(self, rate: float) -> float:
        return max(rate, self.recent_rate + EWMA_GAIN * (rate - self.recent_rate))
