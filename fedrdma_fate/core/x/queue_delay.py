"""How long the queue of a path is, told from round trips that vary for other reasons, too.

Copa (Arun and Balakrishnan, NSDI 2018, section 2.2) judges by its standing round trip, the least of half a round trip,
and takes the least of ten seconds for that without a queue. Where answers are early and late by chance, the least of
many seconds is a rare one that no later round trip comes near, and the path would look queued for good. So means of as
many round trips as it takes are compared with the least such mean. All rules and numbers of this module are ours; times
in seconds.
"""

from __future__ import annotations

import itertools
import math
from collections import deque

from fedrdma_fate.core.x.competition import QUEUED_SECONDS
from fedrdma_fate.core.x.estimators import RttFilter

SAMPLE_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""A mean is of so many round trips. No more: what came 0.13 s ago says little of now."""

LEAST_SPACING_SECONDS = 0.0005
"""Of round trips that count for a mean: acknowledgements of single chunks, and reports that were held up together, come
faster, and are late together."""

VARIATION_SAMPLES = 128
"""Second differences of which the upper quartile counts, 0.26 s of reports: that of 32 went up and down by a half. Not
the mean, for a queue that begins to drain, and a host that is busy for once, make a few large ones."""

LEAST_VARIATION_SAMPLES = 8
"""Fewer show nothing."""

SECOND_DIFFERENCE_FACTOR = 2.82
"""The upper quartile of second differences of independent normal samples, in their standard deviations: 1.15 * sqrt(6).
A queue that grows or drains steadily has none."""

SINGLE_DEVIATION_SECONDS = 0.00025
"""Where round trips vary by no more, each of them tells, and what single ones show is known sooner. As much do chunks
of two flows that take turns: of 16 KiB at 1 Gbit/s 0.13 ms, of 4 and 12 KiB at 200 Mbit/s 0.25 ms."""

MEAN_DEVIATION_SECONDS = 0.0001
"""What the standard deviation of a mean may be: an eighth of what counts as queued, for the least of many means lies
three deviations below most, and a few lie as many above."""

SHRINK_FACTOR = 1.5
"""A mean gets no fewer samples while a variation so many times as large would want as many: the quartile varies."""

MARGIN_DEVIATIONS = 12
"""Of the means, which count as a queue only beyond that: means of 64 may vary by more than is wanted, and neighbouring
round trips are not independent where packets keep their order. With 8, jitter of half a round trip looked queued."""

SPAN_DEVIATIONS = 6
"""Most round trips, and means, lie no more than this above the least round trip, in deviations of one, without a queue:
five where both ways add J or take it, evenly. So what single ones show counts from there on, and a queue that stood
from the very first mean on is found out."""


STANDING_SAMPLES = 4
"""The least of so many round trips in a row tells, where it lies above that span, whatever a mean says. A mean of 64
takes 0.13 s, in which two flows at the rate of 1 Gbit/s have filled 4 MB four times over. One that is late for once
tells nothing."""

EMPTY_DEVIATIONS = SPAN_DEVIATIONS / 2
"""A single round trip no more than this above the least shows that the queue is short, for without one half of them
lie so low, and of those behind a buffer of 0.5 MB that is full at 1 Gbit/s none does where they vary by 2 ms."""


class QueueDelay:
    """By how much round trips are longer than they are without a queue.

    Where they hardly vary, each of them tells; else means of so many that these hardly do.

    Attributes:
        variation: of round trips for other reasons than a queue, as a standard deviation, seconds.
    """

    def __init__(self, min_rtt: float, variation: float, least_mean: float) -> None:
        """
        Args:
            min_rtt: remembered least round trip, 0: unknown.
            variation: remembered, 0: unknown, or none.
            least_mean: remembered, of as many round trips as this variation takes; 0: unknown.
        """
        self.variation = variation
        self._count = _count_for(variation)
        self._first_seconds = min_rtt
        if self._count > 1:
            # a single one that came so much sooner than most is no measure of them; nor is a train's, which came alone
            min_rtt = max(min_rtt, least_mean - EMPTY_DEVIATIONS * variation) if least_mean else 0.0
        self._means = {count: RttFilter(0.0) for count in SAMPLE_COUNTS}
        self._means[self._count] = RttFilter(least_mean)
        self._means[1] = RttFilter(min_rtt)
        self._samples: deque[float] = deque(maxlen=SAMPLE_COUNTS[-1])
        self._last: deque[float] = deque(maxlen=2)
        # what is remembered gives way in half the time
        known = [SECOND_DIFFERENCE_FACTOR * variation] * (VARIATION_SAMPLES // 2 if variation else 0)
        self._differences: deque[float] = deque(known, maxlen=VARIATION_SAMPLES)
        self._taken_at = -math.inf
        self._began: float | None = None

    @property
    def least_mean(self) -> float:
        """Of as many round trips as their variation takes, seconds; 0 while unknown, and where each of them tells."""
        return self._means[self._count].least if self._count > 1 else 0.0

    @property
    def is_mean(self) -> bool:
        """Whether round trips vary so much that means of them tell."""
        return self._count > 1

    @property
    def has_rare_least(self) -> bool:
        """Whether a single round trip was so much shorter than the least mean that all of them look queued by it."""
        return self.least_mean > self._means[1].least + SPAN_DEVIATIONS * self.variation

    def update(self, rtt: float, now: float, window_seconds: float) -> float | None:
        """Take a round trip in; how long the queue is, None while too few agree.

        Args:
            rtt: the round trip.
            now: the time.
            window_seconds: for which the least counts.
        """
        if self._began is None:
            self._began = now
        if not self.is_mean or now >= self._began + self._first_seconds:
            # of a transfer's very first ones none has waited for another in front of it, where packets are late by
            # chance and keep their order: those behind them never come as soon
            self._means[1].update(rtt, now, window_seconds)
        is_apart = now - self._taken_at >= LEAST_SPACING_SECONDS
        if is_apart:
            self._taken_at = now
            self._samples.appendleft(rtt)
            self._update_means(now, window_seconds)
            self._learn_variation(rtt)
        single, means = self._means[1], self._means[self._count]
        if self._count == 1:
            return max(0.0, single.queue_seconds - max(0.0, SPAN_DEVIATIONS * self.variation - QUEUED_SECONDS))
        if not is_apart or not single.least:
            return None
        span = single.least + SPAN_DEVIATIONS * self.variation
        latest = list(itertools.islice(self._samples, STANDING_SAMPLES))
        standing = max(0.0, min(latest) - span) if len(latest) == STANDING_SAMPLES else 0.0
        if len(self._samples) < self._count:
            return standing if standing > QUEUED_SECONDS else None
        margin = MARGIN_DEVIATIONS * self.variation / math.sqrt(self._count) - QUEUED_SECONDS
        return max(standing, means.latest - min(means.least, span) - max(0.0, margin))

    def is_short(self, rtt: float) -> bool:
        """Whether this round trip alone, the latest, shows that there is no queue to speak of, whatever a mean says."""
        return rtt - self._means[1].least <= EMPTY_DEVIATIONS * self.variation

    def reset(self, least: float, mean: float, now: float) -> None:
        """The path has changed: this is its least round trip, and the least mean of many."""
        for count, means in self._means.items():
            means.reset(least if count == 1 else mean, now)
        self.restart()

    def restart(self) -> None:
        """What was sent so far teaches nothing about the queue of what is sent from now on."""
        self._samples.clear()

    def _update_means(self, now: float, window_seconds: float) -> None:
        total = 0.0
        for count, rtt in enumerate(self._samples, 1):
            total += rtt
            if count > 1 and count in self._means:
                self._means[count].update(total / count, now, window_seconds)

    def _learn_variation(self, rtt: float) -> None:
        if len(self._last) == 2:
            before, last = self._last
            self._differences.append(abs(rtt - 2 * last + before))
            if len(self._differences) >= LEAST_VARIATION_SAMPLES:
                quartile = sorted(self._differences)[len(self._differences) * 3 // 4]
                self.variation = quartile / SECOND_DIFFERENCE_FACTOR
                self._fit_count()
        self._last.append(rtt)

    def _fit_count(self) -> None:
        wanted = _count_for(self.variation)
        if wanted > self._count or _count_for(SHRINK_FACTOR * self.variation) < self._count:
            self._count = wanted


def _count_for(variation: float) -> int:
    """How many samples a mean takes where they vary so much."""
    enough = (variation / MEAN_DEVIATION_SECONDS) ** 2 if variation > SINGLE_DEVIATION_SECONDS else 1
    return next((count for count in SAMPLE_COUNTS if count >= enough), SAMPLE_COUNTS[-1])
