"""Short messages between the two ends of a link: hello, last words, and the keepalive that shows a dead peer."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import mmap

from fedrdma_fate.transport.verbs.interface import (
    Piece,
    ProtectionDomain,
    QueuePair,
    Target,
    VerbsError,
    WorkCompletion,
)
from fedrdma_fate.transport.verbs.regions import registration_failed

LINK_MESSAGE_BYTES = 512
"""Of a notice: its kind, and a text for people, which is cut to fit."""
RECEIVES = 16
"""Posted for the notices of the peer: twice as many as it may have under way."""
SENDS = 8
"""Notices that may be under way; beyond, nothing is said."""
WORK_REQUESTS = SENDS + 2
"""Most entries of the send queue: messages, a keepalive, and one to spare."""

_FIRST_SEND = RECEIVES
_KEEPALIVE = RECEIVES + SENDS
_NOWHERE = Target(0, 0)


class LinkMessageKind(enum.IntEnum):
    """What a message says; its first byte."""

    HELLO = 1
    """The link test; the token of the side that it is sent to follows."""
    CLOSED = 2
    """The sender closes its end; text follows."""
    VIOLATION = 3
    """The receiver of the message broke the protocol; text follows."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkMessage:
    """A message of the peer."""

    kind: int
    body: bytes

    @property
    def text(self) -> str:
        """The body for people."""
        return self.body.decode(errors="replace")


class Scratch:
    """Registered memory of one link, for what is not in any region: messages, and bytes that are written inline."""

    def __init__(self, domain: ProtectionDomain, length: int) -> None:
        """Map and register it.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it cannot be registered.
        """
        self.length = length
        self._map = mmap.mmap(-1, length)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        try:
            self._memory = domain.register(self.address, length)
        except VerbsError as error:
            raise registration_failed(length, error) from error

    def piece(self, offset: int, length: int) -> Piece:
        """A part of it, for a work request."""
        return Piece(self.address + offset, length, self._memory.local_key)

    def put(self, offset: int, data: bytes) -> Piece:
        """Copy data to a place."""
        self._map[offset : offset + len(data)] = data
        return self.piece(offset, len(data))

    def get(self, offset: int, length: int) -> bytes:
        """Copy data from a place."""
        return self._map[offset : offset + length]

    def close(self) -> None:
        """Deregister it; may be repeated."""
        self._memory.close()


class LinkMessageChannel:
    """Notices over a queue pair of their own: they neither wait for large writes nor break when those are refused."""

    BYTES = (RECEIVES + SENDS) * LINK_MESSAGE_BYTES
    """Of scratch memory, from its start."""

    def __init__(self, pair: QueuePair, scratch: Scratch) -> None:
        self.pair = pair
        self._scratch = scratch
        self._free = list(range(_FIRST_SEND, _FIRST_SEND + SENDS))
        self._alive_asked = False

    @property
    def quiet(self) -> bool:
        """Whether the peer has acknowledged every message."""
        return len(self._free) == SENDS

    def post_receives(self) -> None:
        """Make ready to hear the peer.

        Raises:
            VerbsError: the device does not take it.
        """
        for place in range(RECEIVES):
            self._receive(place)

    def send(self, kind: LinkMessageKind, body: bytes) -> None:
        """Say something, cut to what fits; nothing is said when too much is unheard.

        Raises:
            VerbsError: the device does not take it.
        """
        if self._free:
            place = self._free.pop()
            message = bytes([kind]) + body[: LINK_MESSAGE_BYTES - 1]
            self.pair.send(place, self._scratch.put(place * LINK_MESSAGE_BYTES, message), signalled=True)

    def ask_for_life(self) -> None:
        """A write of no bytes: it costs the peer nothing, and fails when the peer is dead.

        Raises:
            VerbsError: the device does not take it.
        """
        if not self._alive_asked:
            self._alive_asked = True
            self.pair.write(_KEEPALIVE, self._scratch.piece(0, 0), _NOWHERE, signalled=True)

    def on_completion(self, done: WorkCompletion) -> LinkMessage | None:
        """Take in a successful completion of this queue pair; the message, if it brought one.

        Raises:
            VerbsError: the device takes no new receive.
        """
        place = done.work_request
        if place == _KEEPALIVE:
            self._alive_asked = False
        elif place >= _FIRST_SEND:
            self._free.append(place)
        else:
            raw = self._scratch.get(place * LINK_MESSAGE_BYTES, min(done.length, LINK_MESSAGE_BYTES))
            self._receive(place)
            return LinkMessage(raw[0], raw[1:]) if raw else None
        return None

    def _receive(self, place: int) -> None:
        self.pair.receive(place, self._scratch.piece(place * LINK_MESSAGE_BYTES, LINK_MESSAGE_BYTES))


def try_to_send(channel: LinkMessageChannel, kind: LinkMessageKind, text: str) -> None:
    """Say something on a link that may be broken."""
    try:
        channel.send(kind, text.encode())
    except VerbsError:
        return
