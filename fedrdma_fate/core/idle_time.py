"""When a transfer of which nothing arrives fails, on a path that may be so slow that a chunk takes longer than that."""

from __future__ import annotations

import math

SLOWEST_MOVING_BYTES_PER_SECOND = 1000
"""Of bytes under way that still move, the slowest that are waited for: GPRS is ten times as fast. A bound has to be:
what moves may be other transfers', and this one's may be lost at a peer that tells nothing."""


class IdleTime:
    """Of one transfer; what arrives is known to its owner.

    Attributes:
        moved_at: when bytes were last seen to move on its way, seconds.
    """

    def __init__(self, idle_timeout: float) -> None:
        """
        Args:
            idle_timeout: seconds without any progress after which the transfer fails.
        """
        self._idle_timeout = idle_timeout
        self.moved_at = -math.inf

    def due(self, last_progress: float, under_way: int, slowest_bytes_per_second: float = math.inf) -> float:
        """When it fails.

        Args:
            last_progress: when something arrived, or the waiting began, seconds.
            under_way: bytes.
            slowest_bytes_per_second: of a path of which nobody sees whether bytes move.
        """
        unseen = last_progress + self._idle_timeout + under_way / slowest_bytes_per_second
        most = last_progress + self._idle_timeout + under_way / SLOWEST_MOVING_BYTES_PER_SECOND
        return max(unseen, min(self.moved_at + self._idle_timeout, most))
