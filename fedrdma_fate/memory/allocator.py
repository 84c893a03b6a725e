"""Where slots lie in a region: which pages are free, and which of them the next slot gets."""

from __future__ import annotations

import bisect

from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

_SMALL_FRACTION = 16
"""A slot below 1/16 of the region is small."""


class SlotAllocator:
    """Hands out page-aligned ranges of [0, length); neighbours that are free are one hole.

    Small slots come and go often, so they are packed at the high end (highest hole that fits), while large slots take
    the tightest hole from the low end: small ones then never sit in the middle of what a large one needs.
    """

    def __init__(self, length: int, page: int = 4096) -> None:
        """Manage `length` bytes, in multiples of `page` bytes.

        Raises:
            ValueError: length is not a positive multiple of page.
        """
        if page <= 0 or length <= 0 or length % page:
            raise ValueError(f"a positive multiple of {page} bytes is needed, not {length}")
        self._length = length
        self._page = page
        # two parallel lists in address order: where each hole starts and how long it is
        self._hole_starts: list[int] = [0]
        self._hole_lengths: list[int] = [length]
        self._allocated: dict[int, int] = {}
        self._free_bytes = length

    @property
    def length(self) -> int:
        """Bytes managed."""
        return self._length

    @property
    def free_bytes(self) -> int:
        """Bytes not allocated, in however many holes."""
        return self._free_bytes

    @property
    def largest_free(self) -> int:
        """Bytes of the largest hole: the longest slot that could be had now."""
        return max(self._hole_lengths, default=0)

    def rounded(self, length: int) -> int:
        """Bytes that a slot of `length` bytes takes up: whole pages, at least one."""
        return max(-(-length // self._page), 1) * self._page

    def allocate(self, length: int, keep: int = 0) -> int | None:
        """The offset of a range that holds `length` bytes, or None when no hole is long enough.

        Args:
            length: bytes.
            keep: a hole of so many bytes is to be left, or where none is so long now, one as long as the longest.

        Raises:
            ValueError: length is negative.
        """
        if length < 0:
            raise ValueError(f"a slot cannot have {length} bytes")
        needed = self.rounded(length)
        small = needed * _SMALL_FRACTION < self._length
        fitting = self._fitting_holes(needed, keep)
        hole = fitting[-1] if small and fitting else min(fitting, key=self._hole_lengths.__getitem__, default=None)
        if hole is None:
            return None
        offset = self._cut(hole, needed, from_end=small)
        self._allocated[offset] = needed
        self._free_bytes -= needed
        return offset

    def allocate_at(self, offset: int, length: int) -> bool:
        """Allocate just this range, page-aligned, which somebody had before; False where it is not free, or none.

        Raises:
            ValueError: length is negative.
        """
        if length < 0:
            raise ValueError(f"a slot cannot have {length} bytes")
        needed = self.rounded(length)
        hole = bisect.bisect_right(self._hole_starts, offset) - 1
        if offset % self._page or hole < 0:
            return False
        start, free = self._hole_starts[hole], self._hole_lengths[hole]
        if offset + needed > start + free:
            return False
        pieces = [(start, offset - start), (offset + needed, start + free - offset - needed)]
        left = [(at, piece) for at, piece in pieces if piece]
        self._hole_starts[hole : hole + 1] = [at for at, _ in left]
        self._hole_lengths[hole : hole + 1] = [piece for _, piece in left]
        self._allocated[offset] = needed
        self._free_bytes -= needed
        return True

    def holes(self) -> list[tuple[int, int]]:
        """What is free: offsets and lengths."""
        return list(zip(self._hole_starts, self._hole_lengths, strict=True))

    def free(self, offset: int) -> None:
        """Take back the range that `allocate` returned as `offset`.

        Raises:
            MemoryPoolError: LEASE_UNKNOWN when nothing is allocated there.
        """
        length = self._allocated.pop(offset, None)
        if length is None:
            raise MemoryPoolError(ErrorCode.LEASE_UNKNOWN, f"no slot is leased at offset {offset}.")
        self._free_bytes += length
        self._insert_hole(offset, length)

    def shrink(self, offset: int, length: int) -> int:
        """Take back the end of a range, beyond `length` bytes; how many bytes that were.

        Raises:
            MemoryPoolError: LEASE_UNKNOWN when nothing is allocated there.
        """
        held, kept = self._allocated.get(offset), self.rounded(length)
        if held is None:
            raise MemoryPoolError(ErrorCode.LEASE_UNKNOWN, f"no slot is leased at offset {offset}.")
        if kept >= held:
            return 0
        self._allocated[offset] = kept
        self._free_bytes += held - kept
        self._insert_hole(offset + kept, held - kept)
        return held - kept

    def _fitting_holes(self, needed: int, keep: int) -> list[int]:
        """The holes that may be cut, in address order."""
        fitting = [index for index, length in enumerate(self._hole_lengths) if length >= needed]
        if not keep or not fitting:
            return fitting
        longest = max(range(len(self._hole_lengths)), key=self._hole_lengths.__getitem__)
        left = self._hole_lengths[longest] - needed
        others = max((length for index, length in enumerate(self._hole_lengths) if index != longest), default=0)
        if max(left, others) < min(keep, self._hole_lengths[longest]):
            # it is the one that is to be left
            fitting = [index for index in fitting if index != longest]
        return fitting

    def _cut(self, hole: int, needed: int, *, from_end: bool) -> int:
        start, length = self._hole_starts[hole], self._hole_lengths[hole]
        if length == needed:
            del self._hole_starts[hole], self._hole_lengths[hole]
            return start
        self._hole_lengths[hole] = length - needed
        if from_end:
            return start + length - needed
        self._hole_starts[hole] = start + needed
        return start

    def _insert_hole(self, start: int, length: int) -> None:
        index = bisect.bisect_left(self._hole_starts, start)
        if index < len(self._hole_starts) and start + length == self._hole_starts[index]:
            length += self._hole_lengths[index]
            del self._hole_starts[index], self._hole_lengths[index]
        if index and self._hole_starts[index - 1] + self._hole_lengths[index - 1] == start:
            self._hole_lengths[index - 1] += length
            return
        self._hole_starts.insert(index, start)
        self._hole_lengths.insert(index, length)
