"""Writes many arrays into one buffer, from its end to its start, and digests each block while it lies in the cache.

Several threads do it: one core alone does not fill the memory bus. From the end, because that is where `fedrdma-e`
begins to send.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedrdma_fate.core.digest import BLOCK_BYTES, block_digest

UNIT_BYTES = 8 * BLOCK_BYTES
"""What a thread writes before it looks for more."""

FIRST_PROGRESS_BYTES = 8 * 2**20
"""Written before it is told for the first time; then as much again as is known, up to MOST_PROGRESS_BYTES."""

MOST_PROGRESS_BYTES = 64 * 2**20
"""At most so much is written before it is told: what a link sends meanwhile must not run out."""

_MOST_THREADS = 4
"""That copy: a few fill the memory bus, and the cores are for other tasks as well."""
_BYTES_PER_THREAD = 16 * 2**20
"""Below, starting a thread costs more than it saves."""

Array = npt.NDArray[Any]

Progress = Callable[[int, Sequence[int]], None]
"""Told that everything lies there from this offset on, with the digests of its blocks that were not told before, the
first of them from there on; with none where none are computed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Values, and where in the buffer they belong, as `storage` items in C order.

    Attributes:
        start: first byte.
        length: bytes.
        storage: dtype of the items.
        read: the values, in host memory.
    """

    start: int
    length: int
    storage: np.dtype[Any]
    read: Callable[[], npt.NDArray[Any]]


def raw_placement(start: int, data: bytes) -> Placement:
    """Bytes as they are."""
    values = np.frombuffer(data, np.uint8)
    return Placement(start, len(data), values.dtype, lambda: values)


class _Piece(NamedTuple):
    """Values that belong to [start, end) of the buffer: their place there, and whether they can be cut anywhere."""

    start: int
    end: int
    place: Array
    values: Array
    is_raw: bool


class _Unit(NamedTuple):
    """The piece [start, end) of the buffer, start a multiple of UNIT_BYTES, and what belongs there, the last first."""

    start: int
    end: int
    pieces: list[_Piece]

    def write(self) -> None:
        """Write it."""
        for piece in self.pieces:
            np.copyto(piece.place, piece.values)

    def write_and_digest(self, buffer: memoryview) -> list[int]:
        """Write it block by block; the digests of its blocks, from the lowest on."""
        digests: list[int] = []
        for start, end, place, values, is_raw in self.pieces:
            at = end
            while at > start:
                begin = max(start, _start_of_block(at - 1)) if is_raw else start
                if is_raw:
                    np.copyto(place[begin - start : at - start], values[begin - start : at - start])
                else:
                    np.copyto(place, values)
                for first in range(_start_of_block(at - 1), begin - 1, -BLOCK_BYTES):
                    digests.append(block_digest(buffer[first : min(first + BLOCK_BYTES, self.end)]))
                at = begin
        digests.reverse()
        return digests


def write_backwards(
    placements: Iterable[Placement], buffer: memoryview, progress: Progress | None = None, *, digests: bool = True
) -> None:
    """Write all of them; the iterable is asked by one thread at a time, and so are their values.

    Args:
        placements: the last first; they cover the buffer without gaps.
        buffer: writable.
        progress: told how far it has come, each time by one thread.
        digests: whether it is told digests; without, they are not computed.
    """
    written = None if progress is None else _WrittenUnits(len(buffer), progress)
    units = _cut_into_units(placements, buffer)
    turn = threading.Lock()

    def work() -> None:
        while (unit := _next(units, turn)) is not None:
            if written is None:
                unit.write()
            elif digests:
                written.note(unit, unit.write_and_digest(buffer))
            else:
                unit.write()
                written.note(unit, [])

    # whoever is told has work to do on the way: it needs a core as well
    cores = len(os.sched_getaffinity(0)) - (progress is not None)
    helpers = min(_MOST_THREADS, cores, len(buffer) // _BYTES_PER_THREAD) - 1
    if helpers < 1:
        work()
        return
    with ThreadPoolExecutor(helpers, thread_name_prefix="copy") as pool:
        others = [pool.submit(work) for _ in range(helpers)]
        work()
    for other in others:
        other.result()


class _WrittenUnits:
    """Which units are written, and what was told of them. Used by all threads."""

    def __init__(self, total_bytes: int, progress: Progress) -> None:
        self._progress = progress
        self._written_from = total_bytes
        self._told_from = total_bytes
        self._due_bytes = FIRST_PROGRESS_BYTES
        self._ahead: dict[int, tuple[int, list[int]]] = {}
        self._untold: list[list[int]] = []
        self._lock = threading.Lock()

    def note(self, unit: _Unit, block_digests: list[int]) -> None:
        """A unit is written; its blocks have these digests."""
        with self._lock:
            self._ahead[unit.end] = unit.start, block_digests
            while (below := self._ahead.pop(self._written_from, None)) is not None:
                self._written_from, digests = below
                self._untold.append(digests)
            due = self._told_from - self._written_from >= self._due_bytes
            if self._untold and (due or not self._written_from):
                self._tell()

    def _tell(self) -> None:
        untold = [digest for digests in reversed(self._untold) for digest in digests]
        self._untold.clear()
        self._due_bytes = min(2 * self._due_bytes, MOST_PROGRESS_BYTES)
        self._told_from = self._written_from
        self._progress(self._written_from, untold)


def _cut_into_units(placements: Iterable[Placement], buffer: memoryview) -> Iterator[_Unit]:
    """Values that lie as they shall be written are cut where a unit begins; around any others, the unit grows."""
    whole: npt.NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
    end = len(buffer)
    start = _start_of_unit(end - 1)
    pieces: list[_Piece] = []
    for placement in placements:
        at = placement.start + placement.length
        values = placement.read() if placement.length else None
        while values is not None and at > placement.start:
            if values.flags.c_contiguous and values.dtype == placement.storage:
                begin = max(start, placement.start)
                raw: npt.NDArray[np.uint8] = values.reshape(-1).view(np.uint8)
                piece = raw[begin - placement.start : at - placement.start]
                pieces.append(_Piece(begin, at, whole[begin:at], piece, is_raw=True))
            else:
                begin = placement.start
                start = min(start, _start_of_unit(begin))
                place: Array = np.ndarray(values.shape, placement.storage, buffer=buffer[begin:at])
                pieces.append(_Piece(begin, at, place, values, is_raw=False))
            at = begin
            if at == start:
                yield _Unit(start, end, pieces)
                start, end, pieces = start - UNIT_BYTES, start, []


def _start_of_unit(offset: int) -> int:
    return max(0, offset) // UNIT_BYTES * UNIT_BYTES


def _start_of_block(offset: int) -> int:
    return offset // BLOCK_BYTES * BLOCK_BYTES


def _next(units: Iterator[_Unit], turn: threading.Lock) -> _Unit | None:
    with turn:
        return next(units, None)
