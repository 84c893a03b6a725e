"""A token bucket with one rate and one burst (as in RFC 2697), which may be overdrawn."""

from __future__ import annotations


class TokenBucket:
    """Full at first. Times in seconds of one clock.

    Attributes:
        level: tokens that there were when it was filled last; negative where more were taken.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        """
        Args:
            rate: tokens a second.
            burst: most that there can be.
            now: the time.
        """
        self.level = burst
        self._rate = rate
        self._burst = burst
        self._at = now

    def fill(self, now: float) -> None:
        """Add what has come since the last time."""
        self.level = min(self._burst, self.level + (now - self._at) * self._rate)
        self._at = now
