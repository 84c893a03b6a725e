"""What a state machine asks for. The engine carries it out, in order; the simulator, in turn, drives the engine.

Structs of msgspec, for there are several of each chunk, and one is made in a sixth of the time that a frozen dataclass
takes.
"""

from __future__ import annotations

import msgspec

from fedrdma_fate.core.plan import Chunk
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, Report
from fedrdma_fate.wire.header import ChunkHeader


class WriteChunk(msgspec.Struct, frozen=True):
    """RDMA-write a chunk of the payload to `at` in the granted slot; answer with `on_write_done(work_request)`."""

    work_request: int
    chunk: Chunk
    at: int


class WriteHeader(msgspec.Struct, frozen=True):
    """RDMA-write a header to `at`, behind everything posted before, with the grant's id as immediate value."""

    work_request: int
    header: ChunkHeader
    at: int


class PostChunk(msgspec.Struct, frozen=True):
    """RDMA WRITE WITH IMMEDIATE of a chunk to `at` in the granted slot, on chunk queue pair number `queue_pair`.

    On reliable queue pairs, answer with `on_write_done(work_request)`.
    """

    work_request: int
    chunk: Chunk
    at: int
    queue_pair: int
    immediate: int


class AddToRepairs(msgspec.Struct, frozen=True):
    """Add (exclusive or) a chunk of the payload to these repair chunks, which begin as zeros, as far as it goes."""

    chunk: Chunk
    repairs: tuple[int, ...]


class PostRepair(msgspec.Struct, frozen=True):
    """Like PostChunk, of a repair chunk. It may be left undone: nothing waits for it."""

    work_request: int
    number: int
    at: int
    queue_pair: int
    immediate: int


class ChunkArrived(msgspec.Struct, frozen=True):
    """The receiver has this chunk: what is kept only to send it again may go. Told only where that is asked for."""

    chunk: Chunk


class AddInSlot(msgspec.Struct, frozen=True):
    """Add (exclusive or) `length` bytes at `source` to those at `target`, both offsets in the slot."""

    source: int
    target: int
    length: int


class ComputeDigest(msgspec.Struct, frozen=True):
    """Compute the xxh3-64 of the chunk at its final place; answer with `on_digest(index, value)`.

    Exactly one answer each, in any order and however late: also when the transfer was paused or restarted meanwhile.
    """

    chunk: Chunk


class CopyStaged(msgspec.Struct, frozen=True):
    """Copy the staged, or found, chunk at `source` to `target`, both offsets in the slot."""

    source: int
    target: int
    length: int


class WipeChunk(msgspec.Struct, frozen=True):
    """Zero a chunk at its final place in the slot: what lay there before may be another's."""

    chunk: Chunk


class ClearHeader(msgspec.Struct, frozen=True):
    """Zero the header at `at`, so that the next one is told from this one."""

    at: int


class SendFrame(msgspec.Struct, frozen=True):
    """Send a control frame to the peer, in order."""

    frame: ControlFrame


class SendReport(msgspec.Struct, frozen=True):
    """Send a report to the sender; it may be lost, and may overtake none."""

    report: Report


class TellDigests(msgspec.Struct, frozen=True):
    """Tell the receiver the digests of these chunks, from `first` on; it may be lost."""

    first: int
    digests: tuple[int, ...]


class Finished(msgspec.Struct, frozen=True):
    """Receiver: the payload is in its slot. Sender: the peer has it.

    Attributes:
        missing: bytes of the payload that have not come: to be zeroed before anybody sees it.
    """

    missing: tuple[tuple[int, int], ...] = ()


class Failed(msgspec.Struct, frozen=True):
    """The transfer is over and was not delivered."""

    code: ErrorCode
    reason: str


Action = (
    WriteChunk
    | WriteHeader
    | PostChunk
    | AddToRepairs
    | PostRepair
    | ChunkArrived
    | AddInSlot
    | ComputeDigest
    | CopyStaged
    | WipeChunk
    | ClearHeader
    | SendFrame
    | SendReport
    | TellDigests
    | Finished
    | Failed
)
