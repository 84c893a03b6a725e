"""Messages that waited for a party when it left their session, or came later: should it be back, senders are asked."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator

from fedrdma_fate.gateway.messages.budget import units
from fedrdma_fate.wire.frames import MessageKey, Party

MOST_LATE = 1024
"""Of each site, so that none pushes out those of another; some 300 bytes each, and one with long names counts as
several (`budget.units`). Most parties that leave never come back, and then nobody asks for these."""

PARTY_HAD_LEFT = "its party left the session before it had pulled it, and joined it again"


@dataclasses.dataclass(frozen=True, slots=True)
class LateMessage:
    """One that was dropped, as its sender was told that it is here.

    Attributes:
        key: the message.
        origin: the site that it came from, empty for one of this site.
        transfer: its transfer there.
    """

    key: MessageKey
    origin: str
    transfer: int


@dataclasses.dataclass(slots=True)
class _OfSite:
    messages: OrderedDict[MessageKey, LateMessage] = dataclasses.field(default_factory=OrderedDict)
    units: int = 0


class LateMessages:
    """The last `MOST_LATE` of each site. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        # of sites that are peers, or were when this run's journal was begun
        self._sites: dict[str, _OfSite] = {}

    def __len__(self) -> int:
        return sum(len(site.messages) for site in self._sites.values())

    def __iter__(self) -> Iterator[LateMessage]:
        """All of them, the oldest of each site first."""
        for site in self._sites.values():
            yield from site.messages.values()

    def add(self, late: LateMessage) -> None:
        """It was dropped now; the oldest of its site may be forgotten for it."""
        self.forget(late.origin, late.key)
        site = self._sites.setdefault(late.origin, _OfSite())
        site.messages[late.key] = late
        site.units += units(late.key)
        while site.units > MOST_LATE:
            self.forget(late.origin, next(iter(site.messages)))

    def forget(self, origin: str, key: MessageKey) -> None:
        """Nobody is asked about it, if it is known at all."""
        site = self._sites.get(origin)
        if site is not None and site.messages.pop(key, None) is not None:
            site.units -= units(key)
            if not site.messages:
                del self._sites[origin]

    def take(self, session: str, party: Party) -> list[LateMessage]:
        """Those for a party that joins the session again, the oldest of each site first; they are forgotten here."""
        taken = [late for late in self if (late.key.session, late.key.destination) == (session, party)]
        for late in taken:
            self.forget(late.origin, late.key)
        return taken

    def end(self, session: str) -> None:
        """A session is over: nobody joins it again."""
        for late in [late for late in self if late.key.session == session]:
            self.forget(late.origin, late.key)
