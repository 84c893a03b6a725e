"""Seals and opens records of chunks: authenticated encryption, or a tag alone, under a key for each attempt.

A record is a counter, the bytes as sealed, and a tag. With them are authenticated, as associated data: transfer,
attempt, the digest of the offer (message key, kind, length, mode, cut), the grant, and the place that the transport
names: which write, where in the slot, how long. Each record opens on its own, in any order (UniFL, section 3.3, which
asks the same of its cipher).

`integrity` leaves the bytes readable: the payload is the associated data, and what is encrypted is the place (GMAC, SP
800-38D, section 3). On a core of the machine this was decided on it ran at twice the rate of the encryption, and at
nine times that of keyed BLAKE2b.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from typing import Literal, NamedTuple

from cryptography.exceptions import InvalidTag

from fedrdma_fate.ports import SealBrokenError, WrongTagError
from fedrdma_fate.security.key_schedule import DirectionKeys, PathKeys, attempt_key
from fedrdma_fate.security.nonces import NonceCounter
from fedrdma_fate.security.slot_records import AS_IT_IS, COUNTER, VOUCHED, AttemptKey, AttemptOpener, Records
from fedrdma_fate.wire.sealed import (
    COUNTER_BYTES,
    INTRODUCTION_BYTES,
    RECORD_OVERHEAD,
    TAG_BYTES,
    Introduction,
    unpack_introduction,
)

Seal = Literal["on", "integrity", "off"]
"""What is done to chunks: encrypted and authenticated, authenticated alone, or neither."""

SealFault = Literal["forged", "other-transfer", "replayed"]
"""Why a record was refused: its tag is wrong; it is not of the transfer of this grant; it came before."""

_ATTEMPTS = 1 << 32
"""An introduction counts them with 32 bits."""


class AcknowledgementTags:
    """Tags of what the receiver says of the writes of one direction of one connection: keyed BLAKE2b (RFC 7693).

    Each write is acknowledged once, and no two of a connection have one number, so nothing else has to go in.
    """

    def __init__(self, key: bytes) -> None:
        """
        Args:
            key: of this direction, for nothing else.
        """
        self._begun = hashlib.blake2b(key=key, digest_size=TAG_BYTES, person=b"fedrdma ack")

    def of(self, write: int) -> bytes:
        """The tag of the write of this number."""
        begun = self._begun.copy()
        begun.update(COUNTER.pack(write))
        return begun.digest()


class AttemptSealer:
    """Seals what goes into one grant. See `ports.Sealer`.

    Attributes:
        introduction: what the other side needs besides the keys.
    """

    def __init__(
        self, records: Records, introduction: bytes, nonces: NonceCounter, acknowledgements: AcknowledgementTags
    ) -> None:
        self.introduction = introduction
        self._records = records
        self._nonces = nonces
        self._acknowledgements = acknowledgements

    def is_acknowledged(self, write: int, tag: bytes) -> bool:
        """See `ports.Sealer`."""
        return hmac.compare_digest(self._acknowledgements.of(write), tag)

    def seal(self, place: bytes, data: memoryview, into: memoryview) -> None:
        """Seal one record; each call has a nonce of its own, also for the same bytes.

        Args:
            place: what is authenticated besides.
            data: the bytes.
            into: room for exactly RECORD_OVERHEAD bytes more; not that of `data`.

        Raises:
            NonceError: the key has been used up.
        """
        counter = self._nonces.take()
        COUNTER.pack_into(into, 0, counter)
        self._records.seal(counter, place, data, into[COUNTER_BYTES:])

    def seal_in_place(self, place: bytes, data: memoryview) -> tuple[bytes, bytes] | None:
        """See `ports.Sealer`.

        Args:
            place: what is authenticated besides.
            data: the bytes.

        Raises:
            NonceError: the key has been used up.
        """
        if self._records.encrypts:
            return None
        counter = self._nonces.take()
        return COUNTER.pack(counter), self._records.tag_of(counter, place, data)

    def seal_apart(self, place: bytes, data: memoryview, room: memoryview) -> bytes:
        """Seal one record whose counter and tag do not travel beside its bytes; each call has a nonce of its own.

        Args:
            place: what is authenticated besides.
            data: the bytes.
            room: for exactly TAG_BYTES bytes more; not that of `data`. Holds the bytes as sealed, and then the tag.

        Returns:
            Counter and tag, RECORD_OVERHEAD bytes.

        Raises:
            NonceError: the key has been used up.
        """
        counter = self._nonces.take()
        self._records.seal(counter, place, data, room)
        return COUNTER.pack(counter) + bytes(room[-TAG_BYTES:])

    def vouch(self, place: bytes, data: memoryview) -> bytes:
        """Speak for bytes that are not sent, for the receiver has them, from an earlier attempt.

        Args:
            place: what is authenticated besides.
            data: the bytes.

        Returns:
            Counter and tag, RECORD_OVERHEAD bytes, as `seal_apart` does; whoever opens the record can tell.

        Raises:
            NonceError: the key has been used up.
        """
        counter = self._nonces.take()
        return COUNTER.pack(counter | VOUCHED) + self._records.tag_of(counter, place + AS_IT_IS, data)


class PathSealer:
    """Seals what goes one way over one connection of a data path."""

    def __init__(self, keys: DirectionKeys, cipher: str, seal: Seal) -> None:
        """
        Args:
            keys: of this direction.
            cipher: `AES` or `CHACHA`.
            seal: `on` or `integrity`.
        """
        self._chunks = keys.chunks
        self._cipher = cipher
        self._encrypts = seal == "on"
        self._acknowledgements = AcknowledgementTags(keys.acknowledgements)
        self._attempts = NonceCounter(_ATTEMPTS - 1)

    def begin(self, transfer: int, grant: int, message: bytes) -> AttemptSealer:
        """Seals the next attempt of a transfer. Attempts are counted over all transfers, so no key comes twice.

        Args:
            transfer: its id.
            grant: where it is written.
            message: SHA-256 of its offer.

        Raises:
            NonceError: there were as many as can be counted.
        """
        attempt = self._attempts.take()
        introduction = Introduction(transfer, attempt, message).pack()
        key = attempt_key(self._chunks, transfer, attempt)
        records = Records(self._cipher, key, introduction, grant, encrypts=self._encrypts)
        return AttemptSealer(records, introduction, NonceCounter(), self._acknowledgements)


class PathOpener:
    """Opens what comes one way over one connection of a data path. See `ports.Opener`.

    What comes is counted by the transport, which takes each part of each write once; so nothing is kept of it here.

    Attributes:
        wiped: grants in which a place was wiped, as its record was forged. Nobody vouches for where a forged one goes,
            so what had landed there before may be gone.
    """

    def __init__(self, keys: DirectionKeys, cipher: str, seal: Seal) -> None:
        """
        Args:
            keys: of this direction.
            cipher: `AES` or `CHACHA`.
            seal: `on` or `integrity`.
        """
        self.wiped: set[int] = set()
        self._chunks = keys.chunks
        self._cipher = cipher
        self._encrypts = seal == "on"
        self._grants: dict[int, tuple[bytes, Records]] = {}
        self._resumed: set[int] = set()
        self._acknowledgements = AcknowledgementTags(keys.acknowledgements)
        self._refused: Counter[SealFault] = Counter()

    def lands_in_place(self, grant: int) -> bool:
        """See `ports.Opener`. Where something may lie that counts as arrived, it is not written over unseen: who cuts
        the connection in the middle of a record decides what is there, and no tag has been looked at."""
        return not self._encrypts and grant not in self._resumed

    def note_resumed(self, grant: int) -> None:
        """Something has come into this grant over an earlier connection."""
        self._resumed.add(grant)

    def open(self, grant: int, introduction: bytes, place: bytes, sealed: memoryview, into: memoryview) -> None:
        """Open one record.

        Args:
            grant: where it is written; one that is exposed, so that nobody fills memory with others.
            introduction: what came with it.
            place: what has to be authenticated besides.
            sealed: the record.
            into: room for exactly its bytes.

        Raises:
            SealBrokenError: it is not what the peer has sealed for this grant and place; `into` holds nothing of it.
        """
        if len(introduction) != INTRODUCTION_BYTES or len(sealed) != len(into) + RECORD_OVERHEAD:
            raise self._refuse("forged", "a sealed record of the wrong length")
        try:
            self._open(grant, introduction, place, sealed, into)
        except InvalidTag:
            # where it was to go there are zeros now
            self.wiped.add(grant)
            raise self._refuse_forged(grant, len(into)) from None

    def open_apart(self, grant: int, introduction: bytes, place: bytes, sealed: memoryview) -> bytes:
        """Open one record of few bytes, of which nobody vouches yet for where they go.

        Args:
            grant: where they belong; one that is exposed.
            introduction: what came with it.
            place: what has to be authenticated besides.
            sealed: the record.

        Raises:
            SealBrokenError: it is not what the peer has sealed for this grant and place.
        """
        length = len(sealed) - RECORD_OVERHEAD
        if len(introduction) != INTRODUCTION_BYTES or length < 0:
            raise self._refuse("forged", "a sealed record of the wrong length")
        opened = bytearray(length)
        try:
            self._open(grant, introduction, place, sealed, memoryview(opened))
        except InvalidTag:
            raise self._refuse_forged(grant, length) from None
        return bytes(opened)

    def check(self, grant: int, introduction: bytes, place: bytes, apart: memoryview, data: memoryview) -> None:
        """Look at one record that lies where it belongs; see `lands_in_place`.

        Args:
            grant: where it is written; one that is exposed.
            introduction: what came with it.
            place: what has to be authenticated besides.
            apart: counter and tag, RECORD_OVERHEAD bytes.
            data: the bytes.

        Raises:
            SealBrokenError: it is not what the peer has sealed for this grant and place; the bytes were wiped.
        """
        (counter,) = COUNTER.unpack_from(apart)
        records = self._records_of(grant, introduction)
        try:
            records.check(counter, place, data, apart[COUNTER_BYTES:])
        except InvalidTag:
            self.wiped.add(grant)
            raise self._refuse_forged(grant, len(data)) from None
        self._grants.setdefault(grant, (introduction, records))

    def of_slot(self, grant: int, introduction: bytes, transfer: int, message: bytes) -> AttemptOpener:
        """What opens the records in the slot of a grant, after it was withdrawn.

        Args:
            grant: its id.
            introduction: as the table in the slot has it.
            transfer: that was offered.
            message: SHA-256 of its offer.

        Raises:
            SealBrokenError: it was sealed for another transfer, or for another message.
        """
        about = unpack_introduction(introduction)
        if (about.transfer, about.message) != (transfer, message):
            raise self._refuse("other-transfer", f"what came into grant {grant} was sealed for another message")
        return AttemptOpener(self._records(introduction, grant))

    def key_of(self, introduction: bytes) -> AttemptKey:
        """What opens the records of one attempt, and nothing else."""
        transfer, attempt, _ = unpack_introduction(introduction)
        key = attempt_key(self._chunks, transfer, attempt)
        return AttemptKey(key, self._cipher, self._encrypts, introduction)

    def is_of(self, grant: int, transfer: int, message: bytes) -> bool:
        """Whether what was opened in a grant, if anything, is all of this transfer and offer; counted where not."""
        known = self._grants.get(grant)
        if known is None:
            return True
        introduction = unpack_introduction(known[0])
        if (introduction.transfer, introduction.message) == (transfer, message):
            return True
        self._refused["other-transfer"] += 1
        return False

    def acknowledgement(self, write: int) -> bytes:
        """See `ports.Opener`."""
        return self._acknowledgements.of(write)

    def note_replay(self) -> None:
        """What came before came again, and was refused."""
        self._refused["replayed"] += 1

    def forget(self, grant: int) -> None:
        """The grant is over."""
        self._grants.pop(grant, None)
        self.wiped.discard(grant)
        self._resumed.discard(grant)

    def take_refused(self) -> Counter[SealFault]:
        """How many records were refused since the last call, by reason."""
        refused, self._refused = self._refused, Counter()
        return refused

    def _open(self, grant: int, introduction: bytes, place: bytes, sealed: memoryview, into: memoryview) -> None:
        (counter,) = COUNTER.unpack_from(sealed)
        records = self._records_of(grant, introduction)
        records.open(counter, place, sealed[COUNTER_BYTES:], into)
        self._grants.setdefault(grant, (introduction, records))

    def _records_of(self, grant: int, introduction: bytes) -> Records:
        known = self._grants.get(grant)
        if known is None:
            return self._records(introduction, grant)
        if known[0] != introduction:
            raise self._refuse("other-transfer", f"grant {grant} has another transfer, or another attempt of it")
        return known[1]

    def _refuse_forged(self, grant: int, length: int) -> SealBrokenError:
        kind = SealBrokenError if self._encrypts else WrongTagError
        return self._refuse("forged", f"{length} sealed bytes for grant {grant} have a wrong tag", kind)

    def _records(self, introduction: bytes, grant: int) -> Records:
        transfer, attempt, _ = unpack_introduction(introduction)
        key = attempt_key(self._chunks, transfer, attempt)
        return Records(self._cipher, key, introduction, grant, encrypts=self._encrypts)

    def _refuse(self, fault: SealFault, reason: str, kind: type[SealBrokenError] = SealBrokenError) -> SealBrokenError:
        self._refused[fault] += 1
        return kind(reason)


class PathSealing(NamedTuple):
    """Both ends of what goes over one connection of a data path, at one side."""

    sealer: PathSealer
    opener: PathOpener

    @classmethod
    def of_keys(cls, keys: PathKeys, cipher: str, seal: Seal) -> PathSealing:
        """Those under these keys."""
        return cls(PathSealer(keys.send, cipher, seal), PathOpener(keys.receive, cipher, seal))


def digest_of_offer(offer: bytes) -> bytes:
    """What stands for a message in its introductions: SHA-256 of its offer, as a frame."""
    return hashlib.sha256(offer).digest()
