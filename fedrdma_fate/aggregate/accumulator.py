"""A sum in shared memory that outlives whoever adds to it: nothing is added twice, and nothing is missing.

The slot begins with a mark, one word of eight bytes, and a block that is kept aside (`place.py`). Each block of the sum
is changed in two steps:

1. The new values are written aside, and the mark says that they are complete.
2. They are copied into the sum, and the mark says that this is done.

A worker that is killed in step 1 has changed nothing of the sum; the next one writes the block aside anew. One that is
killed in step 2 may have copied some of it; the next one copies all of it again, which changes nothing twice. A process
ends between two instructions, and of those before all stores are made and of those behind none, so whoever comes next
finds the mark at one of these steps.

The mark: number of the update (from 1), number of the block, and what is being done, see `_Step`.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedrdma_fate.aggregate.arithmetic import Adder, Compensated, Exact, UnfitError
from fedrdma_fate.aggregate.place import BLOCK_ITEMS, MARK_BYTES, NUMBER_SHIFT, PLANES_AT, planes_at
from fedrdma_fate.core.fold import Order
from fedrdma_fate.wire.summand import ITEM_BYTES, Plane, next_line

_STEP_BITS = 3
"""There are four steps, and room for as many more."""
_BLOCK_BITS = NUMBER_SHIFT - _STEP_BITS
MOST_UPDATES = 1 << (64 - NUMBER_SHIFT - 1)
"""Numbers of updates that fit into the mark, the last of them for `finish`."""

_FINISH = MOST_UPDATES - 1
"""What `finish` is in the mark."""

Floats = npt.NDArray[np.float64]


class _Step(enum.IntEnum):
    """What is being done; `block` is how many blocks of the update are in the sum, from the first on."""

    ADD = 0
    COPY = 1
    """Block `block` lies aside, and is to be copied into the sum; then it is in."""
    UNDO = 2
    COPY_UNDONE = 3
    """Block `block - 1` lies aside, without the update, and is to be copied into the sum; then it is out."""


class _Mark(NamedTuple):
    update: int
    block: int
    step: _Step


class _Block(NamedTuple):
    """A piece of a plane: the first byte behind the start of the planes, how many items, and of what plane."""

    offset: int
    items: int
    whole: bool


class Accumulator:
    """A sum, as one process sees it."""

    def __init__(self, memory: memoryview, planes: Sequence[Plane], adder: Adder | Compensated) -> None:
        """
        Args:
            memory: the slot, writable; its mark is zero before the first update.
            planes: what the sum, and each update, is made of.
            adder: how to add.

        Raises:
            ValueError: the planes do not lie in the slot.
        """
        self._adder = adder
        is_compensated = isinstance(adder, Compensated)
        self._blocks = list(_cut(planes, BLOCK_ITEMS // 2 if is_compensated else BLOCK_ITEMS))
        self._mark: npt.NDArray[np.uint64] = np.frombuffer(memory, np.uint64, 1)
        self._aside: Floats = np.frombuffer(memory, np.float64, BLOCK_ITEMS, MARK_BYTES)
        length = planes[-1].offset + next_line(max(planes[-1].items * ITEM_BYTES, 1)) if planes else 0
        first = planes_at(Order.ARRIVAL, length) if is_compensated else PLANES_AT
        if any(first + plane.offset + plane.items * ITEM_BYTES > len(memory) for plane in planes):
            raise ValueError("the planes do not lie in the slot")
        self._sums = [_items(memory, first, block) for block in self._blocks]
        # what was rounded away, where that is kept
        self._lost = [_items(memory, PLANES_AT, block) for block in self._blocks] if is_compensated else []
        self._scratch: Floats | None = None

    @property
    def begun(self) -> int:
        """Number of the update that was begun last, be all of it in or not."""
        return self._read().update

    def add(self, number: int, update: memoryview, first: int, parties: int = 0) -> None:
        """Add an update, or go on with it where somebody has begun; what is in already is not added again.

        Args:
            number: of the update, from 1 on, without gaps.
            update: the bytes it lies in.
            first: where in them its first plane begins.
            parties: where it is no update but a sum of so many, that was not finished; else 0.

        Raises:
            UnfitError: it cannot be added; the sum is without it, as it was before.
            ValueError: it is not this update's turn, or its planes do not lie in these bytes; or sums of this order
                cannot be added to one another.
        """
        if parties and not isinstance(self._adder, Exact):
            raise ValueError("only exact sums can be added to one another")
        values = [_items(update, first, block) for block in self._blocks]
        if self._begin(number):
            return
        mark = self._recover()
        if mark.step is _Step.ADD:
            try:
                for block in range(mark.block, len(self._blocks)):
                    self._add(number, block, values[block], parties)
                return
            except UnfitError:
                self._set(number, self._read().block, _Step.UNDO)
                self._undo(number, values, parties)
                raise
        self._undo(number, values, parties)
        raise UnfitError("it cannot be added, as was found before")

    def finish(self) -> None:
        """Make float64 of what was added; nothing can be added afterwards. May be repeated."""
        if not isinstance(self._adder, Compensated) and not self._adder.finishes:
            return
        mark = self._recover()
        if mark.update != _FINISH:
            self._set(_FINISH, 0, _Step.ADD)
            mark = self._read()
        for number in range(mark.block, len(self._blocks)):
            block, sums = self._blocks[number], self._sums[number]
            if isinstance(self._adder, Compensated):
                self._adder.finish((sums, self._lost[number]), self._both_aside(block.items))
                self._commit(_FINISH, number)
                continue
            if block.whole:
                # they were float64 all the time
                self._set(_FINISH, number + 1, _Step.ADD)
                continue
            self._adder.finish(sums, self._aside[: block.items])
            self._commit(_FINISH, number)

    def add_last(self, total: Accumulator, update: memoryview, first: int, span: range, parties: int = 0) -> None:
        """Write what this sum is with an update to another one, finished, of the blocks that begin in some bytes.

        Nothing changes here, so it may be done again, with the same update or with another one. When all of it is done,
        `be_finished` is to be called there.

        Args:
            total: of the same planes; holds anything there.
            update: the bytes it lies in.
            first: where in them its first plane begins.
            span: bytes behind that; blocks that begin in there have to lie in `update`, the others need not yet.
            parties: as in `add`.

        Raises:
            UnfitError: it cannot be added; `total` holds anything there.
            ValueError: this sum is not exact, or is being added to, or finished.
        """
        if not isinstance(self._adder, Exact):
            raise ValueError("only to an exact sum the last update is added so")
        mark = self._read()
        if mark.block != len(self._blocks) or mark.step is not _Step.ADD or mark.update in (0, _FINISH):
            raise ValueError(f"the sum is not to be added to: {mark}")
        if self._scratch is None:
            self._scratch = np.empty(BLOCK_ITEMS)
        for number in range(self._first_block(span.start), self._first_block(span.stop)):
            block, sums, result = self._blocks[number], self._sums[number], total._sums[number]
            values, sum_of_both = _items(update, first, block), result if block.whole else self._scratch[: block.items]
            if parties:
                self._adder.merge(sums, values, sum_of_both, whole=block.whole, parties=parties)
            else:
                self._adder.add(sums, values, sum_of_both, whole=block.whole)
            if not block.whole:
                self._adder.finish(sum_of_both, result)

    def be_finished(self) -> None:
        """All of it was written by `add_last` of another one."""
        self._set(_FINISH, len(self._blocks), _Step.ADD)

    def _first_block(self, offset: int) -> int:
        """The first one that begins there or behind."""
        return bisect.bisect_left(self._blocks, offset, key=lambda block: block.offset)

    def _begin(self, number: int) -> bool:
        """Whether all of the update is in already; else it is begun, or goes on."""
        mark = self._read()
        done = mark.block == len(self._blocks) and mark.step is _Step.ADD
        if mark.update == number:
            return done
        if mark.update != number - 1 or not (done or not mark.update):
            raise ValueError(f"update {number} is not next: {mark}")
        self._set(number, 0, _Step.ADD)
        return False

    def _recover(self) -> _Mark:
        """Finish what may have been interrupted in the middle of a block."""
        mark = self._read()
        if mark.step is _Step.COPY:
            self._copy(mark.block)
            self._set(mark.update, mark.block + 1, _Step.ADD)
        elif mark.step is _Step.COPY_UNDONE:
            self._copy(mark.block - 1)
            self._set(mark.update, mark.block - 1, _Step.UNDO)
        return self._read()

    def _add(self, number: int, block: int, values: Floats, parties: int) -> None:
        sums, whole = self._sums[block], self._blocks[block].whole
        if isinstance(self._adder, Compensated):
            state = None if number == 1 else (sums, self._lost[block])
            self._adder.add(state, values, self._both_aside(len(values)))
        else:
            before, aside = None if number == 1 else sums, self._aside[: len(values)]
            if parties:
                assert isinstance(self._adder, Exact)
                self._adder.merge(before, values, aside, whole=whole, parties=parties)
            else:
                self._adder.add(before, values, aside, whole=whole)
        self._commit(number, block)

    def _both_aside(self, items: int) -> tuple[Floats, Floats]:
        """A block that is kept aside, and what was rounded away of it."""
        return self._aside[:items], self._aside[items : 2 * items]

    def _undo(self, number: int, values: Sequence[Floats], parties: int) -> None:
        """Take the blocks that are in out again, from the last on; of a first update there is nothing to keep."""
        # nothing is unfit for the other
        assert not isinstance(self._adder, Compensated)
        for block in range(self._read().block - 1, -1, -1):
            aside = self._aside[: len(values[block])]
            sums, whole = self._sums[block], self._blocks[block].whole
            if parties:
                assert isinstance(self._adder, Exact)
                self._adder.unmerge(sums, values[block], aside, whole=whole)
            else:
                self._adder.subtract(sums, values[block], aside, whole=whole)
            self._set(number, block + 1, _Step.COPY_UNDONE)
            self._copy(block)
            self._set(number, block, _Step.UNDO)
        # as if it had never come: the next one has its number
        self._set(number - 1, len(self._blocks) if number > 1 else 0, _Step.ADD)

    def _commit(self, number: int, block: int) -> None:
        self._set(number, block, _Step.COPY)
        self._copy(block)
        self._set(number, block + 1, _Step.ADD)

    def _copy(self, block: int) -> None:
        sums = self._sums[block]
        np.copyto(sums, self._aside[: len(sums)])
        if self._lost:
            np.copyto(self._lost[block], self._aside[len(sums) : 2 * len(sums)])

    def _read(self) -> _Mark:
        word = int(self._mark[0])
        block = (word >> _STEP_BITS) & ((1 << _BLOCK_BITS) - 1)
        return _Mark(word >> (NUMBER_SHIFT), block, _Step(word & ((1 << _STEP_BITS) - 1)))

    def _set(self, update: int, block: int, step: _Step) -> None:
        # one store of eight aligned bytes
        self._mark[0] = (update << (NUMBER_SHIFT)) | (block << _STEP_BITS) | step


def _cut(planes: Sequence[Plane], items: int) -> list[_Block]:
    return [
        _Block(plane.offset + at * ITEM_BYTES, min(items, plane.items - at), plane.whole)
        for plane in planes
        for at in range(0, plane.items, items)
    ]


def _items(memory: memoryview, first: int, block: _Block) -> Any:
    return np.frombuffer(memory, np.float64, block.items, first + block.offset)
