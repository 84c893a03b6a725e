"""Which elements of an object's arrays are missing, where both tasks have let some be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fedrdma_fate.fate.layout import Segment
from fedrdma_fate.fate.segments import item_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class MissingElements:
    """Of one array or tensor; where they are missing it holds zeros.

    Attributes:
        array: how many-th it is of all arrays and tensors of the object, in the order in which pickle meets them.
        ranges: of elements, from the first to before the last, in C order.
    """

    array: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """How many elements those are."""
        return sum(end - start for start, end in self.ranges)


def missing_elements(
    segments: Sequence[Segment], raw_at: int, missing: Iterable[tuple[int, int]], met: Sequence[int]
) -> tuple[MissingElements, ...]:
    """Which elements lie in what is missing.

    Args:
        segments: the segment table.
        raw_at: where in the payload the segments start.
        missing: ranges of the payload's bytes.
        met: numbers of the segments that are arrays or tensors, in the order in which pickle meets them.
    """
    holes = list(missing)
    found = []
    for array, number in enumerate(met):
        segment = segments[number]
        start = raw_at + segment.offset
        end = start + segment.length
        width = item_bytes(segment)
        ranges = [
            ((max(first, start) - start) // width, -(-(min(last, end) - start) // width))
            for first, last in holes
            if first < end and last > start
        ]
        if ranges:
            found.append(MissingElements(array, tuple(ranges)))
    return tuple(found)
