"""A token bucket that is asked, not waited for."""

from __future__ import annotations

BURST_SECONDS = 0.001
"""The token bucket holds what the rate gives in this time: BBR.send_quantum, draft-ietf-ccwg-bbr, section 5.6.3."""

MISSING_SHARE = 1e-3
"""Of a write may be missing in the bucket: it owes them afterwards, and nobody wakes up for a few bytes."""

LEAST_WAIT_SECONDS = 1e-9
"""A shorter wait would not move a clock of doubles."""


class Pacer:
    """Lets bytes go at a rate, at most `burst_bytes` at once. Times in seconds of one clock, rates in bytes a second.

    Attributes:
        burst_bytes: depth of the bucket.
    """

    def __init__(self, burst_bytes: int) -> None:
        self.burst_bytes = burst_bytes
        self._rate = 0.0
        self._tokens = float(burst_bytes)
        self._at = 0.0

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate; what was earned so far stays."""
        self._refill(now)
        self._rate = rate
        self._tokens = min(self._tokens, self.burst_bytes)

    def bound(self, most_bytes: float) -> None:
        """There was nothing to send: of what was earned meanwhile no more than this may go at once."""
        self._tokens = min(self._tokens, most_bytes)

    def grant_at(self, length: int, now: float) -> float:
        """When `length` bytes may go: now, or later. A write longer than the bucket waits for a full one."""
        self._refill(now)
        missing = min(length, self.burst_bytes) - self._tokens
        if missing <= MISSING_SHARE * length:
            return now
        return now + max(missing / self._rate, LEAST_WAIT_SECONDS)

    def take(self, length: int, now: float) -> None:
        """So many bytes go; the bucket may owe some afterwards."""
        self._refill(now)
        self._tokens -= length

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._tokens + (now - self._at) * self._rate, self.burst_bytes)
            self._at = now
