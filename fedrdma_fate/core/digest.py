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

TAGGED = 0
"""In place of the digest of a chunk whose bytes a tag has authenticated as they came, which says more."""

MISTAGGED = 1
"""In place of the same where a tag was wrong: the bytes are not what the peer has sealed, and have to come again."""


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


class DigestTable:
    """A mapping from 0 … count - 1 to digests of 64 bits.

    Raises:
        IndexError: for a number beyond `count`, everywhere but in `get`.
    """

    def __init__(self, count: int) -> None:
        self._values = array.array("Q", [0]) * count
        self._known = bytearray(count)
        self._left = count

    @property
    def complete(self) -> bool:
        """Whether every digest is known."""
        return not self._left

    def __contains__(self, number: int) -> bool:
        return bool(self._known[number])

    def __getitem__(self, number: int) -> int:
        """The digest.

        Raises:
            KeyError: it is not known.
        """
        if not self._known[number]:
            raise KeyError(number)
        return self._values[number]

    def get(self, number: int) -> int | None:
        """The digest, None when it is not known or there is no such number."""
        return self._values[number] if 0 <= number < len(self._known) and self._known[number] else None

    def __setitem__(self, number: int, digest: int) -> None:
        self._values[number] = digest
        self._left -= not self._known[number]
        self._known[number] = 1

    def tagged(self) -> set[int]:
        """Numbers of those that are TAGGED."""
        return {number for number, value in enumerate(self._values) if value == TAGGED and self._known[number]}

    def discard(self, number: int) -> None:
        """Forget one, if it is known."""
        self._left += self._known[number]
        self._known[number] = 0

    def in_order(self) -> Sequence[int]:
        """Every digest; only when `complete`."""
        return self._values
