"""When something that may be lost is sent again, before anybody can know that it was."""

from __future__ import annotations

FIRST_GAP_SECONDS = 0.002
"""As long as a receiver waits between two reports."""

LONGEST_GAP_SECONDS = 0.064


class Repeats:
    """Repeats, each after twice the time of the one before, until whoever made this drops it."""

    def __init__(self, now: float, most: int | None = None) -> None:
        """
        Args:
            now: when it was sent first, seconds.
            most: repeats; None: any number.
        """
        self._left = most
        self._gap = FIRST_GAP_SECONDS
        self._due = now + self._gap

    def timer(self) -> float | None:
        """When it is to go again, None when it is not."""
        return None if self._left == 0 else self._due

    def on_timer(self, now: float) -> bool:
        """Whether it is to go now."""
        if self._left == 0 or now < self._due:
            return False
        if self._left is not None:
            self._left -= 1
        self._gap = min(2 * self._gap, LONGEST_GAP_SECONDS)
        self._due = now + self._gap
        return True
