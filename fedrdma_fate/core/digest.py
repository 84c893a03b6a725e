"""Checksums: xxh3-64 of blocks, combined into one for the chunk, and those into one for the payload.

Blocks are small enough to be digested while they lie in a core's cache, by whoever has just copied them there.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator, Sequence

import xxhash

BLOCK_BYTES = 256 * 1024
"""Chunks are digested in blocks of this size, counted from the start of the chunk; the last may be shorter."""


def block_digest(block: bytes | memoryview) -> int:
    """xxh3-64 of one block."""
    return xxhash.xxh3_64_intdigest(block)


def chunk_digest(chunk: bytes | memoryview) -> int:
    """The digest of one chunk, of any length."""
    return digest_of_blocks([block_digest(chunk[start:end]) for start, end in blocks_of(len(chunk))])


def digest_of_blocks(block_digests: Sequence[int]) -> int:
    """The digest of a chunk: that of its only block, else xxh3-64 over the digests of its blocks, in order."""
    return block_digests[0] if len(block_digests) == 1 else _digest_of_digests(block_digests)


def payload_digest(chunk_digests: Sequence[int]) -> int:
    """xxh3-64 over the chunk digests, in index order, as little-endian u64."""
    return _digest_of_digests(chunk_digests)


def blocks_of(length: int) -> Iterator[tuple[int, int]]:
    """Start and end of each block of `length` bytes; one empty block for none."""
    for start in range(0, max(1, length), BLOCK_BYTES):
        yield start, min(start + BLOCK_BYTES, length)


def _digest_of_digests(digests: Sequence[int]) -> int:
    packed = array.array("Q", digests)
    if sys.byteorder == "big":
        packed.byteswap()
    return xxhash.xxh3_64_intdigest(packed.tobytes())
