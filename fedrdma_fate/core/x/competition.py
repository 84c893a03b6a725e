"""Whether others send through the bottleneck of a path, and what `fedrdma-x` leaves them."""

from __future__ import annotations

import enum

FOREIGN_QUEUE_SECONDS = 0.0008
FOREIGN_SHARE = 0.3
"""A queue in this share of the samples late in CRUISE, when our own probe's has drained, is someone else's, if the
queue is back after it was drained once more."""
LEAST_SAMPLES = 5

YIELD_GAIN = 0.8
SMALL_YIELD_GAIN = 0.95
"""When others were expected already, and we have only crept beyond what there was room for."""
CREEP_SHARE = 0.04
"""Of the capacity: what a second without a queue adds while others are expected."""
FAIR_SHARE = 0.5
"""Of what the path gave us alone; a queue makes us yield no further, for a flow that fills buffers never gives way."""

FORGETTING = 0.95
"""Of the capacity stays after each CRUISE alone at less: others may have kept us from it a moment ago."""

HOLD_SECONDS = 5.0
"""So long after the last sign of others we probe no further than our share: CUBIC takes seconds to reach its own."""
MEMORY_SECONDS = 12.0
"""After the last sign of others the path is still believed to be able to give what it gave us alone."""


class Sign(enum.Enum):
    """What a CRUISE has shown: nothing, a queue that may still be our own, or a queue of others."""

    NONE = "none"
    QUEUE = "queue"
    OTHERS = "others"


class Sharing:
    """Keeps what a flow knows about others. Times in seconds of sending, rates in payload bytes a second.

    Attributes:
        capacity: what the path gave us alone.
        expected: for how much longer others are expected; 0: we are alone.
    """

    def __init__(self, capacity: float, expected: float) -> None:
        self.capacity = capacity
        self.expected = expected
        self._at: float | None = None
        self._samples = 0
        self._queued = 0
        self._suspected = False
        self._was_alone = capacity > 0

    @property
    def holding(self) -> bool:
        """Whether others were seen so lately that nothing above the fair share is for us."""
        return self.expected > MEMORY_SECONDS - HOLD_SECONDS

    @property
    def fair(self) -> float:
        """The rate that we do not yield below."""
        return self.capacity * FAIR_SHARE

    def on_time(self, now: float) -> None:
        """Time passes while we send."""
        if self._at is not None:
            self.expected = max(0.0, self.expected - (now - self._at))
        self._at = now

    def on_sample(self, queue: float) -> None:
        """A round trip, late in CRUISE, was longer than the least by this."""
        self._samples += 1
        self._queued += queue > FOREIGN_QUEUE_SECONDS

    def start_phase(self) -> None:
        """Samples of the last phase do not count any more."""
        self._samples = self._queued = 0

    def on_delivery(self, rate: float) -> None:
        """Before we ever had the path for ourselves, the most that it delivered is what it can give."""
        if not self._was_alone:
            self.capacity = max(self.capacity, rate)

    def on_cruised(self, rate: float, *, doubtful: bool) -> Sign:
        """CRUISE at this rate is over: whether others queued meanwhile.

        Args:
            doubtful: a queue may well be our own; it counts when it is back after another drain.
        """
        queued = self._samples >= LEAST_SAMPLES and self._queued > FOREIGN_SHARE * self._samples
        foreign = queued and (self.holding or self._suspected or not doubtful)
        self._suspected = queued
        if foreign:
            self.expected = MEMORY_SECONDS
        if self.expected > 0:
            self.capacity = max(self.capacity, rate)
        elif not queued:
            self.capacity, self._was_alone = max(rate, self.capacity * FORGETTING), True
        if foreign:
            return Sign.OTHERS
        return Sign.QUEUE if queued else Sign.NONE

    def on_newcomer(self) -> None:
        """A queue came up although our rate had suited the path: someone has begun to send."""
        self.expected = MEMORY_SECONDS

    def on_moved(self) -> None:
        """What looked like a queue was a longer path."""
        self.expected = 0.0

    def yielded(self, rate: float) -> float:
        """What to come down to from this rate, while others queue."""
        gain = SMALL_YIELD_GAIN if rate < self.fair / YIELD_GAIN else YIELD_GAIN
        return min(rate, max(rate * gain, self.fair))

    def crept(self, rate: float, seconds: float) -> float:
        """What to rise to from this rate, while others are expected and nobody queued for so long."""
        return min(rate + CREEP_SHARE * self.capacity * seconds, max(rate, self.capacity))
