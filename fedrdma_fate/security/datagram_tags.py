"""Datagrams of a data path that nobody else can forge or send again: a counter before each, a keyed tag behind it.

Packets of RoCE are not authenticated, so whoever reaches the network can send a datagram in a peer's name. The tag is
keyed BLAKE2b (RFC 7693, section 2.9): for the few hundred bytes of a report it is as fast as AES-GCM and faster than
HMAC-SHA256 (0.5, 0.8 and 2.3 µs of a core for 60 bytes), and a counter that came twice would not give its key away.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from typing import NamedTuple

DATAGRAM_KEY_BYTES = 32
"""Of a key: twice the tag, so that guessing the tag is always the easier way."""

DATAGRAM_TAG_BYTES = 16
"""Of a tag: one forged datagram in 2¹²⁸ gets through."""

_COUNTER = struct.Struct("<Q")

OVERHEAD_BYTES = _COUNTER.size + DATAGRAM_TAG_BYTES
"""What a sealed datagram has besides its own bytes."""

WINDOW = 1024
"""Counters behind the newest that may still come (RFC 6479 has 1024 or more; RFC 4303 asks for 32 at least): many times
what a queue pair, which keeps the order, can hold. What is older is taken for a replay."""

_SEEN = (1 << WINDOW) - 1
"""A bit for each counter of the window."""

_PURPOSE = b"fedrdma datagram"
"""Keeps these tags apart from whatever else a key might be used for (the personalisation of BLAKE2b, 16 bytes)."""


class DatagramKeys(NamedTuple):
    """The keys of one connection of a data path; each side has the same two, the other way round.

    Attributes:
        send: for what we send.
        receive: for what we take.
    """

    send: bytes
    receive: bytes

    @property
    def reversed(self) -> DatagramKeys:
        """As the other side has them."""
        return DatagramKeys(self.receive, self.send)


def new_datagram_key() -> bytes:
    """A random key, for one direction of one connection."""
    return secrets.token_bytes(DATAGRAM_KEY_BYTES)


class ReplayWindow:
    """Which counters have come, of the newest WINDOW (RFC 4303, section 3.4.3; RFC 6479)."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen = 0

    def is_new(self, counter: int) -> bool:
        """Whether it has not come, as far as is known; what is too old to be known has."""
        behind = self._newest - counter
        return behind < 0 or (behind < WINDOW and not self._seen >> behind & 1)

    def note(self, counter: int) -> None:
        """It has come, with a right tag: before that was seen, it must move nothing."""
        ahead = counter - self._newest
        if ahead > 0:
            # a counter far ahead must not make a number of as many bits
            self._seen = (self._seen << ahead & _SEEN if ahead < WINDOW else 0) | 1
            self._newest = counter
        elif -ahead < WINDOW:
            self._seen |= 1 << -ahead


class DatagramSealer:
    """Seals what is sent under one key."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._counter = 0

    def seal(self, body: bytes) -> bytes:
        """Counter, body, tag. The same body is never sealed the same way twice."""
        self._counter += 1
        counted = _COUNTER.pack(self._counter) + body
        return counted + self._tags.of(counted)


class ForgedDatagramError(Exception):
    """Its tag is wrong: it is not from the peer, or not as the peer sent it."""


class ReplayedDatagramError(Exception):
    """It is from the peer, and has come before, or is too old to know."""


class DatagramOpener:
    """Opens what was sealed under one key, each once."""

    def __init__(self, key: bytes) -> None:
        self._tags = _Tags(key)
        self._window = ReplayWindow()

    def open(self, sealed: bytes) -> bytes:
        """The body.

        Raises:
            ForgedDatagramError: the tag is wrong, or there is none.
            ReplayedDatagramError: it was opened before.
        """
        if len(sealed) < OVERHEAD_BYTES:
            raise ForgedDatagramError
        counted, tag = sealed[:-DATAGRAM_TAG_BYTES], sealed[-DATAGRAM_TAG_BYTES:]
        if not hmac.compare_digest(self._tags.of(counted), tag):
            raise ForgedDatagramError
        (counter,) = _COUNTER.unpack_from(counted)
        if not self._window.is_new(counter):
            raise ReplayedDatagramError
        self._window.note(counter)
        return counted[_COUNTER.size :]


class _Tags:
    """Tags under one key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != DATAGRAM_KEY_BYTES:
            raise ValueError(f"a key for datagrams has {DATAGRAM_KEY_BYTES} bytes, not {len(key)}")
        # copied for each datagram: taking the key in costs more than a short one
        self._begun = hashlib.blake2b(key=key, digest_size=DATAGRAM_TAG_BYTES, person=_PURPOSE)

    def of(self, data: bytes) -> bytes:
        """The tag of these bytes."""
        begun = self._begun.copy()
        begun.update(data)
        return begun.digest()
