"""Our writes: cut into pieces, which the streams of a link take in turns, and kept in mind until acknowledged."""

from __future__ import annotations

import dataclasses
from collections import deque

from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.ports import RemoteSlot, Sealer, Slot
from fedrdma_fate.transport.exposure import ProtocolViolation, check_target
from fedrdma_fate.transport.sealed_pieces import SealedPiece
from fedrdma_fate.transport.stream_frames import HEAD_BYTES, INLINE_BYTES, SEQUENCE_WINDOW, Head, Op

LARGEST_PIECE = 2 * 1024 * 1024
"""Writes are not cut coarser: an ACK for the other direction waits behind at most one piece."""

LARGEST_LOCAL_PIECE = 8 * 1024 * 1024
"""Between two gateways of one host that takes no time, and each piece wakes the peer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """What a stream sends next.

    Attributes:
        head: goes first.
        source: its bytes go behind it, as they are.
        sealed: or these do.
        sequence: of the write that these are of; to be given to `sent`.
    """

    head: bytes
    source: Slot | None = None
    sealed: SealedPiece | None = None
    sequence: int | None = None


@dataclasses.dataclass(slots=True)
class _Posted:
    head: Head
    offset: int
    sealer: Sealer | None
    source: Slot | None
    data: bytes = b""
    cut: int = 0


class Outbound:
    """The writes posted on a link, in order, and those the peer has not acknowledged; shared by all its streams."""

    def __init__(self, streams: int, largest_piece: int = LARGEST_PIECE) -> None:
        self._streams = streams
        self._largest_piece = largest_piece
        self._posted: deque[_Posted] = deque()
        self._unacknowledged: dict[int, tuple[int, Sealer | None]] = {}
        self._leaving: dict[int, int] = {}
        self._next_sequence = 0
        self._acks = bytearray()

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, offset: int) -> None:
        """Queue a write of the source.

        Raises:
            TransferError: GRANT_VIOLATION when it would not lie inside the target.
        """
        check_target(target, offset, source.length)
        head = self._head(Op.WRITE, work_request, target, offset, source.length)
        self._posted.append(_Posted(head, offset, target.sealer, source))

    def post_chunk(self, work_request: int, source: Slot, target: RemoteSlot, offset: int, immediate: int) -> None:
        """Queue a write of the source, with immediate.

        Raises:
            TransferError: GRANT_VIOLATION when it would not lie inside the target.
        """
        check_target(target, offset, source.length)
        head = self._head(Op.CHUNK, work_request, target, offset, source.length)
        self._posted.append(_Posted(head._replace(immediate=immediate), offset, target.sealer, source))

    def post_bytes(self, work_request: int, data: bytes, target: RemoteSlot, offset: int, immediate: int) -> None:
        """Queue a fenced write of a few bytes.

        Raises:
            TransferError: GRANT_VIOLATION when it would not lie inside the target.
            ValueError: more than INLINE_BYTES bytes.
        """
        check_target(target, offset, len(data))
        if len(data) > INLINE_BYTES:
            raise ValueError(f"{len(data)} bytes do not go inline, {INLINE_BYTES} do")
        head = self._head(Op.FENCED, work_request, target, offset, len(data))
        head = head._replace(immediate=immediate, piece_length=len(data))
        self._posted.append(_Posted(head, offset, target.sealer, None, data))

    def acknowledged(self, ack: Head) -> int:
        """The peer has the write; its work request.

        Raises:
            ProtocolViolation: it was never posted, has not left yet, or is acknowledged already; or it is sealed, and
                somebody else says so.
        """
        sequence = ack.sequence
        work_request, sealer = self._unacknowledged.pop(sequence, (None, None))
        waits = self._posted and sequence >= self._posted[0].head.sequence
        # what still leaves is read, and its owner must not get it back
        if work_request is None or waits or sequence in self._leaving:
            raise ProtocolViolation(f"an ACK for write {sequence}, which is not under way")
        if sealer is not None and not sealer.is_acknowledged(sequence, ack.tag):
            raise ProtocolViolation(f"a forged ACK for write {sequence}")
        return work_request

    def acknowledge(self, ack: bytes) -> None:
        """Tell the peer, by this frame, that its write is whole.

        Raises:
            ProtocolViolation: the peer has more writes under way than it may, and does not read their ACKs.
        """
        if len(self._acks) >= SEQUENCE_WINDOW * HEAD_BYTES:
            raise ProtocolViolation(f"{SEQUENCE_WINDOW} ACKs were not read")
        self._acks += ack

    @property
    def unacknowledged(self) -> bool:
        """Whether the peer has not acknowledged everything yet."""
        return bool(self._unacknowledged)

    @property
    def waiting(self) -> bool:
        """Whether a stream that has nothing to do would find something here."""
        return bool(self._acks) or (bool(self._posted) and self._window_open())

    def take(self) -> Piece | None:
        """The next thing to send: ACKs before everything else, then pieces in the order of posting."""
        acks = bytes(self._acks)
        self._acks.clear()
        if not self._posted or not self._window_open():
            return Piece(acks) if acks else None
        posted = self._posted[0]
        if posted.source is None:
            self._posted.popleft()
            return Piece(acks + posted.head.pack() + _behind_head(posted))
        return self._cut(acks, posted, posted.source)

    def sent(self, piece: Piece) -> None:
        """All of a piece has left: nothing reads its source any more."""
        if piece.sequence is None:
            return
        left = self._leaving.pop(piece.sequence) - 1
        if left:
            self._leaving[piece.sequence] = left

    def _cut(self, acks: bytes, posted: _Posted, source: Slot) -> Piece:
        fair_share = -(-source.length // self._streams)
        # whole blocks, so that the receiver can digest each as it comes
        whole_blocks = -(-fair_share // BLOCK_BYTES) * BLOCK_BYTES
        length = min(whole_blocks, self._largest_piece, source.length - posted.cut)
        head = posted.head._replace(piece_at=posted.cut, piece_length=length)
        part = source.part(posted.cut, length)
        sequence = head.sequence
        self._leaving[sequence] = self._leaving.get(sequence, 0) + 1
        if posted.sealer is None:
            piece = Piece(acks + head.pack(), part, sequence=sequence)
        else:
            sealed = SealedPiece(posted.sealer, head, posted.offset, part.view)
            piece = Piece(acks + head.pack() + sealed.introduce(), sealed=sealed, sequence=sequence)
        posted.cut += length
        if posted.cut == source.length:
            self._posted.popleft()
        return piece

    def _window_open(self) -> bool:
        oldest = next(iter(self._unacknowledged), 0)
        return self._posted[0].head.sequence < oldest + SEQUENCE_WINDOW

    def _head(self, op: Op, work_request: int, target: RemoteSlot, offset: int, length: int) -> Head:
        sequence = self._next_sequence
        self._next_sequence += 1
        self._unacknowledged[sequence] = work_request, target.sealer
        return Head(op, 0, sequence, target.key, target.address + offset, length)


def _behind_head(posted: _Posted) -> bytes:
    """The bytes of a fenced write as they travel."""
    if posted.sealer is None:
        return posted.data
    sealed = SealedPiece(posted.sealer, posted.head, posted.offset, memoryview(posted.data))
    return sealed.introduce() + sealed.seal_all()
