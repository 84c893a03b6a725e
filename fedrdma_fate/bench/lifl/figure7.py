"""Figure 7(a) and (b), measured: one update from a leaf to the top, seconds and processors.

Ours: the leaf writes it into shared memory, where the top's worker is told of it; in place, the leaf's sum lies there
anyhow. The others are processes joined by gRPC (`hops.py`). It ends when the top has it whole and adds nothing yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.bench.aggregate_adder import Adder, SharedMemory
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.lifl.figure4 import times
from fedrdma_fate.bench.lifl.figure8 import NOT_STATED
from fedrdma_fate.bench.lifl.hops import Moved, Stage, by_each_system, median_of, over_stages
from fedrdma_fate.bench.processes import cpu_seconds
from fedrdma_fate.bench.report import DataTable

_STAGES: dict[str, tuple[Stage, ...]] = {
    "SF": (),
    "SF and broker": ("store",),
    "SL": ("proxy", "store", "proxy"),
}
"""What an update passes between leaf and top."""

SYSTEMS = ("ours", "ours, in place", *_STAGES)

_TINY = 10_000
"""Parameters of an update whose addition is next to nothing beside the notice of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hop:
    """One update by one system.

    Attributes:
        model: whose update.
        update_bytes: its length.
        system: of SYSTEMS.
        seconds: from the leaf to the top, the median.
        least_seconds: likewise, the shortest.
        cpu_seconds: of all processes, the median; of ours with the addition of a tiny update, so no less than it is.
        times_ours: its seconds by those of ours; None where ours was not measured.
        cpu_times_ours: its processor time, likewise.
        paper: what the text states.
    """

    model: str
    update_bytes: int
    system: str
    seconds: float
    least_seconds: float
    cpu_seconds: float
    times_ours: float | None
    cpu_times_ours: float | None
    paper: str


def stated(model: str, system: str) -> str:
    """What the paper's text says of a system's time; it has no numbers of processors."""
    of_largest = model == "resnet152"
    match system:
        case "SF":
            return "3 × ours" if of_largest else NOT_STATED
        case "SF and broker":
            return "the broker adds 20 %"
        case "SL":
            return "5.8 or 6 × ours, 2 × SF" if of_largest else "6 × ours, 2 × SF"
    return NOT_STATED


def figure7(
    settings: Sequence[AggregateSetting], repeats: int, tell: Callable[[str], object]
) -> tuple[list[Hop], dict[str, str]]:
    """Measure each model by each system; what was measured, and why others were not.

    Args:
        settings: whose updates.
        repeats: of which the median counts.
        tell: told what is measured.
    """
    measured, failures = by_each_system(
        settings, SYSTEMS, lambda setting, system: _move(setting, system, repeats), tell
    )
    return [hop for setting, moved in measured for hop in _hops(setting, moved)], failures


def _hops(setting: AggregateSetting, moved: dict[str, Moved]) -> list[Hop]:
    def cpu(one: Moved) -> float:
        return one.sender_cpu_seconds + one.cpu_seconds

    ours = moved.get("ours")
    return [
        Hop(
            setting.model,
            setting.update_bytes,
            system,
            one.seconds,
            one.least_seconds,
            cpu(one),
            None if ours is None else one.seconds / ours.seconds,
            None if ours is None else cpu(one) / cpu(ours),
            stated(setting.model, system),
        )
        for system, one in moved.items()
    ]


def _move(setting: AggregateSetting, system: str, repeats: int) -> Moved:
    if system in _STAGES:
        return over_stages(setting, _STAGES[system], repeats)
    try:
        return asyncio.run(_in_shared_memory(setting, repeats, in_place=system != "ours"))
    except (OSError, WorkerLostError) as error:
        raise RowError(f"a worker could not add: {error}") from error


async def _in_shared_memory(setting: AggregateSetting, repeats: int, *, in_place: bool) -> Moved:
    with contextlib.ExitStack() as stack:
        slot, top = SharedMemory(stack, setting.update_bytes), Adder(stack, setting)
        lies_there = np.frombuffer(slot.mapping, np.uint8)
        update = make_update(setting)
        np.copyto(lies_there, update)
        notice_cpu = await _notice_cpu_seconds(repeats)
        top.begin(1, repeats + 1)
        # the first one warms up: its worker has started, and has mapped the slot
        await top.add(slot.descriptor, 0)
        moves = []
        for _ in range(repeats):
            own, began = time.process_time(), time.monotonic()
            if not in_place:
                np.copyto(lies_there, update)
            sent = time.process_time() - own
            there = await top.add(slot.descriptor, 0)
            moves.append(Moved(there - began, sent, notice_cpu))
        del lies_there
    return median_of(moves)


async def _notice_cpu_seconds(repeats: int) -> float:
    """Of both ends of a notice, with the addition of a tiny update."""
    setting = AggregateSetting("tiny", _TINY, 2, 3, "tcp")
    with contextlib.ExitStack() as stack:
        slot, top = SharedMemory(stack, setting.update_bytes), Adder(stack, setting)
        slot.mapping[:] = make_update(setting).tobytes()
        top.begin(1, repeats + 1)
        await top.add(slot.descriptor, 0)
        used = cpu_seconds([top.process_id]) + time.process_time()
        for _ in range(repeats):
            await top.add(slot.descriptor, 0)
        return (cpu_seconds([top.process_id]) + time.process_time() - used) / repeats


def to_tables(found: Sequence[Hop]) -> list[DataTable]:
    """For people: one for each model."""
    tables = []
    for model in dict.fromkeys(each.model for each in found):
        rows = [each for each in found if each.model == model]
        seconds = {each.system: each.seconds for each in rows}
        by_sf = {system: value / seconds["SF"] if "SF" in seconds else None for system, value in seconds.items()}
        tables.append(
            DataTable(
                f"Figure 7(a, b): one update of {model}, {rows[0].update_bytes / 1e6:.0f} MB, from leaf to top",
                ("system", "takes", "× ours", "× SF", "least", "CPU", "× ours", "paper, time"),
                [
                    (
                        each.system,
                        f"{1000 * each.seconds:.2f} ms",
                        times(each.times_ours),
                        times(by_sf[each.system]),
                        f"{1000 * each.least_seconds:.2f} ms",
                        f"{1000 * each.cpu_seconds:.2f} ms",
                        times(each.cpu_times_ours),
                        each.paper,
                    )
                    for each in rows
                ],
            )
        )
    return tables
