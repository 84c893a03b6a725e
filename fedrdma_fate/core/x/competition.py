"""Whether other flows compete for the bottleneck of a path, and what `fedrdma-x` leaves them.

A queue that is there when our own has drained is a competitor's, and we come down to half of the path, step by step.
This is not BBR's: all rules and numbers of this module are ours, and how flows share with them was measured in the
testbed (docs/results/sharing.md).
"""

from __future__ import annotations

import enum
import math

QUEUED_SECONDS = 0.0008
"""A round trip that is longer than the least by this was queued: 100 kB at 1 Gbit/s, a fifth of a small buffer. Where
round trips vary for other reasons, means of many count (`queue_delay.py`)."""

QUEUED_SHARE = 0.3
"""Of the samples late in CRUISE, when the queue of our own PROBE_UP has drained: with more of them queued, somebody
queues. Fewer are a burst."""

LEAST_SAMPLES = 5
"""Fewer than 10 ms of reports show nothing."""

REDUCTION_FACTOR = 0.8
"""Of our rate stays at a competitor's queue: four steps to half of the path."""

SMALL_REDUCTION_FACTOR = 0.95
"""The same where competitors were expected already, and we have only increased beyond what there was room for."""

INCREASE_SHARE = 0.04
"""Of the capacity: what a second without a queue adds while competitors are expected. CUBIC in a small buffer at 1
Gbit/s grows by 0.04 to 0.05 of the link a second itself."""

FAIR_SHARE = 0.5
"""Of what the path gave us alone; a queue makes us yield no further, for a flow that fills buffers never gives way."""

HELD_BACK_FACTOR = 1.25
"""Who is let send no more than so many times what the path gave is held back: a probe would find no more than that."""

WHOLE_SHARE = 0.99
"""Of what the path gave us alone is delivered still: nobody else gets more than a hundredth of it, and a queue is our
own. Somebody who has just come shows so soon."""

OVERRATED_TRAIN = 0.02
"""By which share the path probe may overrate what a path gives: a shaper's token bucket lets two packets pass at once,
which are more than a hundredth of its train; 1.6 % was seen."""

CAPACITY_DECAY = 0.98
"""Of the capacity stays after each CRUISE alone at less, half of it after 34, five seconds at 20 ms: competitors may
have kept us from it, and two flows that fill the link without a queue show nothing of each other. With 0.95 a flow that
had a third of the link took that for all there is within two seconds, and its fair share for half of it."""

RECENT_SECONDS = 5.0
"""So long after the last sign of competitors we probe no further than our share: CUBIC takes seconds to reach its
own."""

LESS_SHARE = 0.9
"""Who sends less than so much of what the path gave us alone does not fill a buffer by itself: it is a competitor who
overruns it, or the path has become slower, of which less is to be had as well."""

SHARED_SECONDS = 12.0
"""After the last sign of competitors the path counts as shared for so long, and is still believed to be able to give
what it gave us alone: besides RECENT_SECONDS for seven more, in which probing may find it again."""


class QueueVerdict(enum.Enum):
    """What the round trips of a CRUISE have shown: no queue, one of our own, one that may be, or one of competitors."""

    NONE = "none"
    OWN = "own"
    UNCERTAIN = "uncertain"
    COMPETITORS = "competitors"


class Competition:
    """Keeps what a flow knows about competitors. Times in seconds of sending, rates in payload bytes a second.

    Attributes:
        capacity: what the path gave us alone.
        shared_seconds: for how much longer competitors are expected; 0: we are alone.
        share: what the receiver, or the own gateway, lets us send beside others; infinite: no bound.
    """

    def __init__(self, capacity: float, shared_seconds: float) -> None:
        self.capacity = capacity
        self.shared_seconds = shared_seconds
        self.share = math.inf
        self._overrun_seconds = self._full_seconds = 0.0
        self._at: float | None = None
        self._samples = 0
        self._queued_samples = 0
        self._least_delivered = math.inf
        self._was_queued = False
        self._was_alone = capacity > 0

    @property
    def is_recent(self) -> bool:
        """Whether competitors were seen so lately that nothing above the fair share is for us."""
        return self.shared_seconds > SHARED_SECONDS - RECENT_SECONDS

    @property
    def fair_rate(self) -> float:
        """The rate that we do not yield below.

        Of a link that is shared out, our part is the share: what queues are those that we share it with, whose total is
        not ours to find. Who yields leaves its part to them, and is the last to end. Not so where a full buffer has
        lost something of ours lately: those who share the link keep to shares of it, and fill none.
        """
        fair = self.capacity * FAIR_SHARE
        return max(fair, min(self.share, self.capacity)) if self.is_held_back else fair

    @property
    def is_held_back(self) -> bool:
        """Whether it is the share that we are let send, and neither the path nor others on it, that decides."""
        return self.share <= HELD_BACK_FACTOR * self.capacity and not self._overrun_seconds

    @property
    def is_overrun(self) -> bool:
        """Whether a full buffer has lost something of ours lately."""
        return self._overrun_seconds > 0

    @property
    def is_full_lately(self) -> bool:
        """Whether a buffer that was seen to be full has lost something of ours so lately that what is lost now may be
        what others fill it with; a policer shows no queue."""
        return self._full_seconds > 0

    def on_time(self, now: float) -> None:
        """Time passes while we send."""
        if self._at is not None:
            passed = now - self._at
            self.shared_seconds = max(0.0, self.shared_seconds - passed)
            self._overrun_seconds = max(0.0, self._overrun_seconds - passed)
            self._full_seconds = max(0.0, self._full_seconds - passed)
        self._at = now

    @property
    def had_path(self) -> bool:
        """Whether late in CRUISE all that the path gives was ours all the time, as far as rates of delivery tell."""
        return self._samples > 0 and self.has_path(self._least_delivered, OVERRATED_TRAIN)

    def on_queue(self, queue_seconds: float, delivered: float) -> None:
        """A round trip, late in CRUISE, was longer than the least by this, and what was sent arrived at this rate."""
        self._samples += 1
        self._least_delivered = min(self._least_delivered, delivered)
        self._queued_samples += queue_seconds > QUEUED_SECONDS

    def start_phase(self) -> None:
        """Samples of the last phase do not count any more."""
        self._samples = self._queued_samples = 0
        self._least_delivered = math.inf

    def on_delivery(self, rate: float) -> None:
        """Before we ever had the path for ourselves, the most that it delivered is what it can give."""
        if not self._was_alone:
            self.capacity = max(self.capacity, rate)

    def has_path(self, delivered: float, overrated: float) -> bool:
        """Whether what is delivered is all that the path gives, so that a queue beside it is our own.

        Args:
            delivered: rate at which it arrives, lately.
            overrated: share by which such rates, and so the capacity, may be too high.
        """
        return delivered >= (WHOLE_SHARE - overrated) * self.capacity

    def on_cruise_end(
        self, rate: float, *, maybe_own_queue: bool, has_path: bool = False, is_overrated: bool = False
    ) -> QueueVerdict:
        """CRUISE at this rate is over: whether competitors queued meanwhile.

        Args:
            rate: that we had.
            maybe_own_queue: a queue may well be our own; it counts when it is back after another drain.
            has_path: nobody else gets anything of it.
            is_overrated: nobody else seems to, and the rate may well be too high again after each drain.
        """
        is_queued = self._samples >= LEAST_SAMPLES and self._queued_samples > QUEUED_SHARE * self._samples
        is_own = is_queued and has_path
        was_queued = self._was_queued and not is_overrated
        is_competing = is_queued and not is_own and (self.is_recent or was_queued or not maybe_own_queue)
        if self._samples >= LEAST_SAMPLES:
            self._was_queued = is_queued and not is_own
        if is_competing:
            self.shared_seconds = SHARED_SECONDS
        if self.shared_seconds > 0:
            self.capacity = max(self.capacity, rate)
        elif not is_queued:
            self.capacity, self._was_alone = max(rate, self.capacity * CAPACITY_DECAY), True
        if is_own:
            return QueueVerdict.OWN
        if is_competing:
            return QueueVerdict.COMPETITORS
        return QueueVerdict.UNCERTAIN if is_queued else QueueVerdict.NONE

    def on_newcomer(self) -> None:
        """A queue came up although our rate had suited the path: someone has begun to send."""
        self.shared_seconds = SHARED_SECONDS

    def on_overrun(self) -> None:
        """A buffer that was full lost something of ours: who fills it keeps to no share of any link."""
        self._overrun_seconds = SHARED_SECONDS

    def on_full_buffer(self, rate: float, *, overloaded: bool) -> None:
        """A round trip showed a queue all along, and lost something of ours that was sent at this rate.

        Args:
            rate: that we had.
            overloaded: so much that chance does not explain it.
        """
        self._full_seconds = RECENT_SECONDS
        if overloaded and rate < LESS_SHARE * self.capacity:
            self.on_newcomer()

    def on_room(self) -> None:
        """Others that we shared a link with have ended: what queued were they."""
        self.shared_seconds = 0.0

    def on_path_longer(self) -> None:
        """What looked like a queue was a longer path."""
        self.shared_seconds = 0.0

    def reduced(self, rate: float) -> float:
        """What to come down to from this rate, while competitors queue."""
        factor = SMALL_REDUCTION_FACTOR if rate < self.fair_rate / REDUCTION_FACTOR else REDUCTION_FACTOR
        return min(rate, max(rate * factor, self.fair_rate))

    def increased(self, rate: float, seconds: float) -> float:
        """What to rise to from this rate, while competitors are expected and nobody queued for so long."""
        return min(rate + INCREASE_SHARE * self.capacity * seconds, max(rate, self.capacity))
