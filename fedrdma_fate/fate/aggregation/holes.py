"""Means of updates of which elements are missing. Arithmetic alone: no FATE, no network.

What is missing holds zeros (docs/bounded-loss.md), which are wrong weights. So no mean is told how to read them: what
is missing is taken out of the sum of the weights, or keeps what it was.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.wire.errors import ErrorCode, FateError

Array = npt.NDArray[Any]

Ranges = tuple[tuple[int, int], ...]
"""Of elements of one array, from the first to before the last, in C order; in ascending order, none overlapping."""

Holes = Mapping[int, Ranges]
"""What is missing of an update, by the number of the array; those of which nothing is are left out."""

_BLOCK_ELEMENTS = 1 << 16
"""Multiplied at once: 512 KiB, which stay in a processor's cache."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregate:
    """What a round came to.

    Attributes:
        arrays: the aggregate.
        elements: how many there are in it.
        kept: how many of them are those of the last aggregate.
    """

    arrays: list[Any]
    elements: int
    kept: int


class HoleyMean(Protocol):
    """Adds updates, one after the other, in the order of the ranks."""

    def add(self, arrays: Sequence[Any], weight: float | None, holes: Holes) -> None:
        """One more update.

        Raises:
            FateError: PAYLOAD_MALFORMED when it does not go with those before.
        """
        ...

    def finish(self, last: Sequence[Array] | None) -> Aggregate:
        """The aggregate; `last` is that of the round before.

        Raises:
            FateError: MESSAGE_INCOMPLETE when it is needed, and there is none of these shapes.
        """
        ...


class PlainMean:
    """For each element the weighted mean of those that came; where none came, the last aggregate.

    Without weights it is the sum, as FATE has it: so often the mean as there are updates.
    """

    def __init__(self) -> None:
        self._sums: list[Array] = []
        self._weights: list[float | None] = []
        self._holes: list[list[tuple[int, int, int]]] = []
        self._scratch: dict[np.dtype[Any], Array] = {}

    def add(self, arrays: Sequence[Any], weight: float | None, holes: Holes) -> None:
        """See `HoleyMean.add`."""
        values = [_as_array(each) for each in arrays]
        if self._weights and [each.shape for each in values] != [each.shape for each in self._sums]:
            raise malformed("arrays of an update have other shapes than those of another party's")
        if self._weights and (weight is None) != (self._weights[0] is None):
            raise malformed("an update has a weight, and one of another party has none")
        factor = 1.0 if weight is None else float(weight)
        if not self._weights:
            self._sums = [np.zeros(each.shape, _dtype_of_sum(each)) for each in values]
            self._holes = [[] for _ in values]
        for total, each in zip(self._sums, values, strict=True):
            self._add_scaled(total, each, factor)
        for number, ranges in holes.items():
            self._holes[number] += [(start, end, len(self._weights)) for start, end in ranges]
        self._weights.append(weight)

    def finish(self, last: Sequence[Array] | None) -> Aggregate:
        """See `HoleyMean.finish`."""
        weights = [1.0 if weight is None else float(weight) for weight in self._weights]
        # in the order of the ranks, from nought, as FATE adds them
        total = sum(weights, 0.0)
        is_sum = not self._weights or self._weights[0] is None
        kept = 0
        for number, (array, holes) in enumerate(zip(self._sums, self._holes, strict=True)):
            flat = array.reshape(-1)
            at = 0
            for start, end, lacking in _pieces(holes):
                if not is_sum:
                    flat[at:start] /= total
                at = end
                there = sum((weight for update, weight in enumerate(weights) if update not in lacking), 0.0)
                if not there:
                    flat[start:end] = _last(last, number, array)[start:end]
                    kept += end - start
                else:
                    flat[start:end] /= there / total if is_sum else there
            if not is_sum:
                flat[at:] /= total
        return Aggregate(list(self._sums), sum(array.size for array in self._sums), kept)

    def _add_scaled(self, total: Array, values: Array, factor: float) -> None:
        source = values.reshape(-1)
        flat = total.reshape(-1)
        if total.dtype not in self._scratch:
            self._scratch[total.dtype] = np.empty(_BLOCK_ELEMENTS, total.dtype)
        scratch = self._scratch[total.dtype]
        for start in range(0, flat.size, _BLOCK_ELEMENTS):
            block = source[start : start + _BLOCK_ELEMENTS]
            scaled = np.multiply(block, factor, out=scratch[: block.size], casting="same_kind")
            flat[start : start + block.size] += scaled


class MaskedMean:
    """Of masked updates: what one party lacks, in either of an array's two, keeps the last aggregate, for all.

    Masks cancel only where every party's element is there. So there is no mean of those that came: with one of them
    gone, what is left is the others' masks.
    """

    def __init__(self, sum_of_masked: Callable[[], Any]) -> None:
        """
        Args:
            sum_of_masked: makes FATE's own `MixAggregate`, which adds.
        """
        self._mix = sum_of_masked()
        self._weights: list[float] = []
        self._holes: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, arrays: Sequence[Any], weight: float | None, holes: Holes) -> None:
        """See `HoleyMean.add`; each of the arrays is a pair, and `holes` counts both of each."""
        self._mix.aggregate(arrays)
        if weight is not None:
            self._weights.append(weight)
        for number, ranges in holes.items():
            self._holes.setdefault(number // 2, []).extend((start, end, 0) for start, end in ranges)

    def finish(self, last: Sequence[Array] | None) -> Aggregate:
        """See `HoleyMean.finish`."""
        total = sum(self._weights, 0.0) if self._weights else None
        arrays: list[Array] = self._mix.finalize(total)
        kept = 0
        for number, holes in self._holes.items():
            if not arrays[number].flags.c_contiguous:
                arrays[number] = np.ascontiguousarray(arrays[number])
            flat = arrays[number].reshape(-1)
            for start, end, _ in _pieces(holes):
                flat[start:end] = _last(last, number, arrays[number])[start:end]
                kept += end - start
        return Aggregate(arrays, sum(array.size for array in arrays), kept)


def _pieces(holes: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, int, frozenset[int]]]:
    """Where something is missing, in pieces that the same updates lack: start, end, and which updates those are."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for start, end, update in holes:
        edges.setdefault(start, []).append((update, 1))
        edges.setdefault(end, []).append((update, -1))
    open_ranges: Counter[int] = Counter()
    begun = 0
    for at in sorted(edges):
        lacking = frozenset(update for update, count in open_ranges.items() if count)
        if lacking:
            yield begun, at, lacking
        for update, change in edges[at]:
            open_ranges[update] += change
        begun = at


def _last(last: Sequence[Array] | None, number: int, array: Array) -> Array:
    if last is None or number >= len(last) or np.shape(last[number]) != array.shape:
        raise FateError(
            ErrorCode.MESSAGE_INCOMPLETE,
            f"elements of array {number} are missing, and there is no aggregate of shape {array.shape} to keep.",
            "Let nothing be missing (`loss_tolerance: 0`) where models change their shapes from round to round.",
        )
    return np.asarray(last[number]).reshape(-1)


def _as_array(value: Any) -> Array:
    """An array's or a tensor's values; NumPy takes a tensor of the host without a copy."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise malformed(f"an update holds values of {array.dtype}")
    return array


def _dtype_of_sum(array: Array) -> np.dtype[Any]:
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)
