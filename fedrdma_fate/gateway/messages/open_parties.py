"""Which parties of this site are in which session, and who their tasks have said is in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from fedrdma_fate.wire.frames import Party

Named = frozenset[Party] | None
"""Everybody in a session, as tasks know it; None: they do not."""


class OpenParties:
    """Those that have joined and not left. Belongs to the event loop's thread.

    Attributes:
        on_change: called when others are named than before, in all sessions together.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self._named: dict[tuple[str, Party], Named] = {}
        # kept, and not found anew: there may be thousands of sessions
        self._counts = Counter[Party]()
        self._unnamed = 0

    def __contains__(self, place: tuple[str, Party]) -> bool:
        return place in self._named

    def __iter__(self) -> Iterator[tuple[str, Party]]:
        return iter(self._named)

    def named(self, session: str, party: Party, default: Named) -> Named:
        """Who is in the session as its tasks know it; `default` where it has not joined."""
        return self._named.get((session, party), default)

    def items(self) -> Iterator[tuple[tuple[str, Party], Named]]:
        """Each with whom it names."""
        return iter(self._named.items())

    def of(self, session: str) -> dict[Party, Named]:
        """The same of one session."""
        return {party: named for (each, party), named in self._named.items() if each == session}

    @property
    def others(self) -> Named:
        """All that are named in any session; None: some tasks do not know, or there are none."""
        return None if self._unnamed or not self._counts else frozenset(self._counts)

    def add(self, session: str, party: Party, named: Named) -> None:
        """It has joined, or its tasks name more than before."""
        changes = self._take(session, party)
        self._named[session, party] = named
        if named is None:
            self._unnamed += 1
            changes |= self._unnamed == 1
        else:
            changes |= any(other not in self._counts for other in named)
            self._counts.update(named)
        if changes:
            self.on_change()

    def remove(self, session: str, party: Party) -> None:
        """It has left. May be repeated."""
        if self._take(session, party):
            self.on_change()

    def end(self, session: str) -> None:
        """All have left it."""
        changes = [self._take(*place) for place in [place for place in self._named if place[0] == session]]
        if any(changes):
            self.on_change()

    def _take(self, session: str, party: Party) -> bool:
        """Count it no more; whether others are named then."""
        if (session, party) not in self._named:
            return False
        named = self._named.pop((session, party))
        if named is None:
            self._unnamed -= 1
            return not self._unnamed
        self._counts.subtract(named)
        gone = [other for other in named if not self._counts[other]]
        for other in gone:
            del self._counts[other]
        return bool(gone)
