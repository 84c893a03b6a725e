"""The peer's writes, as their pieces arrive: which may be written, where, and which have landed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest, digest_of_blocks
from fedrdma_fate.ports import Completion, CompletionKind
from fedrdma_fate.transport.exposure import Exposure, ExposureTable, ProtocolViolation
from fedrdma_fate.transport.stream_frames import SEQUENCE_WINDOW, Head, Op


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
        unclaimed: bytes that no piece has been announced for.
        missing: bytes that have not landed.
        block_digests: of those blocks that came in one piece, by their number.
    """

    head: Head
    exposure: Exposure
    unclaimed: int
    missing: int
    block_digests: dict[int, int] = dataclasses.field(default_factory=dict)

    def note(self, at: int, data: memoryview) -> None:
        """These bytes, which do not cross the end of a block, lie at `at` in the write; just now, so in the cache."""
        if at % BLOCK_BYTES == 0 and (len(data) == BLOCK_BYTES or at + len(data) == self.head.length):
            self.block_digests[at // BLOCK_BYTES] = block_digest(data)

    @property
    def digest(self) -> int | None:
        """`chunk_digest` of the whole write; None when its pieces were not cut between blocks."""
        count = max(1, -(-self.head.length // BLOCK_BYTES))
        if len(self.block_digests) < count:
            return None
        return digest_of_blocks([self.block_digests[number] for number in range(count)])


class Inbound:
    """Which of the peer's writes have landed; shared by all streams of a link."""

    def __init__(
        self,
        exposures: ExposureTable,
        complete: Callable[[Completion], None],
        acknowledge: Callable[[int], None],
        acknowledged: Callable[[int], None],
    ) -> None:
        self._exposures = exposures
        self._complete = complete
        self._acknowledge = acknowledge
        self.acknowledged = acknowledged
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
        if head.piece_length > arrival.unclaimed or (head.op == Op.FENCED and head is not first):
            raise ProtocolViolation(f"write {head.sequence} came twice")
        self.require_live(arrival)
        arrival.unclaimed -= head.piece_length
        return arrival

    def landed(self, arrival: Arrival, length: int) -> None:
        """`length` more bytes of it lie in place; completes and acknowledges the write that is whole."""
        arrival.missing -= length
        if arrival.missing:
            return
        head = arrival.head
        grant = arrival.exposure.grant
        self._finish(head.sequence)
        offset = head.address - arrival.exposure.base
        if head.op == Op.CHUNK:
            kind, immediate = CompletionKind.CHUNK_IMMEDIATE, head.immediate
        else:
            kind, immediate = CompletionKind.LANDED, grant
        self._complete(Completion(kind, immediate=immediate, offset=offset, length=head.length, digest=arrival.digest))

    def fence_is_down(self, sequence: int) -> bool:
        """Whether every write before this one has landed."""
        return self._landed_below == sequence

    def surface(self, arrival: Arrival, data: memoryview) -> None:
        """Put a fenced write, whose fence is down, into its place in one go.

        Raises:
            ProtocolViolation: its grant was withdrawn meanwhile.
        """
        self.require_live(arrival)
        head = arrival.head
        arrival.exposure.slot.part(head.address - arrival.exposure.base, head.length).view[:] = data
        self._finish(head.sequence)
        self._complete(Completion(CompletionKind.IMMEDIATE, immediate=head.immediate))

    def require_live(self, arrival: Arrival) -> None:
        """Do nothing while the grant it goes to is exposed.

        Raises:
            ProtocolViolation: it was withdrawn.
        """
        if not arrival.exposure.live:
            raise ProtocolViolation(
                f"{arrival.head.length} bytes were still on their way into grant {arrival.exposure.grant} "
                "when it was withdrawn"
            )

    def target(self, arrival: Arrival, piece: Head) -> memoryview:
        """Where the bytes of a piece belong."""
        offset = piece.address - arrival.exposure.base + piece.piece_at
        return arrival.exposure.slot.part(offset, piece.piece_length).view

    def _begin_write(self, head: Head) -> Arrival:
        sequence = head.sequence
        if sequence < self._landed_below or sequence in self._landed_beyond:
            raise ProtocolViolation(f"write {sequence} came twice")
        if sequence >= self._landed_below + SEQUENCE_WINDOW:
            raise ProtocolViolation(f"write {sequence} is too far ahead of {self._landed_below}")
        exposure = self._exposures.resolve(head.key, head.address, head.length)
        arrival = Arrival(head, exposure, unclaimed=head.length, missing=head.length)
        self._arriving[sequence] = arrival
        return arrival

    def _finish(self, sequence: int) -> None:
        del self._arriving[sequence]
        self._landed_beyond.add(sequence)
        while self._landed_below in self._landed_beyond:
            self._landed_beyond.remove(self._landed_below)
            self._landed_below += 1
        self._acknowledge(sequence)


def _whole(head: Head) -> tuple[int, ...]:
    """What the heads of all pieces of a write agree on."""
    return head.op, head.immediate, head.key, head.address, head.length
