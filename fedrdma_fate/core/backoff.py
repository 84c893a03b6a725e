"""When something that may be lost is sent again, before anybody can know that it was."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 0.002
"""As long as a receiver waits between two reports. Ours."""

LONGEST_DELAY_SECONDS = 0.064
"""After five doublings: what waits for longer is on a path that is gone, and 16 repeats a second do no harm there."""


class Backoff:
    """Repeats, each after twice the time of the one before, until whoever made this drops it (as RFC 9002, 6.2.1)."""

    def __init__(self, now: float, most: int | None = None) -> None:
        """
        Args:
            now: when it was sent first, seconds.
            most: repeats; None: any number.
        """
        self._left = most
        self._delay = FIRST_DELAY_SECONDS
        self._due = now + self._delay

    def timer(self) -> float | None:
        """When it is to go again, seconds; None when it is not."""
        return None if self._left == 0 else self._due

    def on_timer(self, now: float) -> bool:
        """Whether it is to go now."""
        if self._left == 0 or now < self._due:
            return False
        if self._left is not None:
            self._left -= 1
        self._delay = min(2 * self._delay, LONGEST_DELAY_SECONDS)
        self._due = now + self._delay
        return True
