"""How much may queue at the bottleneck for our sake: what a probe, or what goes at once, is sure to find room for.

A probe at a quarter more for 8 ms queues 2.5 MB at 10 Gbit/s, and the buffer of a metro switch may hold 0.5. What the
path has room for shows by what a probe loses. All rules and numbers of this module are ours.
"""

from __future__ import annotations

import math

from fedrdma_fate.core.path_probe import TRAIN_DATAGRAMS
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES

MOST_QUEUE_BYTES = 12_500_000
"""Half of a 25 MB buffer: what a fast link's probe queues until it is known to lose anything."""

LEAST_QUEUE_BYTES = float(TRAIN_DATAGRAMS * DATAGRAM_BYTES)
"""What the path probe sends at once: it would have found nothing where there is no room for that."""

LOSS_FACTOR = 0.5
"""Of the queue stays at most after a probe that lost; less where more of it was lost."""

GROWTH_FACTOR = 1.05
"""After one that lost nothing: a buffer that others had filled is used again in time, a small one seldom overrun. After
a hidden one that lost a few chunks as much less: each would lose as many, and four of 128 KiB are 1 % at 10 Gbit/s."""

EXCESS_LOSS = 0.005
"""A probe lost for want of room when so many more chunks were lost around it than usual."""

PROVING_SHARE = 0.4
"""A rate that no transfer has proved is probed again at once as long as a probe finds so much of what it tried for, a
tenth more of a quarter; BBR's Startup goes on while a round finds a quarter more (draft, section 5.3.1.2), at a gain of
2.77."""

EXCESS_CHUNKS = 3
"""And so many more at least, for fewer are chance."""


class LossCount:
    """What is lost from a moment on until all of it is told, and whether that is more than usual. Times in seconds.

    Attributes:
        lost: chunks that were.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._resolved = 0
        self._usual_loss = 0.0
        self._due: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it counts."""
        return self._due is not None

    @property
    def is_unusual(self) -> bool:
        """Whether so far more was lost than usual, by more than a standard deviation of what chance takes."""
        usual = self._usual_loss * self._resolved
        return self.lost > usual + math.sqrt(usual)

    def start(self, due: float) -> None:
        """Count anew; by `due` all is told."""
        self._due = due
        self.lost = self._resolved = 0

    def on_sample(self, lost: int, arrived: int, usual_loss: float, now: float) -> bool:
        """A report has come: chunks lost and arrived, and the share that the path loses anyway; whether all is told."""
        if self._due is None:
            return False
        self.lost += lost
        self._resolved += lost + arrived
        self._usual_loss = usual_loss
        return now >= self._due

    def end(self, excess: float) -> bool:
        """It counts no more; whether so much more was lost than usual, as a share of the chunks, and not by chance."""
        self._due = None
        return self.lost > (self._usual_loss + excess) * self._resolved + EXCESS_CHUNKS


class ProbeQueue:
    """What our probes may queue. Times in seconds, rates in bytes a second.

    Attributes:
        most_bytes: of it.
    """

    def __init__(self, remembered: float) -> None:
        """
        Args:
            remembered: what they might at last; 0: unknown.
        """
        self.most_bytes = min(max(remembered or MOST_QUEUE_BYTES, LEAST_QUEUE_BYTES), MOST_QUEUE_BYTES)
        self._judged = remembered > 0
        self._count = LossCount()
        self._queued = 0.0
        self._chunk_bytes = 0
        self._is_hidden = self._is_proved = False

    @property
    def remembered(self) -> float:
        """What to remember of it; 0: no probe has shown anything."""
        return self.most_bytes if self._judged else 0.0

    @property
    def is_judging(self) -> bool:
        """Whether what is lost now may be what a probe had no room for."""
        return self._count.is_open

    @property
    def is_judging_hidden(self) -> bool:
        """The same, of a probe of a rate that was known, whose queue no round trip shows: it looks like chance."""
        return self._count.is_open and self._is_hidden and self._is_proved

    def gain(self, rate: float, capacity: float, seconds: float, most: float) -> float:
        """Of a probe at this rate, of this length, on a path that gave so much before: at most so much."""
        unused = max(capacity - rate, 0.0)
        return min(most, 1 + (unused + self.most_bytes / seconds) / max(rate, 1.0))

    def start(self, queued: float, chunk_bytes: int, due: float, *, hidden: bool = False, proved: bool = True) -> bool:
        """A probe begins; whether the one before was hidden, and had no room.

        Args:
            queued: bytes that it will queue.
            chunk_bytes: size of the chunks.
            due: when all that it lost is known.
            hidden: what it queues is gone too soon to be seen in round trips.
            proved: the rate is known by what this transfer has seen of it, too.
        """
        had_no_room = self._count.is_open and self._judge()
        self._queued, self._chunk_bytes = queued, chunk_bytes
        self._is_hidden, self._is_proved = hidden, proved
        self._count.start(due)
        return had_no_room

    def on_sample(self, lost: int, arrived: int, usual_loss: float, now: float) -> bool:
        """A report has come: chunks lost and arrived, and the share that the path loses anyway; whether it shows that
        a hidden probe had no room."""
        return self._count.on_sample(lost, arrived, usual_loss, now) and self._judge()

    def _judge(self) -> bool:
        self._judged = True
        is_unusual = self._is_hidden and self._count.is_unusual
        if self._count.end(EXCESS_LOSS):
            fitted = self._queued - self._count.lost * self._chunk_bytes
            self.most_bytes = max(LEAST_QUEUE_BYTES, min(LOSS_FACTOR * self._queued, fitted, self.most_bytes))
            return self._is_hidden
        if is_unusual:
            self.most_bytes = max(LEAST_QUEUE_BYTES, self.most_bytes / GROWTH_FACTOR)
        else:
            self.most_bytes = min(self.most_bytes * GROWTH_FACTOR, MOST_QUEUE_BYTES)
        return False


class LatestProbe:
    """What the latest probe has queued, and what of it round trips have shown. Times in seconds."""

    def __init__(self, rate: float, gain: float) -> None:
        """
        Args:
            rate: that is known before there was any.
            gain: of the phase that a flow begins with.
        """
        self._rate, self._gain = rate, gain
        self._began = self._queued = -math.inf
        self._showed = 0.0

    @property
    def found_room(self) -> bool:
        """Whether what it sent beyond its rate went through. Where it waited, the path was full, and what arrived more
        was taken from others, or lost to them."""
        return self._showed < self._queued / 2

    def found_more(self, rate: float) -> bool:
        """Whether the rate that is known now is more than that which it began at."""
        return rate >= self._rate * (1 + PROVING_SHARE * (self._gain - 1))

    def start(self, rate: float, gain: float, queued: float, now: float) -> None:
        """A probe begins, at this rate and gain, that will queue so long."""
        self._rate, self._gain = rate, gain
        self._began, self._queued, self._showed = now, queued, 0.0

    def on_queue(self, seconds: float) -> None:
        """A round trip shows so long a queue."""
        self._showed = max(self._showed, seconds)

    def queue(self, now: float, round_trip: float, lasts: float) -> float:
        """How long its queue may be, while reports tell of it: from a round trip after it began, for so long."""
        return self._queued if 0 <= now - self._began - round_trip < lasts else 0.0
