"""Pieces of writes as they travel over streams that are sealed: an introduction, then a record for each block.

Behind the introduction of a piece comes a record of nothing, which authenticates its head: before that, not a byte of
the piece is taken. A fenced write, which is one record and taken whole, needs none.

Blocks are those that digests are made of (`core/digest.py`): small enough to be sealed and sent, or received and
opened, while they lie in a core's cache. Each end passes over the bytes once, and a stream has room for one block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.ports import Sealer
from fedrdma_fate.transport.exposure import ProtocolViolation
from fedrdma_fate.transport.stream_frames import Head, Op
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD

LARGEST_RECORD = BLOCK_BYTES + RECORD_OVERHEAD
"""Room for a block as sealed."""

# op, immediate, sequence, offset in the slot, length of the write, where the record starts in it, length of the record
_PLACE = struct.Struct("<BIQQQQQ")

# the same of a whole piece, but longer, so that neither stands in for the other
_PIECE = struct.Struct("<BIQQQQQ4s")
_HEAD_MARK = b"head"


def place_of(head: Head, offset: int, at: int, length: int) -> bytes:
    """What is authenticated with a record: of which write it is, where that goes, and which part of it this is.

    The number of the write counts on each connection from 0 and is taken once, so no write can come again, be left out
    before a fenced one, or stand in for another.

    Args:
        head: of the write.
        offset: where the write starts in the granted slot.
        at: where the record starts in the write.
        length: its bytes.
    """
    return _PLACE.pack(head.op, head.immediate, head.sequence, offset, head.length, at, length)


def place_of_head(head: Head, offset: int) -> bytes:
    """What is authenticated with the head of a piece: the same of all of the piece.

    Args:
        head: of the piece.
        offset: where the write starts in the granted slot.
    """
    numbers = head.op, head.immediate, head.sequence, offset, head.length, head.piece_at, head.piece_length
    return _PIECE.pack(*numbers, _HEAD_MARK)


def introduction_bytes(head: Head) -> int:
    """Bytes between the head of a piece and its first record: the introduction, and what authenticates the head."""
    return INTRODUCTION_BYTES + (0 if head.op == Op.FENCED else RECORD_OVERHEAD)


def records_of(head: Head) -> Iterator[tuple[int, int]]:
    """Start in the write, and length, of each record of a piece; one empty record for an empty piece."""
    for start in range(head.piece_at, max(head.piece_at + head.piece_length, head.piece_at + 1), BLOCK_BYTES):
        yield start, min(BLOCK_BYTES, head.piece_at + head.piece_length - start)


def sealed_length(head: Head) -> int:
    """Bytes that follow the head of a piece when it is sealed."""
    records = max(1, -(-head.piece_length // BLOCK_BYTES))
    return introduction_bytes(head) + head.piece_length + records * RECORD_OVERHEAD


def require_whole_blocks(head: Head) -> None:
    """Do nothing where a piece is made of blocks of its write.

    Raises:
        ProtocolViolation: it is not, so its records are none that its sender could have sealed.
    """
    end = head.piece_at + head.piece_length
    if head.piece_at % BLOCK_BYTES or (end % BLOCK_BYTES and end != head.length):
        raise ProtocolViolation(f"a sealed piece of {head.piece_length} bytes at {head.piece_at} is not made of blocks")


class SealedPiece:
    """A piece, or a whole fenced write, that is sealed record by record as it goes out."""

    def __init__(self, sealer: Sealer, head: Head, offset: int, data: memoryview) -> None:
        """
        Args:
            sealer: seals what goes into the grant.
            head: of the piece.
            offset: where the write starts in the granted slot.
            data: the bytes of the piece; read once each, when their record is sealed, or where they travel as they are
                once more as they go.
        """
        self._sealer = sealer
        self._head = head
        self._offset = offset
        self._data = data
        self._records = records_of(head)

    def introduce(self) -> bytes:
        """What goes between the head and the first record."""
        introduction = self._sealer.introduction
        if self._head.op == Op.FENCED:
            return introduction
        record = bytearray(RECORD_OVERHEAD)
        self._sealer.seal(place_of_head(self._head, self._offset), memoryview(b""), memoryview(record))
        return introduction + record

    def next_record(self, room: memoryview) -> list[memoryview] | None:
        """What to send for the next record, one behind the other; None after the last.

        It lies at the start of the room, which has LARGEST_RECORD bytes, or, where the bytes travel as they are, around
        these where they are.
        """
        record = next(self._records, None)
        if record is None:
            return None
        place, data = self._place_and_data(*record)
        apart = self._sealer.seal_in_place(place, data)
        if apart is None:
            return [self._seal(place, data, room)]
        before, behind = apart
        return [part for part in (memoryview(before), data, memoryview(behind)) if part]

    def _place_and_data(self, at: int, length: int) -> tuple[bytes, memoryview]:
        start = at - self._head.piece_at
        return place_of(self._head, self._offset, at, length), self._data[start : start + length]

    def _seal(self, place: bytes, data: memoryview, room: memoryview) -> memoryview:
        into = room[: len(data) + RECORD_OVERHEAD]
        self._sealer.seal(place, data, into)
        return into

    def seal_all(self) -> bytes:
        """All records, one behind the other."""
        sealed = bytearray(sealed_length(self._head) - introduction_bytes(self._head))
        rest = memoryview(sealed)
        for record in self._records:
            rest = rest[len(self._seal(*self._place_and_data(*record), rest)) :]
        return bytes(sealed)
