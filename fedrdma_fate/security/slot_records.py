"""Records of one attempt under its key, and what opens them in their slot when nobody can write there any more.

See `sealing.py`, which has the keys.
"""

from __future__ import annotations

import ctypes
import hmac
import struct
from typing import NamedTuple, Protocol

from cryptography.exceptions import InvalidTag

from fedrdma_fate.ports import SealBrokenError
from fedrdma_fate.security.aead import make_aead
from fedrdma_fate.security.nonces import nonce_of
from fedrdma_fate.wire.sealed import COUNTER_BYTES, TAG_BYTES, unpack_introduction

COUNTER = struct.Struct("<Q")
"""Before each record, or in a table."""

VOUCHED = 1 << 63
"""Set in the counter of a record whose bytes lie at the receiver as they are, from an earlier attempt, and are not
sent: the tag alone speaks for them. Counters are of 32 bits."""

AS_IT_IS = b"as it is"
"""Authenticated besides, so that no tag of a record that was sent is one of a record that was not."""

_GRANT = struct.Struct("<I")


def is_vouched(apart: bytes) -> bool:
    """Whether counter and tag are of a record that was not sent, for its bytes lie there already."""
    (counter,) = COUNTER.unpack_from(apart)
    return bool(counter & VOUCHED)


class Records:
    """The cipher of one attempt.

    Attributes:
        encrypts: or gives tags alone.
    """

    def __init__(self, cipher: str, key: bytes, introduction: bytes, grant: int, *, encrypts: bool) -> None:
        self._aead = make_aead(cipher, key)
        self._about = introduction + _GRANT.pack(grant)
        self.encrypts = encrypts

    def seal(self, counter: int, place: bytes, data: memoryview, into: memoryview) -> None:
        """Bytes and tag, into exactly as much room as they need.

        What the tag speaks for are the bytes that go out, also where another process changes `data` meanwhile.
        """
        about = self._about + place
        if self.encrypts:
            self._aead.encrypt_into(nonce_of(counter), data, about, into)
            return
        into[: len(data)] = data
        into[len(data) :] = self._tag(counter, about, into[: len(data)])

    def tag_of(self, counter: int, place: bytes, data: memoryview) -> bytes:
        """Of bytes that travel as they are."""
        return self._tag(counter, self._about + place, data)

    def open(self, counter: int, place: bytes, sealed: memoryview, into: memoryview) -> None:
        """The bytes.

        Raises:
            InvalidTag: the tag is wrong; `into` holds zeros: by no digest is anybody told what lay there before.
        """
        about = self._about + place
        if self.encrypts:
            try:
                self._aead.decrypt_into(nonce_of(counter), sealed, about, into)
            except InvalidTag:
                _wipe(into)
                raise
            return
        data, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        if not hmac.compare_digest(self._tag(counter, about, data), tag):
            _wipe(into)
            raise InvalidTag
        into[:] = data

    def check(self, counter: int, place: bytes, data: memoryview, tag: memoryview) -> None:
        """Look at bytes that were not encrypted where they lie.

        Raises:
            InvalidTag: the tag is wrong; the bytes are zeros.
        """
        if not hmac.compare_digest(self.tag_of(counter, place, data), tag):
            _wipe(data)
            raise InvalidTag

    def open_in_place(self, counter: int, place: bytes, room: memoryview) -> None:
        """The bytes, where they lie; behind them, in the same room, is the tag.

        Raises:
            InvalidTag: the tag is wrong; the room holds zeros.
        """
        data = room[:-TAG_BYTES]
        about = self._about + place
        try:
            if self.encrypts:
                self._aead.decrypt_into(nonce_of(counter), room, about, data)
            elif not hmac.compare_digest(self._tag(counter, about, data), room[-TAG_BYTES:]):
                raise InvalidTag
        except InvalidTag:
            _wipe(room)
            raise

    def _tag(self, counter: int, about: bytes, data: memoryview) -> bytes:
        return self._aead.encrypt(nonce_of(counter), about, data)[-TAG_BYTES:]


def _wipe(data: memoryview) -> None:
    if data:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(data)), 0, len(data))


class AttemptOpener:
    """Opens, in place, what one attempt has brought into a slot that nobody can write into any more."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def open_in_place(self, place: bytes, apart: bytes, room: memoryview) -> None:
        """Open one record where it lies; one that its sender vouches for lies there open, and is looked at.

        Args:
            place: what has to be authenticated besides.
            apart: counter and tag, RECORD_OVERHEAD bytes.
            room: the bytes as sealed, and TAG_BYTES more, which hold what they held when it returns.

        Raises:
            SealBrokenError: it is not what the peer has sealed for this place; of the bytes nothing is left.
        """
        (counter,) = COUNTER.unpack_from(apart)
        if counter & VOUCHED:
            self._check(counter ^ VOUCHED, place, apart, room[:-TAG_BYTES])
            return
        behind = bytes(room[-TAG_BYTES:])
        room[-TAG_BYTES:] = apart[COUNTER_BYTES:]
        try:
            self._records.open_in_place(counter, place, room)
        except InvalidTag:
            raise SealBrokenError(f"{len(room) - TAG_BYTES} sealed bytes have a wrong tag") from None
        finally:
            room[-TAG_BYTES:] = behind

    def _check(self, counter: int, place: bytes, apart: bytes, data: memoryview) -> None:
        try:
            self._records.check(counter, place + AS_IT_IS, data, memoryview(apart)[COUNTER_BYTES:])
        except InvalidTag:
            raise SealBrokenError(f"{len(data)} bytes that are to be here already have a wrong tag") from None


class AttemptKey(NamedTuple):
    """Opens what one attempt has brought into the slot of its grant, where the keys of its path are gone.

    Attributes:
        key: of the attempt.
        cipher: `AES` or `CHACHA`.
        encrypts: or gives tags alone.
        introduction: of the attempt.
    """

    key: bytes
    cipher: str
    encrypts: bool
    introduction: bytes

    def of_slot(self, grant: int, introduction: bytes, transfer: int, message: bytes) -> AttemptOpener:
        """See `PathOpener.of_slot`."""
        about = unpack_introduction(introduction)
        if introduction != self.introduction or (about.transfer, about.message) != (transfer, message):
            raise SealBrokenError(f"what came into grant {grant} was sealed for another message")
        return AttemptOpener(Records(self.cipher, self.key, introduction, grant, encrypts=self.encrypts))


class SlotOpener(Protocol):
    """Opens what a data path has brought into the slot of a grant, when nobody can write there any more."""

    def of_slot(self, grant: int, introduction: bytes, transfer: int, message: bytes) -> AttemptOpener:
        """See `PathOpener.of_slot`."""
        ...
