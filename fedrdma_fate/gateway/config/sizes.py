"""Sizes in the configuration: bytes, or numbers with a unit."""

from __future__ import annotations

from decimal import Decimal

from fedrdma_fate.core.plan import LARGEST_CHUNK_BYTES
from fedrdma_fate.quantities import QuantityError, exact_size

LARGEST_BYTES = 2**62
"""More than any file can have."""


class ByteCount(int):
    """A size in bytes; in YAML a number, or text with a unit such as `4MiB`."""


class ChunkSetting:
    """A chunk size in bytes, or `auto`: the paper's best for the link's rate.

    Attributes:
        size_bytes: the size, or None for `auto`.
    """

    def __init__(self, size_bytes: int | None = None) -> None:
        # a plain int: it goes into frames
        self.size_bytes = None if size_bytes is None else int(size_bytes)

    def __repr__(self) -> str:
        return "auto" if self.size_bytes is None else str(self.size_bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChunkSetting) and self.size_bytes == other.size_bytes

    def __hash__(self) -> int:
        return hash(self.size_bytes)


def parse_chunk(value: object) -> ChunkSetting:
    """A chunk size, or `auto`.

    Raises:
        ValueError: it is neither, or more than one RDMA write carries.
    """
    if value == "auto":
        return ChunkSetting()
    size = parse_byte_count(value)
    if size > LARGEST_CHUNK_BYTES:
        raise ValueError(f"{value!r} is more than one RDMA write carries; write auto or at most 1GiB")
    return ChunkSetting(size)


def parse_byte_count(value: object) -> ByteCount:
    """A size in bytes from a number or from text such as `4MiB` or `1 GB`; what is left of a byte is dropped.

    Raises:
        ValueError: it is neither, not positive, or beyond what a file can have.
    """
    size = _exact(value)
    if not 1 <= size <= LARGEST_BYTES:
        raise ValueError(f"{value!r} is not between 1 and {LARGEST_BYTES} bytes")
    return ByteCount(size)


def _exact(value: object) -> Decimal | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return exact_size(value)
        except QuantityError:
            pass
    raise ValueError(f"{value!r} is no size; write bytes or a number with KiB, MiB, GiB, KB, MB or GB")
