"""What long round trips of a path mean: a standing queue, a buffer that is overrun, or a path that has become longer.

BBR does not react to delays. Here a standing queue makes the rate come down at once, for a buffer of 0.5 MB holds no
more than 4 ms at 1 Gbit/s. All rules and numbers of this module are ours; times in seconds.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

STANDING_QUEUE_SECONDS = 0.003
"""A queue is standing when it adds this much: on a short path and a busy host round trips vary by milliseconds."""

STANDING_QUEUE_RTT_SHARE = 0.15
"""And this share of the least round trip: long paths vary in proportion."""

STANDING_QUEUE_CHUNKS = 4
"""And what so many chunks take: at a low rate what round trips vary by is less than a chunk."""

PERSISTENT_QUEUE_ROUNDS = 8
"""A queue that stands for so many round trips, however we reduce, is kept up by competitors: a reduction shows after
one, and drains for another."""


class StandingQueue:
    """Whether a queue stands in front of the bottleneck.

    Attributes:
        persists: it has stood for long, however we reduced.
    """

    def __init__(self) -> None:
        self.persists = False
        self._since: float | None = None

    def update(self, queue: float, now: float, min_rtt: float, chunk_seconds: float, *, ignored: bool) -> bool:
        """Take a sample in; whether a queue is standing.

        Args:
            queue: what the round trip was longer than the least.
            now: the time.
            min_rtt: least round trip.
            chunk_seconds: what a chunk takes at our rate.
            ignored: a reduction was too lately for its effect to show.
        """
        limit = max(STANDING_QUEUE_SECONDS, STANDING_QUEUE_RTT_SHARE * min_rtt, STANDING_QUEUE_CHUNKS * chunk_seconds)
        if queue < limit / 2:
            self.clear()
            return False
        if queue < limit or ignored:
            return False
        if self._since is None:
            self._since = now
        if now - self._since > PERSISTENT_QUEUE_ROUNDS * min_rtt:
            self.persists = True
        return True

    def clear(self) -> None:
        """There is none."""
        self._since = None
        self.persists = False


OVERLOAD_LOSS = 0.05
"""A round that loses this share of its chunks more than the path does, beside a queue, was overloaded."""

OVERLOAD_ROUNDS = 4
"""So many round trips in a row of overload: there is no room for us at this rate."""


class Overload:
    """Rounds in a row that overran the buffer."""

    def __init__(self) -> None:
        self._rounds = 0

    def on_round(self, lost: float, path_loss: float, *, queued: bool, min_rtt: float, latest_rtt: float) -> bool:
        """A round is over; whether the path has been overloaded for too long.

        Args:
            lost: share of its chunks.
            path_loss: share of a round's chunks that the path loses at random.
            queued: a queue stood for the whole round.
            min_rtt: least round trip, the length of a round.
            latest_rtt: latest round trip.
        """
        if not queued or lost <= OVERLOAD_LOSS + path_loss:
            self._rounds = 0
            return False
        self._rounds += 1
        # in a full buffer a round trip, and so one loss event of competitors, is longer than a round
        if self._rounds * min_rtt >= OVERLOAD_ROUNDS * latest_rtt:
            self._rounds = 0
            return True
        return False


DRAINED_SHARE = 0.04
"""A queue that our draining shortens by less than this share of the time we drained is none: at 0.75 of the rate it
would be 0.25 where the rate was right, and less only as far as competitors fill what we leave."""

DRAINED_MEAN_SHARE = 0.06
"""The same of means of many round trips, where single ones vary by chance, and by less than this. At 0.75 of the rate
it is 0.19 on the average of the later half of a drain where all of the path is ours, and 0.09 where a half is."""

LEAST_DRAIN_SAMPLES = 3
"""Fewer round trips of a drain are alike by chance, and none always: where all that is under way has been lost, or went
again, none is told."""

NO_OVERLOAD_LOSS = 0.02
"""A round that loses no more than this, or twice what the path loses, has overrun no buffer."""


class LongerPath(NamedTuple):
    """How long the round trip of a path is that has become longer, seconds.

    Attributes:
        least: of those seen.
        mean: of them, at the end.
    """

    least: float
    mean: float


@dataclasses.dataclass(slots=True)
class _Sum:
    """Of round trips."""

    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count

    def add(self, rtt: float) -> None:
        self.count += 1
        self.total += rtt


class LongerPathCheck:
    """Tells a path that has become longer from a queue: no draining shortens it."""

    def __init__(self) -> None:
        self.rate_before = 0.0
        self._due: float | None = None
        self._began = self._shows_from = 0.0
        self._least = self._most = 0.0
        self._samples = 0
        self._before, self._after = _Sum(), _Sum()

    @property
    def is_under_way(self) -> bool:
        """Whether it has begun and is not over."""
        return self._due is not None

    def note_rate(self, rate: float) -> None:
        """It is to be reduced from this: the largest counts until the check is over."""
        self.rate_before = max(self.rate_before, rate) if self.is_under_way else rate

    def start(self, latest_rtt: float, now: float, due: float) -> None:
        """We drain from now on; what was sent then has been reported by `due`."""
        self._least = self._most = latest_rtt
        self._samples = 0
        self._began, self._shows_from, self._due = now, now + latest_rtt, due
        self._before, self._after = _Sum(), _Sum()

    def on_rtt(self, rtt: float, now: float) -> None:
        """A round trip of the drain."""
        if self._due is None:
            return
        self._least = min(self._least, rtt)
        self._most = max(self._most, rtt)
        self._samples += 1
        # the later halves: of what went before we drained, and of what went meanwhile
        if (self._began + self._shows_from) / 2 <= now < self._shows_from:
            self._before.add(rtt)
        elif now >= (self._shows_from + self._due) / 2:
            self._after.add(rtt)

    def on_round(
        self, lost: float, path_loss: float, drained_seconds: float, now: float, variation: float = 0.0
    ) -> LongerPath | None:
        """A round is over; what has become of the round trip of a path that is longer, None when it is not, or too
        early.

        Args:
            lost: share of its chunks.
            path_loss: share of a round's chunks that the path loses at random.
            drained_seconds: how long we drained.
            now: the time.
            variation: of round trips for other reasons than a queue, as a standard deviation.
        """
        if self._due is None or now < self._due:
            return None
        self._due = None
        if lost > max(NO_OVERLOAD_LOSS, 2 * path_loss):
            return None
        if self._samples >= LEAST_DRAIN_SAMPLES and self._most - self._least < DRAINED_SHARE * drained_seconds:
            return LongerPath(self._least, self._least)
        if min(self._before.count, self._after.count) < LEAST_DRAIN_SAMPLES:
            return None
        limit = DRAINED_MEAN_SHARE * drained_seconds
        if 0 < variation < limit and self._before.mean - self._after.mean < limit:
            return LongerPath(self._least, self._after.mean)
        return None
