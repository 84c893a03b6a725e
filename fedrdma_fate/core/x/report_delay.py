"""How long reports are held up on their way back, which is no queue in front of what is sent.

A radio sends when its schedule lets it, so that the reports of 10 or 50 ms come at one moment, and where the way back
is full they wait behind others' packets. A report says when it left, by the receiver's clock. From then until it comes
is its way back and the difference of the clocks, which nobody knows; by what that is more than the least so far, this
report was held up, as LEDBAT (RFC 6817, section 2.1) tells a queue by one-way delays. All rules and numbers of this
module are ours; times in seconds.
"""

from __future__ import annotations

import math

CLOCK_DRIFT = 0.001
"""Seconds a second by which the least way back is believed to grow: NTP slews a clock by half of that at most, and
crystals differ by a tenth. Of a way back that has become longer it is also how soon that is believed."""

MOST_DELAY_SECONDS = 1.0
"""Longer than this none is expected to be held up: a report that comes so late is as good as lost."""

HALF_LIFE_SECONDS = 2.0
"""Of the longest delay so far as one that is expected: a schedule comes again in less."""


class ReportDelay:
    """By how much reports came later than the least way back has it.

    Attributes:
        least_way: of those so far, seconds, with the difference of the two clocks; None: none is known.
        least_at: when that was true, seconds.
    """

    def __init__(self, least_way: float | None = None, least_at: float = 0.0) -> None:
        """
        Args:
            least_way: as it was remembered.
            least_at: when that was.
        """
        self.least_way = least_way
        self.least_at = least_at
        self._longest = 0.0
        self._longest_at = 0.0

    def expected(self, now: float) -> float:
        """How long the next one may be held up, by those lately."""
        return self._longest * math.pow(0.5, max(now - self._longest_at, 0.0) / HALF_LIFE_SECONDS)

    def update(self, way: float, rtt: float | None, now: float) -> float:
        """A report has come; for how long it was held up.

        Args:
            way: from its leaving to now, with the difference of the clocks.
            rtt: the round trip that it tells, where it tells one: no way back is as long.
            now: the time.
        """
        least = way
        if self.least_way is not None:
            least = min(way, self.least_way + CLOCK_DRIFT * max(now - self.least_at, 0.0))
        if rtt is not None and way - least >= rtt:
            # another clock: the peer's gateway runs on another host, or that one was asleep
            least = way
        self.least_way, self.least_at = least, now
        delay = min(way - least, MOST_DELAY_SECONDS)
        expected = self.expected(now)
        if delay >= expected:
            self._longest, self._longest_at = delay, now
        return delay
