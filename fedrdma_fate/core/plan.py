"""How a payload is cut into chunks, in which order they go, and where they and the headers lie in a receive slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Set

import msgspec

from fedrdma_fate.wire.errors import ErrorCode, TransferError
from fedrdma_fate.wire.frames import Mode, Offer

HEADER_SPACE_BYTES = 4096
"""A receive slot starts with one page for the header, so that the payload is page-aligned."""

DEFAULT_CHUNK_BYTES = 4 * 1024 * 1024
"""Best in the paper's Table 2 from 4 Gbit/s on."""

GRPC_CHUNK_BYTES = 1024 * 1024
"""What FATE cuts payloads into for gRPC."""

LARGEST_CHUNK_BYTES = 1 << 30
"""One RDMA write is one message, and common NICs take messages of up to 1 GiB."""

LARGEST_COUNT = 1 << 20
"""Most chunks a payload is cut into: bounds what a peer's offer can make the receiver keep."""


class Chunk(msgspec.Struct, frozen=True):
    """A contiguous piece of a payload: its index from 0, its offset and length in bytes.

    Made again and again: a struct of msgspec, which takes a sixth of the time of a frozen dataclass.
    """

    index: int
    offset: int
    length: int


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A payload of `total_bytes` cut every `chunk_bytes`, with a last chunk of `enable_bytes` for Link-Enable.

    Both ends compute the same plan from the numbers, so no table travels.

    A trailer is what a sealed payload needs besides (docs/sealing.md). It has chunks of its own, which hold nothing
    else. Their indices come before those of the payload, so that they go last wherever the last index goes first.

    Attributes:
        trailer_bytes: of the trailer, which lies on the page behind the payload; 0: there is none.
        count: number of chunks, 0 for an empty payload without a trailer.
        trailer_count: how many of them are the trailer's: the first ones.

    Raises:
        ValueError: the three do not make a plan, or one of more than LARGEST_COUNT chunks.
    """

    total_bytes: int
    chunk_bytes: int
    enable_bytes: int = 0
    trailer_bytes: int = 0
    # asked for several times a chunk, so they are kept
    count: int = dataclasses.field(init=False, repr=False, compare=False)
    trailer_count: int = dataclasses.field(init=False, repr=False, compare=False)
    _body_bytes: int = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.total_bytes < 0 or self.chunk_bytes <= 0 or self.trailer_bytes < 0:
            raise ValueError(f"cannot cut {self.total_bytes} bytes into chunks of {self.chunk_bytes}")
        if not 0 <= self.enable_bytes <= min(self.chunk_bytes, max(0, self.total_bytes - 1)):
            raise ValueError(
                f"a Link-Enable chunk of {self.enable_bytes} does not fit {self.total_bytes} bytes "
                f"in chunks of {self.chunk_bytes}"
            )
        body_bytes = self.total_bytes - self.enable_bytes
        object.__setattr__(self, "_body_bytes", body_bytes)
        payload_count = -(-body_bytes // self.chunk_bytes) + (1 if self.enable_bytes else 0)
        object.__setattr__(self, "trailer_count", -(-self.trailer_bytes // self.chunk_bytes))
        object.__setattr__(self, "count", payload_count + self.trailer_count)
        if self.count > LARGEST_COUNT:
            raise ValueError(f"{self.total_bytes} bytes in chunks of {self.chunk_bytes} are {self.count} chunks")

    @property
    def fewest_bytes(self) -> int:
        """The smallest base chunk size that cuts this payload into no more than LARGEST_COUNT chunks."""
        return max(1, -(-self.total_bytes // (LARGEST_COUNT - 1)))

    def chunk(self, index: int) -> Chunk:
        """The chunk at `index`.

        Raises:
            IndexError: the plan has no such chunk.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"chunk {index} of {self.count}")
        if self.enable_bytes and index == self.count - 1:
            return Chunk(index, self._body_bytes, self.enable_bytes)
        if index < self.trailer_count:
            inside = index * self.chunk_bytes
            return Chunk(index, self.trailer_at + inside, min(self.chunk_bytes, self.trailer_bytes - inside))
        offset = (index - self.trailer_count) * self.chunk_bytes
        return Chunk(index, offset, min(self.chunk_bytes, self._body_bytes - offset))

    @property
    def trailer_at(self) -> int:
        """Where the trailer lies, counted from the start of the payload: the first page that is free."""
        return _pages(self.total_bytes)

    @property
    def carried_bytes(self) -> int:
        """From the start of the payload to the end of what is written behind it."""
        return self.trailer_at + self.trailer_bytes if self.trailer_bytes else self.total_bytes

    @property
    def longest_bytes(self) -> int:
        """Length of the longest chunk."""
        return min(self.chunk_bytes, max(self.total_bytes, self.trailer_bytes))

    def chunk_at(self, offset: int) -> Chunk | None:
        """The chunk that starts at `offset`, or None."""
        if self.trailer_bytes and self.trailer_at <= offset < self.carried_bytes:
            index = (offset - self.trailer_at) // self.chunk_bytes
        elif not 0 <= offset < self.total_bytes:
            return None
        elif self.enable_bytes and offset >= self._body_bytes:
            index = self.count - 1
        else:
            index = self.trailer_count + offset // self.chunk_bytes
        chunk = self.chunk(index)
        return chunk if chunk.offset == offset else None

    def bytes_of(self, indices: Set[int]) -> int:
        """Length of these chunks together; all but the last two of a plan, and of its trailer, are chunk_bytes long."""
        shorter = {self.trailer_count - 1, self.count - 2, self.count - 1}
        last = (self.chunk(index) for index in shorter if 0 <= index < self.count)
        missing = sum(self.chunk_bytes - chunk.length for chunk in last if chunk.index in indices)
        return len(indices) * self.chunk_bytes - missing

    def __iter__(self) -> Iterator[Chunk]:
        return (self.chunk(index) for index in range(self.count))


def sending_order(plan: ChunkPlan, mode: Mode, indices: Iterable[int]) -> list[int]:
    """These chunks in the order they are sent: `fedrdma-e` from the last to the first, the others from the first.

    A Link-Enable chunk goes ahead of all others in every mode, and a trailer behind them.
    """
    backwards = mode == "fedrdma-e"
    order = sorted(set(indices), key=lambda index: (index < plan.trailer_count, -index if backwards else index))
    last = plan.count - 1
    if plan.enable_bytes and last in order:
        order.remove(last)
        order.insert(0, last)
    return order


@dataclasses.dataclass(frozen=True, slots=True)
class SlotLayout:
    """Offsets inside a receive slot.

    `fedrdma` stages each chunk behind the payload before it is copied to its place; the other modes write in place.
    """

    plan: ChunkPlan
    mode: Mode

    @property
    def payload_at(self) -> int:
        """Where the payload starts."""
        return HEADER_SPACE_BYTES

    @property
    def header_at(self) -> int:
        """Where headers are written."""
        return self._staging_at if self.mode == "fedrdma" else 0

    @property
    def staged_chunk_at(self) -> int:
        """Where `fedrdma` writes the data of every chunk."""
        return self._staging_at + HEADER_SPACE_BYTES

    @property
    def _staging_at(self) -> int:
        return HEADER_SPACE_BYTES + _pages(self.plan.carried_bytes)

    @property
    def repairs_at(self) -> int:
        """Where repair chunks of `fedrdma-x` are written, if there are any: on the page behind the payload."""
        return self._staging_at

    @property
    def slot_bytes(self) -> int:
        """Length a receive slot must have, without repair chunks."""
        if self.mode == "fedrdma":
            return self.staged_chunk_at + self.plan.longest_bytes
        return HEADER_SPACE_BYTES + self.plan.carried_bytes

    def write_offset(self, chunk: Chunk) -> int:
        """Where in the slot the data of this chunk is written."""
        return self.staged_chunk_at if self.mode == "fedrdma" else self.payload_at + chunk.offset


def _pages(length: int) -> int:
    """Rounded up to whole pages."""
    return -(-length // HEADER_SPACE_BYTES) * HEADER_SPACE_BYTES


def plan_of_offer(offer: Offer, slot_bytes: int, extend: Callable[[ChunkPlan], ChunkPlan] | None = None) -> ChunkPlan:
    """The plan that a peer's offer describes, for a granted slot of `slot_bytes`.

    Args:
        offer: the offer.
        slot_bytes: length of the slot.
        extend: adds the trailer, where there is to be one; may raise ValueError.

    Raises:
        TransferError: UNEXPECTED_EVENT when its numbers make no plan, GRANT_VIOLATION when it does not fit the slot.
    """
    try:
        plan = ChunkPlan(offer.total_bytes, offer.chunk_bytes, offer.enable_bytes)
        plan = plan if extend is None else extend(plan)
    except ValueError as error:
        raise TransferError(ErrorCode.UNEXPECTED_EVENT, f"the offer of {offer.key} is senseless: {error}.") from error
    needed = SlotLayout(plan, offer.mode).slot_bytes
    if needed > slot_bytes:
        raise TransferError(
            ErrorCode.GRANT_VIOLATION, f"the offer of {offer.key} needs {needed} bytes, its grant has {slot_bytes}."
        )
    return plan
