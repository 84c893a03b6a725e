"""Whether a rate that a probe has found lasts: a policer's bucket lets more through for a while, and drops it then.

A policer (a token bucket that drops and queues nothing) shows by loss alone. BBR's first version looked for one by a
steady rate beside much loss; here the rate from before it was raised is returned to where the raise brings losses that
were not there before. All rules and numbers of this module are ours. Times in seconds, rates in bytes a second.
"""

from __future__ import annotations

import math

from fedrdma_fate.core.x.estimators import chunk_loss

DOUBTED_ROUNDS = 10
"""So many round trips a raised rate is doubted: a bucket of 100 kB lasts for three at 500 Mbit/s and a tenth more."""

LOSS_ROUNDS = 2
"""In a row with more loss than usual: one is a burst. Whether that is chance is judged of all of them together, for by
chance a fifth may be lost of the 76 chunks of a round at 0.5 Gbit/s and 20 ms."""

EXCESS_LOSS = 0.02
"""Of the packets lost beyond what is usual: BBR.LossThresh (draft-ietf-ccwg-bbr-06, section 2.8)."""

EXCESS_DEVIATIONS = 4
"""And so many standard deviations, for of few chunks many may be lost by chance."""

HOLD_SECONDS = 2.0
"""So long nothing more is taken: as BBR waits between two probes (section 5.3.3.9)."""

PASSED_GAIN = 0.97
"""Of what seems to have passed, where little is lost at random: what the bucket had saved is in it, and the next losses
would be taken for chance."""

LEAST_SHARE = 0.8
"""But no less of the rate before, which one probe has raised at most by a quarter."""

SETTLING_ROUNDS = 4
"""After the rate went back: until what is lost is of what was sent since."""

MOST_HOLD_SECONDS = 16.0
"""Twice as long each time, up to this."""


class RaisedRate:
    """Remembers from what the rate was raised."""

    def __init__(self, remembered_seconds: float, rate: float) -> None:
        """
        Args:
            remembered_seconds: for which nothing more is to be taken still.
            rate: than this.
        """
        self._before = rate
        self._doubted_until = -math.inf
        self._remembered_seconds = remembered_seconds
        self._rounds = self._resolved = 0
        self._lost = 0.0
        self._round_seconds = 0.0
        self._share_then = 0.0
        self._settled_at = math.inf
        self._hold_seconds = HOLD_SECONDS
        self._held_until = -math.inf
        self._most = rate or math.inf
        self._at = 0.0

    @property
    def held_seconds(self) -> float:
        """For how much longer nothing more is taken."""
        return max(self._held_until - self._at, 0.0)

    def on_time(self, now: float) -> None:
        """Time passes while we send."""
        if self._remembered_seconds:
            self._held_until, self._remembered_seconds = now + self._remembered_seconds, 0.0
        self._at = now

    def is_held(self, now: float) -> bool:
        """Whether the path lets no more through than it did."""
        return now < self._held_until

    def bound(self, rate: float, now: float) -> float:
        """What of this rate may be believed."""
        return min(rate, self._most) if self.is_held(now) else rate

    def on_probe(self, rate: float) -> None:
        """A probe begins at this rate."""
        self._before = rate
        self._forget_rounds()

    def on_raised(self, round_seconds: float, now: float) -> None:
        """A probe has found more."""
        self._doubted_until = now + DOUBTED_ROUNDS * round_seconds
        self._round_seconds = round_seconds

    def on_overdue(
        self, rate: float, share: float, resolved: int, usual: float, packets: int, now: float
    ) -> float | None:
        """Many chunks in a row are overdue, at the end of what was sent; what to go back to, None where it lasts.

        Nothing that came later tells whether they are lost, and a host or a path that stood still for once would look
        the same. So nothing is concluded but that a rate that was doubted anyway does not last.

        Args:
            rate: that it had.
            share: of the round's chunks that are overdue or lost.
            resolved: chunks overdue, lost or arrived.
            usual: share that the path loses anyway.
            packets: of a chunk.
            now: the time.
        """
        if self.is_held(now) or now >= self._doubted_until or not self._before:
            return None
        if not _is_excess(share, resolved, usual, packets):
            return None
        self._go_back(rate * (1 - share), share, now)
        return self._before

    def on_round(
        self, rate: float, share: float, resolved: int, usual: float, packets: int, now: float, *, heavy: bool
    ) -> float | None:
        """A round without a queue is over; what to go back to, None where the rate lasts.

        Args:
            rate: that it had; infinite where it tells nothing of what passed.
            share: of its chunks that were lost.
            resolved: chunks lost or arrived.
            usual: share that the path loses anyway.
            packets: of a chunk.
            now: the time.
            heavy: so many that one round is enough.
        """
        if self.is_held(now) and now >= self._settled_at and share > self._share_then / 2:
            # as much is lost at the lower rate: at random
            self._held_until, self._hold_seconds = -math.inf, HOLD_SECONDS
        if now >= self._doubted_until:
            return None
        if share <= _expected(usual, packets):
            self._forget_rounds()
            return None
        self._rounds += LOSS_ROUNDS if heavy else 1
        self._lost += share * resolved
        self._resolved += resolved
        if self._rounds < LOSS_ROUNDS or not self._before:
            return None
        if not _is_excess(self._lost / self._resolved, self._resolved, usual, packets):
            return None
        if usual <= chunk_loss(EXCESS_LOSS, packets):
            # what the policer let through: a rate before may have lived on the bucket as well
            passed = PASSED_GAIN * rate * (1 - max(share - usual, 0.0)) ** (1 / packets)
            self._go_back(passed, share, now)
        else:
            self._go_back(self._before, share, now)
        return self._before

    def _forget_rounds(self) -> None:
        self._rounds = self._resolved = 0
        self._lost = 0.0

    def _go_back(self, passed: float, share: float, now: float) -> None:
        self._before = min(self._before, max(passed, LEAST_SHARE * self._before))
        self._most, self._doubted_until = self._before, -math.inf
        self._held_until = now + self._hold_seconds
        self._settled_at, self._share_then = now + SETTLING_ROUNDS * self._round_seconds, share
        self._hold_seconds = min(2 * self._hold_seconds, MOST_HOLD_SECONDS)


def _expected(usual: float, packets: int) -> float:
    """The share of chunks that may be lost where nothing is wrong."""
    return min(usual + chunk_loss(EXCESS_LOSS, packets), 1.0)


def _is_excess(share: float, resolved: int, usual: float, packets: int) -> bool:
    """Whether more of so many chunks are lost than usual, and than may be by chance."""
    expected = _expected(usual, packets)
    by_chance = EXCESS_DEVIATIONS * math.sqrt(expected * (1 - expected) / resolved)
    return share > expected + by_chance
