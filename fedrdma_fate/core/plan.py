"""How a payload is cut into chunks, and where chunks and headers lie in a receive slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from fedrdma_fate.wire.frames import Mode

HEADER_SPACE_BYTES = 4096
"""A receive slot starts with one page for the header, so that the payload is page-aligned."""

DEFAULT_CHUNK_BYTES = 4 * 1024 * 1024
GRPC_CHUNK_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """A contiguous piece of a payload: its index from 0, its offset and length in bytes."""

    index: int
    offset: int
    length: int


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A payload of `total_bytes` cut every `chunk_bytes`, with a last chunk of `enable_bytes` for Link-Enable.

    Both ends compute the same plan from the three numbers, so no table travels.
    """

    total_bytes: int
    chunk_bytes: int
    enable_bytes: int = 0

    def __post_init__(self) -> None:
        if self.total_bytes < 0 or self.chunk_bytes <= 0:
            raise ValueError(f"cannot cut {self.total_bytes} bytes into chunks of {self.chunk_bytes}")
        if not 0 <= self.enable_bytes <= max(0, self.total_bytes - 1):
            raise ValueError(f"a Link-Enable chunk of {self.enable_bytes} does not fit {self.total_bytes} bytes")

    @property
    def _body_bytes(self) -> int:
        return self.total_bytes - self.enable_bytes

    @property
    def count(self) -> int:
        """Number of chunks, 0 for an empty payload."""
        return -(-self._body_bytes // self.chunk_bytes) + (1 if self.enable_bytes else 0)

    def chunk(self, index: int) -> Chunk:
        """The chunk at `index`.

        Raises:
            IndexError: the plan has no such chunk.
        """
        if not 0 <= index < self.count:
            raise IndexError(f"chunk {index} of {self.count}")
        if self.enable_bytes and index == self.count - 1:
            return Chunk(index, self._body_bytes, self.enable_bytes)
        offset = index * self.chunk_bytes
        return Chunk(index, offset, min(self.chunk_bytes, self._body_bytes - offset))

    def __iter__(self) -> Iterator[Chunk]:
        return (self.chunk(index) for index in range(self.count))


@dataclasses.dataclass(frozen=True, slots=True)
class SlotLayout:
    """Offsets inside a receive slot.

    `fedrdma` stages each chunk behind the payload before it is copied to its place; the other modes write in place.
    """

    plan: ChunkPlan
    mode: Mode

    @property
    def payload_at(self) -> int:
        return HEADER_SPACE_BYTES

    @property
    def header_at(self) -> int:
        return self._staging_at if self.mode == "fedrdma" else 0

    @property
    def staged_chunk_at(self) -> int:
        """Where `fedrdma` writes the data of every chunk."""
        return self._staging_at + HEADER_SPACE_BYTES

    @property
    def _staging_at(self) -> int:
        return HEADER_SPACE_BYTES + -(-self.plan.total_bytes // HEADER_SPACE_BYTES) * HEADER_SPACE_BYTES

    @property
    def slot_bytes(self) -> int:
        """Length a receive slot must have."""
        if self.mode == "fedrdma":
            return self.staged_chunk_at + min(self.plan.chunk_bytes, max(self.plan.total_bytes, 1))
        return HEADER_SPACE_BYTES + self.plan.total_bytes

    def write_offset(self, chunk: Chunk) -> int:
        """Where in the slot the data of this chunk is written."""
        return self.staged_chunk_at if self.mode == "fedrdma" else self.payload_at + chunk.offset
