"""What makes a path worse than a queue and random loss: losses in bursts, policers, and delay lines that are full."""

from __future__ import annotations

import math
import random
from collections import deque


class BurstLoss:
    """Packets lost in a row: Gilbert's model, with a state in which all come and one in which none does."""

    def __init__(self, loss: float, mean_packets: float, chance: random.Random) -> None:
        """
        Args:
            loss: share of all packets that is lost.
            mean_packets: length of a burst; geometrically distributed.
            chance: draws them.
        """
        self._chance = chance
        self._leave_good = loss / (1 - loss) / mean_packets
        self._leave_bad = 1 / mean_packets
        self._is_bad = False
        self._left = self._draw(self._leave_good)

    def loses_any(self, packets: int) -> bool:
        """So many packets go; whether one of them is lost."""
        lost = False
        while packets > self._left:
            lost = lost or (self._is_bad and self._left > 0)
            packets -= self._left
            self._is_bad = not self._is_bad
            self._left = self._draw(self._leave_bad if self._is_bad else self._leave_good)
        self._left -= packets
        return lost or (self._is_bad and packets > 0)

    def _draw(self, leave: float) -> int:
        """Packets until the state is left: one at least."""
        if leave >= 1:
            return 1
        return 1 + int(math.log(1 - self._chance.random()) / math.log(1 - leave))


class Policer:
    """A token bucket that drops what it has no tokens for, and queues nothing (RFC 2475, section 2.3.3.4)."""

    def __init__(self, rate_bps: float, burst_bytes: float) -> None:
        self._rate = rate_bps / 8
        self._burst = self._tokens = burst_bytes
        self._at = 0.0

    def passes(self, wire: int, span: float, packet: int, now: float) -> int:
        """Bytes of a message that pass, whole packets; all of it, or less.

        Args:
            wire: bytes of the message.
            span: seconds that it took to come in, until now.
            packet: bytes of each of its packets.
            now: the time.
        """
        self._tokens = min(self._burst, self._tokens + (now - span - self._at) * self._rate)
        self._at = max(self._at, now)
        tokens = self._tokens + span * self._rate
        passed = wire if wire <= tokens else int(max(tokens, 0.0) // packet) * packet
        self._tokens = min(self._burst, tokens - passed)
        return passed


class FullLine:
    """A delay line that holds so many packets, and drops what comes when it is full (netem's `limit`)."""

    def __init__(self, packets: int, seconds: float) -> None:
        """
        Args:
            packets: that are on their way at most.
            seconds: that each is on its way.
        """
        self._room = packets
        self._seconds = seconds
        self._leave: deque[tuple[float, int]] = deque()

    def takes(self, packets: int, now: float) -> int:
        """So many come; of how many there is room for."""
        while self._leave and self._leave[0][0] <= now:
            self._room += self._leave.popleft()[1]
        taken = min(packets, self._room)
        if taken:
            self._room -= taken
            self._leave.append((now + self._seconds, taken))
        return taken
