"""What a link is given to send: the bytes of a message in their slot, and where they are to go."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fedrdma_fate.core.digest import BLOCK_BYTES, DigestTable, block_digest, blocks_of, digest_of_blocks, payload_digest
from fedrdma_fate.core.held import Ranges, are_ranges, bytes_in
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.core.sealed_plan import without_table
from fedrdma_fate.core.x.chunking import LEAST_CHUNK_BYTES
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.frames import ChunkTags, Grant, MessageKey, MessageKind, Mode


class Payload:
    """Bytes of a message in a send slot; digests are computed once for all its destinations.

    Two links may race for the same digest; both compute the same value, so no lock is needed.

    Attributes:
        slot: where it lies.
        total_bytes: its length.
        written_from: it is being written, from its end to its start, and lies there from here on; 0 when it is whole.
    """

    def __init__(self, slot: Slot, total_bytes: int, written_from: int = 0) -> None:
        self.slot = slot
        self.total_bytes = total_bytes
        self.written_from = written_from
        self._tables: dict[int, DigestTable] = {}
        self._odd: dict[tuple[int, int], int] = {}
        self._block_digests: dict[int, int] = {}

    def has_blocks(self, written_from: int, count: int) -> bool:
        """Whether so many blocks begin from this offset on."""
        return -(-written_from // BLOCK_BYTES) + count <= -(-self.total_bytes // BLOCK_BYTES)

    def on_written(self, written_from: int, block_digests: Sequence[int]) -> None:
        """More of it lies there; whoever has written it may know the digests of blocks, the first from there on.

        Blocks are counted from the start of the payload here.
        """
        first = -(-written_from // BLOCK_BYTES)
        self._block_digests.update(enumerate(block_digests, first))
        self.written_from = written_from

    @property
    def whole_digest(self) -> int | None:
        """That of all its blocks, where each is known; computing it takes 0.1 ms for each GiB."""
        count = -(-self.total_bytes // BLOCK_BYTES)
        if self.written_from or len(self._block_digests) < count:
            return None
        return payload_digest([self._block_digests[number] for number in range(count)])

    def know_blocks(self) -> None:
        """Compute the digests of those blocks that nobody has told, on whichever thread: it takes 0.1 s for each GiB.

        To be called when it is whole, by whoever keeps its slot.
        """
        view = self.slot.view
        for number, (start, end) in enumerate(blocks_of(self.total_bytes)):
            if number not in self._block_digests:
                self._block_digests[number] = block_digest(view[start:end])

    def part(self, chunk: Chunk) -> Slot:
        """The piece of the slot that holds a chunk."""
        return self.slot.part(chunk.offset, chunk.length)

    def digest(self, chunk: Chunk) -> int:
        """xxh3-64 of a chunk."""
        is_last = chunk.offset + chunk.length == self.total_bytes
        if is_last or chunk.length < LEAST_CHUNK_BYTES or chunk.offset % chunk.length:
            # of another length than those before it, or so short that a table of them would be long
            where = (chunk.offset, chunk.length)
            if where not in self._odd:
                self._odd[where] = self._compute(chunk)
            return self._odd[where]
        table = self._tables.get(chunk.length)
        if table is None:
            table = self._tables[chunk.length] = DigestTable(self.total_bytes // chunk.length)
        number = chunk.offset // chunk.length
        if number not in table:
            table[number] = self._compute(chunk)
        return table[number]

    def _compute(self, chunk: Chunk) -> int:
        view = self.part(chunk).view
        return digest_of_blocks(
            [
                self._known_block(chunk.offset + start, end - start) or block_digest(view[start:end])
                for start, end in blocks_of(chunk.length)
            ]
        )

    def _known_block(self, offset: int, length: int) -> int | None:
        """The digest of a block of a chunk, where that is a block of the payload whose digest is known."""
        number, inside = divmod(offset, BLOCK_BYTES)
        if inside or length != min(BLOCK_BYTES, self.total_bytes - offset):
            return None
        return self._block_digests.get(number)


@dataclasses.dataclass(slots=True)
class SentSoFar:
    """How far a message came on the last data path that it has gone by, for the next.

    The link that gives it up writes it, and the next one reads it, perhaps on another thread, and perhaps before: so it
    is replaced as one.

    Attributes:
        at: the grant whose slot it was written into, and which bytes had arrived there.
        tags: what lies sealed there, for the peer to open it.
        earlier: an earlier run of this gateway may have sent some of it: its peer knows.
    """

    at: tuple[int, Ranges] = (0, ())
    tags: tuple[ChunkTags, ...] = ()
    earlier: bool = False

    @property
    def is_some(self) -> bool:
        """Whether the peer may have some of it."""
        return self.earlier or bool(self.at[1]) or bool(self.tags)

    def forget(self) -> None:
        """It begins anew."""
        self.at, self.tags, self.earlier = (0, ()), (), False


@dataclasses.dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send to one peer.

    Attributes:
        transfer: id, unique in this gateway's life.
        key: the message.
        kind: what the payload holds.
        payload: its bytes.
        plan: how it is cut.
        mode: how it travels.
        recut: the plan is only good for its length: it is cut anew for what is known of the path when it begins.
        so_far: how far it came before.
        loss_share: how much of what lies behind `whole_bytes` its task lets be missing.
        whole_bytes: from the start of the payload, that have to come.
    """

    transfer: int
    key: MessageKey
    kind: MessageKind
    payload: Payload
    plan: ChunkPlan
    mode: Mode
    recut: bool = False
    loss_share: float = 0.0
    whole_bytes: int = 0
    so_far: SentSoFar = dataclasses.field(default_factory=SentSoFar, compare=False, repr=False)

    def held_in(self, grant: Grant, *, sealed: bool = False) -> Ranges:
        """What of it lies in a granted slot already.

        In `fedrdma` and `fedrdma-x` the receiver counts what has come, so only what it says is not sent. In the other
        modes it may have seen nothing, and looks at all of it in the end: there what was acknowledged counts, but where
        the rest comes `sealed` into the slot, of which the receiver has to know what does not.
        """
        total = self.payload.total_bytes
        told = grant.held if are_ranges(grant.held, total) else ()
        if not grant.continues or sealed or self.mode in ("fedrdma", "fedrdma-x"):
            return told
        before, arrived = self.so_far.at
        return arrived if before == grant.continues and bytes_in(arrived) > bytes_in(told) else told

    @property
    def plain(self) -> Outgoing:
        """Without a table of tags, which is a matter of one attempt."""
        return dataclasses.replace(self, plan=without_table(self.plan)) if self.plan.trailer_bytes else self
