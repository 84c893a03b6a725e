"""What a link is told by its owner, and what it tells: messages, settings, and events as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from fedrdma_fate.core.digest import BLOCK_BYTES, DigestTable, block_digest, blocks_of, digest_of_blocks
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.core.x.chunking import SMALLEST_CHUNK_BYTES
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.repair_memory import MakeRegion
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, GrantRequest, MessageKey, MessageKind, Mode, Offer


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

    def on_written(self, written_from: int, block_digests: Sequence[int]) -> None:
        """More of it lies there; whoever has written it may know the digests of blocks, the first from there on.

        Blocks are counted from the start of the payload here.
        """
        first = -(-written_from // BLOCK_BYTES)
        self._block_digests.update(enumerate(block_digests, first))
        self.written_from = written_from

    def part(self, chunk: Chunk) -> Slot:
        """The piece of the slot that holds a chunk."""
        return self.slot.part(chunk.offset, chunk.length)

    def digest(self, chunk: Chunk) -> int:
        """xxh3-64 of a chunk."""
        if chunk.length < SMALLEST_CHUNK_BYTES or chunk.offset % chunk.length:
            # a last chunk
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
    """

    transfer: int
    key: MessageKey
    kind: MessageKind
    payload: Payload
    plan: ChunkPlan
    mode: Mode
    recut: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TransferStats:
    """How a transfer went: seconds from its start on the data path to its end, and bytes sent again."""

    seconds: float
    resent_bytes: int
    writes: int


@dataclasses.dataclass(frozen=True, slots=True)
class TransferProgress:
    """A transfer in progress, for people to look at."""

    transfer: int
    key: MessageKey
    direction: Literal["send", "receive"]
    mode: Mode
    state: str
    total_bytes: int
    done_bytes: int
    started: float


@dataclasses.dataclass(frozen=True, slots=True)
class LinkSettings:
    """Parameters of a link.

    Attributes:
        transport: name of its data path.
        poll_headers: find headers by looking at the slots (`notify: poll`) instead of by completion events.
        idle_timeout: seconds without progress after which a transfer fails.
        connect_timeout: seconds for connecting the data path.
        poll_interval: seconds between two looks at the slots.
        known: of the path, from an earlier run.
        window_bytes: most bytes of a `fedrdma-x` transfer in flight, where that was set by hand.
        repair_region: makes memory for repair chunks; None: there are to be none.
    """

    transport: str
    poll_headers: bool = False
    idle_timeout: float = 60.0
    connect_timeout: float = 10.0
    poll_interval: float = 0.0005
    known: KnownPath | None = None
    window_bytes: int | None = None
    repair_region: MakeRegion | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrameToSend:
    """Send this frame to the peer, in order."""

    frame: ControlFrame


@dataclasses.dataclass(frozen=True, slots=True)
class PathConnected:
    """The data path is connected, by this attempt."""

    attempt: int


@dataclasses.dataclass(frozen=True, slots=True)
class PathLost:
    """What this attempt connected is gone, or it was in vain; transfers are paused until there is a new one."""

    attempt: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class TransferAnnounced:
    """A datagram announces a transfer, perhaps late: it may `begin_early`."""

    offer: Offer


@dataclasses.dataclass(frozen=True, slots=True)
class GrantRequested:
    """The peer asks for a slot, after everything it has given back before."""

    request: GrantRequest


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadReceived:
    """A payload lies whole in its slot, from `payload_at` on; the slot now belongs to the owner."""

    offer: Offer
    slot: Slot
    payload_at: int
    stats: TransferStats


@dataclasses.dataclass(frozen=True, slots=True)
class ReceiveFailed:
    """An announced payload will not come; its slot now belongs to the owner."""

    offer: Offer
    slot: Slot
    code: ErrorCode
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class SlotsReturned:
    """Granted slots that are no longer granted."""

    slots: tuple[Slot, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PayloadSent:
    """The peer has the payload, and nothing reads its slot any more."""

    outgoing: Outgoing
    stats: TransferStats


@dataclasses.dataclass(frozen=True, slots=True)
class SendFailed:
    """The peer will not get the payload, and nothing reads its slot any more."""

    outgoing: Outgoing
    code: ErrorCode
    reason: str


LinkEvent = (
    FrameToSend
    | PathConnected
    | PathLost
    | TransferAnnounced
    | GrantRequested
    | PayloadReceived
    | ReceiveFailed
    | SlotsReturned
    | PayloadSent
    | SendFailed
)
"""What a link tells its owner, in the order in which it happened."""

Emit = Callable[[LinkEvent], None]
"""Told on the thread that drives the link; must return at once. SlotsReturned may also come on another thread: the one
that tries to grant on a link that has ended."""
