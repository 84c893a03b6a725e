"""Messages that waited for a party when it left their session, or came later: should it be back, senders are asked."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

from fedrdma_fate.wire.frames import MessageKey, Party

MOST_LATE = 1024
"""Of all sessions; some 300 bytes each. Most parties that leave never come back, and then nobody asks for these."""

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


class LateMessages:
    """The last `MOST_LATE`. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._late: OrderedDict[MessageKey, LateMessage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._late)

    def add(self, late: LateMessage) -> None:
        """It was dropped now; the oldest may be forgotten for it."""
        self._late.pop(late.key, None)
        self._late[late.key] = late
        while len(self._late) > MOST_LATE:
            self._late.popitem(last=False)

    def take(self, session: str, party: Party) -> list[LateMessage]:
        """Those for a party that joins the session again, the oldest one first; they are forgotten here."""
        return [
            self._late.pop(key)
            for key in [key for key in self._late if (key.session, key.destination) == (session, party)]
        ]

    def end(self, session: str) -> None:
        """A session is over: nobody joins it again."""
        for key in [key for key in self._late if key.session == session]:
            del self._late[key]
