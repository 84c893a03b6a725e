"""Who has left which session, in as little memory as that takes: a gateway that lives for months is full of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fedrdma_fate.wire.frames import Party

MOST_CLOSED = 4096
"""Sessions that a party has left: long enough that no message of theirs is still on its way; some 150 bytes each."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, str, str]).decode


class ClosedParties:
    """The last `MOST_CLOSED` of them, the oldest one first. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        # as bytes: as objects, each would take four times as much. In the order in which they left
        self._places: dict[bytes, None] = {}

    def __contains__(self, place: tuple[str, Party]) -> bool:
        return _place(*place) in self._places

    def __iter__(self) -> Iterator[tuple[str, Party]]:
        for place in self._places:
            session, role, party_id = _decode(place)
            yield session, Party(role, party_id)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, session: str, party: Party) -> None:
        """It has left the session now; the oldest may be forgotten for it."""
        self.remove(session, party)
        self._places[_place(session, party)] = None
        while len(self._places) > MOST_CLOSED:
            del self._places[next(iter(self._places))]

    def remove(self, session: str, party: Party) -> None:
        """It is in the session again, or has never left it."""
        self._places.pop(_place(session, party), None)

    def forget(self, session: str) -> None:
        """All parties of a session."""
        # of an array of three, the session is the first
        start = b"\x93" + _encode(session)
        for place in [place for place in self._places if place.startswith(start)]:
            del self._places[place]


def _place(session: str, party: Party) -> bytes:
    return _encode((session, party.role, party.party_id))
