"""Checksums: xxh3-64 per chunk, combined into one for the payload."""

from __future__ import annotations

import array
import sys
from collections.abc import Sequence

import xxhash


def chunk_digest(data: bytes | memoryview) -> int:
    """xxh3-64 of one chunk."""
    return xxhash.xxh3_64_intdigest(data)


def payload_digest(chunk_digests: Sequence[int]) -> int:
    """xxh3-64 over the chunk digests, in index order, as little-endian u64."""
    packed = array.array("Q", chunk_digests)
    if sys.byteorder == "big":
        packed.byteswap()
    return xxhash.xxh3_64_intdigest(packed.tobytes())
