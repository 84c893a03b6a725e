"""The peer's writes, as their pieces arrive: which may be written, where, and which have landed."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable

from fedrdma_fate.core.digest import BLOCK_BYTES, MISTAGGED, TAGGED, block_digest, digest_of_blocks
from fedrdma_fate.ports import Completion, CompletionKind, Opener, RemoteSlot, SealBrokenError, WrongTagError
from fedrdma_fate.transport.exposure import Exposure, ExposureTable, ProtocolViolation
from fedrdma_fate.transport.outbound import LARGEST_LOCAL_PIECE
from fedrdma_fate.transport.sealed_pieces import place_of, place_of_head, require_whole_blocks
from fedrdma_fate.transport.stream_frames import SEQUENCE_WINDOW, Head, Op, ack_head
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES

MOST_DRAINED_PIECE_BYTES = LARGEST_LOCAL_PIECE
"""Of a piece that is thrown away: room for it is made in memory of our own, and no sender of ours cuts longer ones."""

MOST_SPARE_PIECES = 8
"""Of a write, beyond one for each of its blocks: our senders cut between blocks, so only the last piece is shorter."""


class PeerClosed(Exception):  # noqa: N818 - internal: the endpoint turns it into LINK_LOST
    """The peer's end of the link is closed."""


class PeerReportsViolation(PeerClosed):
    """The peer says what we did wrong, and drops the link."""


@dataclasses.dataclass(slots=True)
class Arrival:
    """A write of the peer that has begun to arrive.

    Attributes:
        head: of its first piece; the others must agree with it.
        exposure: where it goes.
        tagged: of its blocks is noted whether their tags were right: that speaks for them, and no digest is computed.
        missing: bytes that have not landed.
        pieces: start and end in the write of each that has been announced, in order; they do not overlap.
        block_digests: of those blocks that came in one piece, by their number.
    """

    head: Head
    exposure: Exposure
    tagged: bool
    missing: int
    pieces: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    block_digests: dict[int, int] = dataclasses.field(default_factory=dict)

    def claim(self, piece: Head) -> bool:
        """Whether no piece was announced that overlaps this one, which is announced now.

        Raises:
            ProtocolViolation: it is one of more than any sender cuts a write into.
        """
        start, end = piece.piece_at, piece.piece_at + piece.piece_length
        if len(self.pieces) > self.head.length // BLOCK_BYTES + MOST_SPARE_PIECES:
            raise ProtocolViolation(f"write {piece.sequence} comes in more than {len(self.pieces)} pieces")
        place = bisect.bisect(self.pieces, (start, end))
        if any(first < end and start < last for first, last in self.pieces[max(0, place - 1) : place + 1]):
            return False
        self.pieces.insert(place, (start, end))
        return True

    def note(self, at: int, data: memoryview, *, tag_is_right: bool = True) -> None:
        """These bytes, which do not cross the end of a block, lie at `at` in the write; just now, so in the cache."""
        if at % BLOCK_BYTES == 0 and (len(data) == BLOCK_BYTES or at + len(data) == self.head.length):
            told_by_tag = TAGGED if tag_is_right else MISTAGGED
            self.block_digests[at // BLOCK_BYTES] = told_by_tag if self.tagged else block_digest(data)

    @property
    def digest(self) -> int | None:
        """`chunk_digest` of the whole write; where tags speak, TAGGED or, with one wrong, MISTAGGED.

        None when its pieces were not cut between blocks.
        """
        count = max(1, -(-self.head.length // BLOCK_BYTES))
        if len(self.block_digests) < count:
            return None
        if self.tagged:
            return MISTAGGED if MISTAGGED in self.block_digests.values() else TAGGED
        return digest_of_blocks([self.block_digests[number] for number in range(count)])


class Inbound:
    """Which of the peer's writes have landed; shared by all streams of a link.

    Attributes:
        opener: opens what the peer has sealed; None where nothing is.
    """

    def __init__(
        self,
        exposures: ExposureTable,
        complete: Callable[[Completion], None],
        acknowledge: Callable[[bytes], None],
        acknowledged: Callable[[Head], None],
    ) -> None:
        self._exposures = exposures
        self._complete = complete
        self._acknowledge = acknowledge
        self.acknowledged = acknowledged
        self.opener: Opener | None = None
        self._arriving: dict[int, Arrival] = {}
        self._landed_below = 0
        self._landed_beyond: set[int] = set()

    def begin(self, head: Head) -> Arrival:
        """A piece, or a fenced write, is about to arrive.

        Raises:
            ProtocolViolation: it may not be written.
        """
        arrival = self._arriving.get(head.sequence)
        if arrival is None:
            arrival = self._begin_write(head)
        first = arrival.head
        if _whole(head) != _whole(first):
            raise ProtocolViolation(f"two pieces of write {head.sequence} disagree on where it goes")
        if (head.op == Op.FENCED and head is not first) or not arrival.claim(head):
            raise self._twice(f"write {head.sequence}")
        self.require_live(arrival)
        if self.opener is not None:
            require_whole_blocks(head)
        return arrival

    def admit(self, arrival: Arrival, piece: Head, introduction: bytes, record: memoryview) -> None:
        """Check that the peer has sealed the head of a piece that was begun.

        Args:
            arrival: the write.
            piece: its head.
            introduction: what came behind it.
            record: what came behind that.

        Raises:
            ProtocolViolation: it has not; nothing of the piece may be taken.
        """
        opener = self.opener
        assert opener is not None
        self.require_live(arrival)
        if arrival.exposure.drains:
            return
        place = place_of_head(piece, arrival.head.address - arrival.exposure.base)
        try:
            opener.open_apart(arrival.exposure.grant, introduction, place, record)
        except SealBrokenError as broken:
            raise ProtocolViolation(str(broken)) from broken

    def lands_in_place(self, arrival: Arrival) -> bool:
        """Whether what follows an admitted head is received where it belongs: unsealed, or to be checked there."""
        return self.opener is None or self.opener.lands_in_place(arrival.exposure.grant)

    def check_record(
        self, arrival: Arrival, at: int, introduction: bytes, apart: memoryview, target: memoryview
    ) -> bool:
        """Look at one record of a write that was received into its place; whether its tag was right.

        Where it was not, the bytes were wiped: on the way, or while it went out, somebody has changed them. That costs
        the write alone, for the head of its piece was right, and other messages are not to be stopped by it.

        Args:
            arrival: the write.
            at: where the record starts in it.
            introduction: what came with its piece.
            apart: what came before and behind the record's bytes.
            target: those bytes.

        Raises:
            ProtocolViolation: it is not of the grant's transfer.
        """
        opener = self.opener
        assert opener is not None
        self.require_live(arrival)
        if arrival.exposure.drains:
            return True
        place = place_of(arrival.head, arrival.head.address - arrival.exposure.base, at, len(target))
        try:
            opener.check(arrival.exposure.grant, introduction, place, apart, target)
        except WrongTagError:
            return False
        except SealBrokenError as broken:
            raise ProtocolViolation(str(broken)) from broken
        return True

    def open_record(
        self, arrival: Arrival, at: int, introduction: bytes, sealed: memoryview, target: memoryview
    ) -> bool:
        """Open one record of a write into its place, if it has not come before.

        False where bytes that travel as they are had a wrong tag, as of `check_record`.

        Args:
            arrival: the write.
            at: where the record starts in it.
            introduction: what came with its piece.
            sealed: the record.
            target: where its bytes belong.

        Raises:
            ProtocolViolation: the peer has not sealed it for there; nothing of it is left.
        """
        opener = self.opener
        assert opener is not None
        self.require_live(arrival)
        if arrival.exposure.drains:
            return True
        if at // BLOCK_BYTES in arrival.block_digests:
            raise self._twice(f"a record at {at} of write {arrival.head.sequence}")
        offset = arrival.head.address - arrival.exposure.base
        place = place_of(arrival.head, offset, at, len(target))
        try:
            opener.open(arrival.exposure.grant, introduction, place, sealed, target)
        except WrongTagError:
            return False
        except SealBrokenError as broken:
            raise ProtocolViolation(str(broken)) from broken
        return True

    def landed(self, arrival: Arrival, length: int) -> None:
        """`length` more bytes of it lie in place, or were thrown away; acknowledges the write that is whole.

        It completes only where it lies in place: of what was thrown away nobody has looked at the seal.
        """
        arrival.missing -= length
        if arrival.missing:
            return
        head = arrival.head
        grant = arrival.exposure.grant
        self._finish(head.sequence)
        if arrival.exposure.drains:
            return
        offset = head.address - arrival.exposure.base
        length, digest = head.length, arrival.digest
        if head.op == Op.CHUNK:
            kind = CompletionKind.CHUNK_IMMEDIATE
            landed = Completion(
                kind, immediate=head.immediate, grant=grant, offset=offset, length=length, digest=digest
            )
        else:
            landed = Completion(CompletionKind.LANDED, immediate=grant, offset=offset, length=length, digest=digest)
        self._complete(landed)

    def require_sealer(self, target: RemoteSlot) -> None:
        """Do nothing where what is sent there is sealed, or nothing on this data path is.

        Raises:
            ValueError: it would go as it is where it has to be sealed, or the other way round.
        """
        if (self.opener is None) != (target.sealer is None):
            raise ValueError("a write that is not sealed as its data path is")

    def fence_is_down(self, sequence: int) -> bool:
        """Whether every write before this one has landed."""
        return self._landed_below == sequence

    def open_fenced(self, arrival: Arrival, data: memoryview) -> memoryview:
        """The bytes of a fenced write; opened, where it is sealed.

        Its head is authenticated by its only record. So it is opened before it waits for its fence, for a forged one
        could wait for ever, and apart from its place, for that is not known to be its own before.

        Raises:
            ProtocolViolation: its grant was withdrawn meanwhile, or the peer has not sealed it for there.
        """
        opener = self.opener
        if opener is None:
            return data
        self.require_live(arrival)
        if arrival.exposure.drains:
            return data[INTRODUCTION_BYTES:]
        head = arrival.head
        place = place_of(head, head.address - arrival.exposure.base, 0, head.length)
        introduction, record = bytes(data[:INTRODUCTION_BYTES]), data[INTRODUCTION_BYTES:]
        try:
            return memoryview(opener.open_apart(arrival.exposure.grant, introduction, place, record))
        except SealBrokenError as broken:
            raise ProtocolViolation(str(broken)) from broken

    def surface(self, arrival: Arrival, data: memoryview) -> None:
        """Put a fenced write, whose fence is down, into its place in one go; what `open_fenced` gave.

        Where its grant drains, it is thrown away, and nothing is said of it.

        Raises:
            ProtocolViolation: its grant was withdrawn meanwhile.
        """
        self.require_live(arrival)
        head = arrival.head
        if arrival.exposure.drains:
            self._finish(head.sequence)
            return
        arrival.exposure.slot.part(head.address - arrival.exposure.base, head.length).view[:] = data
        self._finish(head.sequence)
        self._complete(Completion(CompletionKind.IMMEDIATE, immediate=head.immediate))

    def require_live(self, arrival: Arrival) -> None:
        """Do nothing while the grant it goes to is exposed, or drains.

        Raises:
            ProtocolViolation: it was withdrawn otherwise.
        """
        if not (arrival.exposure.live or arrival.exposure.drains):
            raise ProtocolViolation(
                f"{arrival.head.length} bytes were still on their way into grant {arrival.exposure.grant} "
                "when it was withdrawn"
            )

    def target(self, arrival: Arrival, piece: Head) -> memoryview:
        """Where the bytes of a piece belong: where nobody looks, when its grant drains.

        Raises:
            ProtocolViolation: it drains, and is longer than any piece of ours.
        """
        if arrival.exposure.drains:
            return room_to_drain(piece.piece_length)
        offset = piece.address - arrival.exposure.base + piece.piece_at
        return arrival.exposure.slot.part(offset, piece.piece_length).view

    def _twice(self, what: str) -> ProtocolViolation:
        if self.opener is not None:
            self.opener.note_replay()
        return ProtocolViolation(f"{what} came twice")

    def _begin_write(self, head: Head) -> Arrival:
        sequence = head.sequence
        if sequence < self._landed_below or sequence in self._landed_beyond:
            raise self._twice(f"write {sequence}")
        if sequence >= self._landed_below + SEQUENCE_WINDOW:
            raise ProtocolViolation(f"write {sequence} is too far ahead of {self._landed_below}")
        exposure = self._exposures.resolve(head.key, head.address, head.length)
        arrival = Arrival(head, exposure, self.opener is not None, missing=head.length)
        self._arriving[sequence] = arrival
        return arrival

    def _finish(self, sequence: int) -> None:
        del self._arriving[sequence]
        self._landed_beyond.add(sequence)
        while self._landed_below in self._landed_beyond:
            self._landed_beyond.remove(self._landed_below)
            self._landed_below += 1
        self._acknowledge(
            ack_head(sequence) if self.opener is None else ack_head(sequence, self.opener.acknowledgement(sequence))
        )


def room_to_drain(length: int) -> memoryview:
    """Where so many bytes of a piece go that are thrown away.

    Raises:
        ProtocolViolation: it is longer than any piece of ours.
    """
    if length > MOST_DRAINED_PIECE_BYTES:
        raise ProtocolViolation(f"a piece of which {length} bytes are to come into a grant that was withdrawn")
    return memoryview(bytearray(length))


def _whole(head: Head) -> tuple[int, ...]:
    """What the heads of all pieces of a write agree on."""
    return head.op, head.immediate, head.key, head.address, head.length
