"""How much of which messages may be missing, as the tasks say that are to get them."""

from __future__ import annotations

from collections import OrderedDict

from fedrdma_fate.wire.frames import MessageKey, Party

MOST_TOLERANCES = 1 << 16
"""Messages at once: sixteen of each party of the largest session. Of one that is forgotten nothing will be missing."""


class Tolerances:
    """Belongs to the event loop's thread; any thread may ask for a `share`."""

    def __init__(self) -> None:
        self._shares: OrderedDict[MessageKey, float] = OrderedDict()

    def add(self, key: MessageKey, share: float) -> None:
        """A task will get this message, and lets so much of what may be missing be so."""
        self._shares[key] = share
        self._shares.move_to_end(key)
        while len(self._shares) > MOST_TOLERANCES:
            self._shares.popitem(last=False)

    def share(self, key: MessageKey) -> float:
        """How much of it may be missing: 0 where nobody has said so."""
        return self._shares.get(key, 0.0)

    def discard(self, key: MessageKey) -> None:
        """It was got."""
        self._shares.pop(key, None)

    def leave(self, session: str, party: Party) -> None:
        """The party's tasks get nothing more of the session."""
        for key in [key for key in self._shares if key.session == session and key.destination == party]:
            del self._shares[key]

    def end(self, session: str) -> None:
        """The session is over."""
        for key in [key for key in self._shares if key.session == session]:
            del self._shares[key]
