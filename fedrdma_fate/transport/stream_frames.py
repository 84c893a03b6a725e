"""Frames of the `tcp` and `grpc` data paths: a fixed head, and behind it the bytes it speaks of."""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from fedrdma_fate.transport.exposure import ProtocolViolation

# op, immediate, sequence, key, address, length, piece_at, piece_length
_HEAD = struct.Struct("<B3xIQQQQQQ")
HEAD_BYTES = _HEAD.size

_ACK_TAG = struct.Struct("<QQ")

INLINE_BYTES = 64 * 1024
"""Most bytes that a fenced write may carry."""

REASON_BYTES = 1024
"""Most bytes of the reason in a VIOLATION frame."""

SEQUENCE_WINDOW = 4096
"""A write is not begun before all that are so many older are acknowledged: it bounds the receiver's bookkeeping."""


class Op(enum.IntEnum):
    """What a frame says."""

    WRITE = 1
    """A piece of a write."""
    FENCED = 2
    """A whole small write with immediate; it lands when every write of a lower sequence number has."""
    ACK = 3
    """The write of that sequence number is whole and in place; on a sealed stream `Head.tag` says so, too."""
    VIOLATION = 4
    """Last words before the link is dropped: what the other side did wrong."""
    CHUNK = 5
    """A piece of a write with immediate that waits for no other."""


class Head(NamedTuple):
    """Head of a frame.

    Attributes:
        op: what it says.
        immediate: FENCED and CHUNK: the immediate value.
        sequence: number of the write in its direction, from 0.
        key: remote key of the exposure it falls into.
        address: where the whole write starts.
        length: bytes of the whole write.
        piece_at: where this piece starts in the write.
        piece_length: bytes that follow this head.
    """

    op: int
    immediate: int = 0
    sequence: int = 0
    key: int = 0
    address: int = 0
    length: int = 0
    piece_at: int = 0
    piece_length: int = 0

    def pack(self) -> bytes:
        """The head as HEAD_BYTES bytes."""
        return _HEAD.pack(*self)

    @property
    def tag(self) -> bytes:
        """ACK of a sealed stream: what authenticates it, where other heads have key and address."""
        return _ACK_TAG.pack(self.key, self.address)


def unpack_head(raw: bytes | bytearray | memoryview) -> Head:
    """Read HEAD_BYTES bytes and check what holds for every peer that keeps to the rules.

    Raises:
        ProtocolViolation: an unknown op, or lengths that cannot be.
    """
    head = Head._make(_HEAD.unpack(raw))
    if not _consistent(head):
        raise ProtocolViolation(
            f"a frame of kind {head.op} with {head.piece_length} bytes at {head.piece_at} of {head.length}"
        )
    return head


def _consistent(head: Head) -> bool:
    match head.op:
        case Op.WRITE | Op.CHUNK:
            # a payload has no empty chunk; an empty write is one empty piece
            may_be_empty = head.op == Op.WRITE and head.length == 0
            return head.piece_at + head.piece_length <= head.length and (head.piece_length > 0 or may_be_empty)
        case Op.FENCED:
            return head.piece_at == 0 and head.piece_length == head.length <= INLINE_BYTES
        case Op.ACK:
            return head.piece_length == 0
        case Op.VIOLATION:
            return head.piece_length <= REASON_BYTES
    return False


def ack_head(sequence: int, tag: bytes = bytes(_ACK_TAG.size)) -> bytes:
    """The frame that acknowledges a write; with the tag of 16 bytes that a sealed stream asks for."""
    key, address = _ACK_TAG.unpack(tag)
    return Head(Op.ACK, sequence=sequence, key=key, address=address).pack()


def violation_frame(reason: str) -> bytes:
    """Last words: what the peer did wrong."""
    text = reason.encode()[:REASON_BYTES]
    return Head(Op.VIOLATION, length=len(text), piece_length=len(text)).pack() + text
