"""Whether nearly nothing comes of what is sent, because at this rate nothing gets through whole.

A policer that lets half through takes a packet of every chunk of several. Then no chunk comes that would tell that the
others are lost: all of them are overdue, as where a path or a host stands still for a while. After that what is sent
comes; here it does not. All rules and numbers of this module are ours.
"""

from __future__ import annotations

STARVED_CHUNKS = 64
"""So many have to be overdue: a megabyte, more than slow paths have under way."""

STARVED_SHARE = 1 / 8
"""Of these so few have come besides. What a policer lets through at half of the rate is a sixteenth of chunks of four
packets, where chance decides; what its bucket has saved meanwhile comes as well."""


class Starvation:
    """Counts what is overdue and what comes."""

    def __init__(self) -> None:
        self._overdue = self._arrived = 0
        self._is_silent = self._was_starved = False

    def on_arrived(self, chunks: int) -> None:
        """So many have come."""
        if chunks and self._is_silent:
            self._is_silent, self._overdue, self._arrived = False, 0, 0
        self._arrived += chunks

    def on_overdue(self, chunks: int, *, is_known: bool) -> bool:
        """So many are overdue; whether the rate is too high for anything to come.

        Args:
            chunks: how many.
            is_known: the path has carried this rate. Then one silence is no evidence, but another one behind it is.
        """
        if self._is_silent:
            return False
        self._overdue += chunks
        if self._overdue < STARVED_CHUNKS:
            return False
        is_starved = self._arrived < STARVED_SHARE * self._overdue
        starved_again = is_starved and (self._was_starved or not is_known)
        self._was_starved, self._is_silent = is_starved, is_starved
        self._overdue = self._arrived = 0
        return starved_again
