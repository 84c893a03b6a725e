"""What of a payload lies in a slot already, from an earlier data path, whatever it was cut into there."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Sequence

from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.wire.frames import MOST_HELD_RANGES

Ranges = tuple[tuple[int, int], ...]
"""Bytes of a payload: [start, end) each, ascending, none touching the next."""


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
    merged: list[tuple[int, int]] = []
    for start, end in sorted((chunk.offset, chunk.offset + chunk.length) for chunk in chunks):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    if len(merged) > MOST_HELD_RANGES:
        merged = sorted(heapq.nlargest(MOST_HELD_RANGES, merged, key=lambda stretch: stretch[1] - stretch[0]))
    return tuple(merged)


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


def bytes_in(ranges: Ranges) -> int:
    """How many they are."""
    return sum(end - start for start, end in ranges)
