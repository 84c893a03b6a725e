"""A worker of a gateway, its sum and updates in shared memory, without the gateway: for rows that add by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import math
import mmap
import os
import time
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Add, Begin, Done, End
from fedrdma_fate.aggregate.place import MARK_BYTES, accumulator_bytes
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.bench.aggregate_setting import AggregateSetting
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.processes import cpu_seconds
from fedrdma_fate.core.fold import Order

Update = npt.NDArray[np.uint8]


class SharedMemory:
    """A piece of shared memory."""

    def __init__(self, stack: contextlib.ExitStack, length: int) -> None:
        self.descriptor = memory_files.make("bench-update")
        stack.callback(os.close, self.descriptor)
        os.ftruncate(self.descriptor, length)
        self.mapping = mmap.mmap(self.descriptor, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


class Adder:
    """A leaf, or the top: a worker and its sum."""

    def __init__(
        self, stack: contextlib.ExitStack, setting: AggregateSetting, order: Literal["exact", "rank"] = "rank"
    ) -> None:
        self.memory = SharedMemory(stack, accumulator_bytes(Order(order), setting.update_bytes))
        self._order = order
        self.turn = asyncio.Lock()
        self._setting = setting
        self._worker = WorkerHandle()
        stack.callback(self._worker.close)
        self._worker.prepare()

    @property
    def process_id(self) -> int:
        """Of its process."""
        return self._worker.process_id or 0

    def begin(self, sum_id: int, updates: int) -> None:
        """The next sum, of so many updates."""
        length = len(self.memory.mapping)
        self.memory.mapping[:MARK_BYTES] = bytes(MARK_BYTES)
        self.opened = OpenSum(
            Begin(sum_id, self._order, updates, self._setting.shapes, 0, length), self.memory.descriptor
        )
        self.left, self._added = updates, 0

    async def add(self, descriptor: int, offset: int) -> float:
        """Add what lies there, to be called when it is its turn; when its worker began, by time.monotonic."""
        self._added += 1
        answer = await self._worker.do(
            Add(self.opened.begin.sum_id, self._added, offset, True), self.opened, descriptor
        )
        if not isinstance(answer, Done):
            raise RowError(f"a worker has not added: {answer}")
        self.left -= 1
        return answer.began

    async def end(self) -> None:
        """The sum is over."""
        await self._worker.do(End(self.opened.begin.sum_id), self.opened)


def exact_addition(setting: AggregateSetting, update: Update, repeats: int) -> tuple[float, float]:
    """What a worker takes to add one update to others in order `exact`: seconds, and those of its processor; the best.

    Raises:
        RowError: there is no memory, or no worker could add.
    """
    try:
        return asyncio.run(_exact_addition(setting, update, repeats))
    except (OSError, WorkerLostError) as error:
        raise RowError(f"a worker could not add: {error}") from error


async def _exact_addition(setting: AggregateSetting, update: Update, repeats: int) -> tuple[float, float]:
    with contextlib.ExitStack() as stack:
        memory, adder = SharedMemory(stack, setting.update_bytes), Adder(stack, setting, "exact")
        memory.mapping[:] = update.tobytes()
        adder.begin(1, repeats + 1)
        # the first is written, not added
        await adder.add(memory.descriptor, 0)
        best = math.inf, math.inf
        for _ in range(repeats):
            used, started = cpu_seconds([adder.process_id]), time.monotonic()
            await adder.add(memory.descriptor, 0)
            best = min(best, (time.monotonic() - started, cpu_seconds([adder.process_id]) - used))
        return best
