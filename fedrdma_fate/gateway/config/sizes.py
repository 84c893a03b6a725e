"""Sizes in the configuration: bytes, or numbers with a unit."""

from __future__ import annotations

import re

from fedrdma_fate.core.plan import LARGEST_CHUNK_BYTES

LARGEST_BYTES = 2**62
"""More than any file can have."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


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
    size = parse_size(value)
    if size > LARGEST_CHUNK_BYTES:
        raise ValueError(f"{value!r} is more than one RDMA write carries; write auto or at most 1GiB")
    return ChunkSetting(size)


def parse_size(value: object) -> ByteCount:
    """A size in bytes from a number or from text such as `4MiB` or `1 GB`.

    Raises:
        ValueError: it is neither, not positive, or beyond what a file can have.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if isinstance(value, int) and not isinstance(value, bool):
        size: float = value
    elif match is not None and match[2].upper() in _UNITS:
        size = float(match[1]) * _UNITS[match[2].upper()]
    else:
        raise ValueError(f"{value!r} is no size; write bytes or a number with KiB, MiB, GiB, KB, MB or GB")
    if not 1 <= size <= LARGEST_BYTES:
        raise ValueError(f"{value!r} is not between 1 and {LARGEST_BYTES} bytes")
    return ByteCount(size)
