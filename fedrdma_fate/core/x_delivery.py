"""The rate at which the chunks of a `fedrdma-x` transfer arrive."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 0.008

SURE_SECONDS = 0.002
"""Over less, the unrest of single packets shows: two of them are 2 % of half a millisecond at 10 Gbit/s."""


class DeliveryMeter:
    """Bytes over time at the receiver, lately: over a few milliseconds, or what it takes to see enough of them.

    Times in seconds of the receiver's clock.
    """

    def __init__(self, least_bytes: int) -> None:
        """
        Args:
            least_bytes: that must have arrived for a rate to mean something.
        """
        self._least_bytes = least_bytes
        self._marks: deque[tuple[float, int]] = deque()

    def rate(self, arrived_at: float, received_bytes: int, *, sure: bool = False) -> float | None:
        """Bytes a second lately; None where that cannot be told.

        Args:
            arrived_at: when the newest chunk arrived.
            received_bytes: all that had arrived by then.
            sure: do not tell it before it can be told well; who knows nothing yet will take anything.
        """
        marks = self._marks
        if marks and (arrived_at < marks[-1][0] or received_bytes == marks[-1][1]):
            return None
        if marks and arrived_at == marks[-1][0]:
            # seen in the same look
            marks.pop()
        marks.append((arrived_at, received_bytes))
        latest_start = arrived_at - WINDOW_SECONDS
        while len(marks) > 2 and marks[1][0] <= latest_start and received_bytes - marks[1][1] >= self._least_bytes:
            marks.popleft()
        since, before = marks[0]
        if received_bytes - before < self._least_bytes or (sure and arrived_at - since < SURE_SECONDS):
            return None
        return (received_bytes - before) / (arrived_at - since)

    def forget(self) -> None:
        """Nothing arrived for a while, whatever the path can carry: begin anew."""
        self._marks.clear()
