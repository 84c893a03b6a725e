"""How many updates a host adds at once: the paper's appendix E, with a gateway's workers and without a gateway.

Updates come by chance, more a second from step to step, each to the sum that has the fewest waiting, and each sum has a
worker. Of each step, the mean time from an update's arrival to its addition's end. Where that is significantly more
than of an update that comes alone, the host is overloaded: its capacity is the rate there times that time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np

from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.aggregate.worker_pool import most_workers
from fedrdma_fate.bench.aggregate_adder import Adder, SharedMemory, Update
from fedrdma_fate.bench.aggregate_setting import AggregateSetting
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.report import DataTable

SIGNIFICANT = 2.0
"""Times what an update takes that comes alone: it has waited as long as it was added. The paper has no number."""

_STEPS = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
"""Of the rate at which all workers would be busy all the time."""

_ALONE = 8
"""Updates that come alone; the median counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityStep:
    """At one rate.

    Attributes:
        updates_per_second: that came.
        seconds: from an arrival to the end of its addition, the mean.
    """

    updates_per_second: float
    seconds: float

    @property
    def at_once(self) -> float:
        """Updates that are being added or wait."""
        return self.updates_per_second * self.seconds


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """What was found.

    Attributes:
        workers: that have added.
        update_bytes: of each update.
        alone_seconds: of an update that comes alone.
        steps: up to the one that is overloaded, if any is.
        capacity: updates at once; None where no step was overloaded.
    """

    workers: int
    update_bytes: int
    alone_seconds: float
    steps: tuple[CapacityStep, ...]
    capacity: float | None


def measure_capacity(
    setting: AggregateSetting, update: Update, arrivals: int, tell: Callable[[str], object]
) -> Capacity:
    """Raise the rate until additions take significantly longer.

    Args:
        setting: whose updates.
        update: one.
        arrivals: updates of a step.
        tell: told of each step.

    Raises:
        RowError: there is no memory, or a worker could not add.
    """
    try:
        return asyncio.run(_measure(setting, update, arrivals, tell))
    except (OSError, WorkerLostError) as error:
        raise RowError(f"a worker could not add: {error}") from error


async def _measure(setting: AggregateSetting, update: Update, arrivals: int, tell: Callable[[str], object]) -> Capacity:
    workers = most_workers(None)
    with contextlib.ExitStack() as stack:
        memory = SharedMemory(stack, setting.update_bytes)
        memory.mapping[:] = update.tobytes()
        host = _Host([Adder(stack, setting, "exact") for _ in range(workers)], memory, arrivals)
        alone = await host.alone()
        steps: list[CapacityStep] = []
        for share in _STEPS:
            tell(f"capacity, {share:g} of the rate of one after the other")
            steps.append(await host.step(share * workers / alone))
            if steps[-1].seconds > SIGNIFICANT * alone:
                return Capacity(workers, setting.update_bytes, alone, tuple(steps), steps[-1].at_once)
        return Capacity(workers, setting.update_bytes, alone, tuple(steps), None)


class _Host:
    def __init__(self, adders: list[Adder], memory: SharedMemory, arrivals: int) -> None:
        self._adders = adders
        self._memory = memory
        self._arrivals = arrivals
        self._waiting = dict.fromkeys(range(len(adders)), 0)
        self._chance = np.random.default_rng(1)
        for adder in adders:
            # so many that no sum is ever whole
            adder.begin(1, 1 + _ALONE + len(_STEPS) * arrivals)

    async def alone(self) -> float:
        """Seconds of an update that comes alone."""
        for number in self._waiting:
            # the first is written, not added, and its worker starts
            await self._add(number)
        return statistics.median([await self._add(number % len(self._adders)) for number in range(_ALONE)])

    async def step(self, rate: float) -> CapacityStep:
        """Have updates come at this rate."""
        loop = asyncio.get_running_loop()
        due = started = loop.time()
        coming = []
        for _ in range(self._arrivals):
            due += self._chance.exponential(1 / rate)
            await asyncio.sleep(max(0.0, due - loop.time()))
            number = min(self._waiting, key=lambda each: self._waiting[each])
            coming.append(asyncio.create_task(self._add(number)))
        # as many a second as did come, which on a busy host are fewer
        came = self._arrivals / (loop.time() - started)
        return CapacityStep(came, statistics.mean(await asyncio.gather(*coming)))

    async def _add(self, number: int) -> float:
        began, adder = time.monotonic(), self._adders[number]
        self._waiting[number] += 1
        async with adder.turn:
            await adder.add(self._memory.descriptor, 0)
        self._waiting[number] -= 1
        return time.monotonic() - began


def capacity_document(found: Capacity) -> dict[str, object]:
    """For programs."""
    steps = [{**dataclasses.asdict(step), "at_once": step.at_once} for step in found.steps]
    return {**dataclasses.asdict(found), "steps": steps}


def capacity_table(setting: AggregateSetting, found: Capacity) -> DataTable:
    """For people."""
    told = "more than the steps show" if found.capacity is None else f"{found.capacity:.1f} updates at once"
    title = (
        f"Capacity: {told}; {found.workers} workers, updates of {setting.model} ({found.update_bytes / 1e6:.1f} MB), "
        f"{1000 * found.alone_seconds:.1f} ms alone; the paper's nodes of 64 cores: 20"
    )
    rows = [
        (f"{step.updates_per_second:.1f}/s", f"{1000 * step.seconds:.1f} ms", f"{step.at_once:.2f}")
        for step in found.steps
    ]
    return DataTable(title, ("updates come", "each takes", "at once"), rows)
