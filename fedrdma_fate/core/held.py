"""Ranges of a payload's bytes: what of it lies in a slot, whatever it was cut into when it came, or does not."""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.wire.frames import MOST_HELD_RANGES

Ranges = tuple[tuple[int, int], ...]
"""Bytes of a payload: [start, end) each, ascending, none touching the next."""

Piece = tuple[int, int, int]
"""Bytes of a payload from one offset to another, and their digest, xxh3-64; 0 where it is not told."""

PIECE_BYTES = 1024 * 1024
"""The longest piece that has one digest: where its bytes are wrong, no more than that comes again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What a receiver knows to lie in its slot.

    Attributes:
        ranges: which bytes.
        tagged: a tag has vouched for all of them.
    """

    ranges: Ranges = ()
    tagged: bool = False


def ranges_of(chunks: Iterable[Chunk]) -> Ranges:
    """The bytes of these chunks: the longest MOST_HELD_RANGES stretches where there are more."""
    return longest(merged((chunk.offset, chunk.offset + chunk.length) for chunk in chunks))


def merged(stretches: Iterable[tuple[int, int]]) -> Ranges:
    """The bytes of these, which may touch each other and come in any order."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(end, ranges[-1][1])
        else:
            ranges.append((start, end))
    return tuple(ranges)


def longest(ranges: Ranges) -> Ranges:
    """As many of them as a peer is told."""
    if len(ranges) <= MOST_HELD_RANGES:
        return ranges
    return tuple(sorted(heapq.nlargest(MOST_HELD_RANGES, ranges, key=lambda stretch: stretch[1] - stretch[0])))


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Bytes of the first that are none of the others."""
    left: list[tuple[int, int]] = []
    following = iter(others)
    other = next(following, None)
    for start, end in ranges:
        at = start
        while other is not None and other[0] < end:
            if other[1] > at:
                if other[0] > at:
                    left.append((at, other[0]))
                at = other[1]
            if other[1] >= end:
                # it may cover some of the next range, too
                break
            other = next(following, None)
        if at < end:
            left.append((at, end))
    return tuple(left)


def are_ranges(told: Sequence[tuple[int, int]], total_bytes: int) -> bool:
    """Whether what a peer has told are ranges of so many bytes."""
    at = -1
    for start, end in told:
        if not at < start < end <= total_bytes:
            return False
        at = end
    return True


def chunks_within(plan: ChunkPlan, ranges: Ranges) -> Iterator[Chunk]:
    """Chunks of which all bytes lie in the ranges; those of a part only have to come whole."""
    left = iter(ranges)
    stretch = next(left, None)
    for chunk in plan:
        if chunk.index < plan.trailer_count:
            continue
        while stretch is not None and stretch[1] < chunk.offset + chunk.length:
            stretch = next(left, None)
        if stretch is None:
            return
        if stretch[0] <= chunk.offset:
            yield chunk


def lies_within(chunk: Chunk, ranges: Ranges) -> bool:
    """Whether all bytes of a chunk lie in the ranges."""
    at = bisect.bisect_right(ranges, (chunk.offset, math.inf)) - 1
    return at >= 0 and chunk.offset + chunk.length <= ranges[at][1]


def bytes_in(ranges: Iterable[tuple[int, int]]) -> int:
    """How many they are."""
    return sum(end - start for start, end in ranges)
