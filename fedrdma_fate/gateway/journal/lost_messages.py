"""Messages that were confirmed and are gone: both ends are told of each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from fedrdma_fate.gateway.journal_records import Lost

REMEMBERED_LOST = 32768
"""Of each site: as many as wait of it by default (`limits.messages`), some 600 bytes each; of more, the log tells."""


class LostMessages:
    """The last `REMEMBERED_LOST` of each site. Belongs to one thread."""

    def __init__(self) -> None:
        # of sites that were peers when they were lost
        self._sites: dict[str, OrderedDict[int, Lost]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sites.values()))

    def values(self) -> Iterator[Lost]:
        """All of them, the oldest of each site first."""
        for lost in self._sites.values():
            yield from lost.values()

    def add(self, lost: Lost) -> None:
        """One more; the oldest of its site may be forgotten for it."""
        of_site = self._sites.setdefault(lost.origin, OrderedDict())
        of_site[lost.transfer] = lost
        while len(of_site) > REMEMBERED_LOST:
            of_site.popitem(last=False)

    def forget(self, is_over: Callable[[Lost], bool]) -> None:
        """Nobody is told of these any more."""
        for lost in [lost for lost in self.values() if is_over(lost)]:
            del self._sites[lost.origin][lost.transfer]
