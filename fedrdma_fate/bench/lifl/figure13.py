"""Figure 13, measured: one update from a client to the aggregator, through what queues it on the way.

Of ours: from the client's put, over the client's gateway and that of the arbiter, into shared memory, until the worker
is told of it. The others are processes joined by gRPC (`hops.py`); it ends when the aggregator has it whole. What
clients use is left out, as in the paper: the process that sends, and of ours the client's gateway.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.aggregate_watch import leased, most_leased, wait
from fedrdma_fate.bench.lifl.figure4 import times
from fedrdma_fate.bench.lifl.figure8 import NOT_STATED
from fedrdma_fate.bench.lifl.hops import Moved, Stage, by_each_system, median_of, over_stages
from fedrdma_fate.bench.notices_gateways import UpdatesOneByOne, updates_one_by_one
from fedrdma_fate.bench.processes import MemoryWatch, cpu_seconds
from fedrdma_fate.bench.report import DataTable

_STAGES: dict[str, tuple[Stage, ...]] = {
    "SF-mono": (),
    "SF-micro": ("store",),
    "SL-B": ("store", "proxy"),
}
"""What an update passes between client and aggregator, as the paper's Figure 5 has it."""

SYSTEMS = ("ours", *_STAGES)

_STATED = {
    "ours": ("as SF-mono", NOT_STATED, NOT_STATED),
    "SF-mono": ("as ours", NOT_STATED, NOT_STATED),
    "SF-micro": (NOT_STATED, "1.9 × ours", "1.7 × ours"),
    "SL-B": ("3 × ours", "1.5 × ours", "1.3 × ours"),
}
"""Memory, processors and delay, by the paper's text: there the broker alone costs more than with a sidecar besides."""

_SECONDS = 120.0
"""For one update."""
_LOOK_SECONDS = 0.01
"""Between two looks at memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """One update by one system.

    Attributes:
        model: whose update.
        update_bytes: its length.
        system: of SYSTEMS.
        seconds: from client to aggregator, the median.
        least_seconds: likewise, the shortest.
        cpu_seconds: of what lies between, the aggregator included but for its adding, the median.
        memory_bytes: that the same had of it at most, shared memory included.
        times_ours: seconds, processor time and memory by those of ours; None where ours was not measured.
        paper: memory, processors and delay, as the text states them.
    """

    model: str
    update_bytes: int
    system: str
    seconds: float
    least_seconds: float
    cpu_seconds: float
    memory_bytes: int
    times_ours: tuple[float, float, float] | None
    paper: tuple[str, str, str]


def figure13(
    settings: Sequence[AggregateSetting], repeats: int, tell: Callable[[str], object]
) -> tuple[list[Queued], dict[str, str]]:
    """Measure each model by each system; what was measured, and why others were not.

    Args:
        settings: whose updates.
        repeats: of which the median counts.
        tell: told what is measured.
    """
    measured, failures = by_each_system(
        settings, SYSTEMS, lambda setting, system: _move(setting, system, repeats), tell
    )
    found = []
    for setting, moved in measured:
        ours = moved.get("ours")
        for system, one in moved.items():
            ratios = None if ours is None else _by(one, ours)
            found.append(
                Queued(
                    setting.model,
                    setting.update_bytes,
                    system,
                    one.seconds,
                    one.least_seconds,
                    one.cpu_seconds,
                    one.memory_bytes,
                    ratios,
                    _STATED[system],
                )
            )
    return found, failures


def _move(setting: AggregateSetting, system: str, repeats: int) -> Moved:
    if system == "ours":
        return _through_gateways(setting, repeats)
    return over_stages(setting, _STAGES[system], repeats)


def _by(one: Moved, ours: Moved) -> tuple[float, float, float]:
    return one.seconds / ours.seconds, one.cpu_seconds / ours.cpu_seconds, one.memory_bytes / ours.memory_bytes


def _through_gateways(setting: AggregateSetting, repeats: int) -> Moved:
    # one before those that count warms up, one after them is for memory
    setting = dataclasses.replace(setting, updates=repeats + 2, room=repeats + 3)
    update = make_update(setting)
    with updates_one_by_one(setting) as updates:
        _put(updates, 0, update)
        _, before = updates.counts()
        moves = []
        for rank in range(1, repeats + 1):
            worker = updates.arbiter_workers()
            used = cpu_seconds([updates.arbiter.pid]) - cpu_seconds(worker)
            own = time.process_time()
            began = time.time()
            ended = _put(updates, rank, update)
            cpu = cpu_seconds([updates.arbiter.pid]) - cpu_seconds(worker) - used
            own = time.process_time() - own
            _, total = updates.counts()
            moves.append(Moved(ended - began - (total.end - before.end), own, cpu))
            before = total
        # the sum has its slot, and will have it until its task gives it back
        at_rest = leased(updates.arbiter)
        with MemoryWatch([[updates.arbiter.pid]], _LOOK_SECONDS) as memory:
            _put(updates, repeats + 1, update)
        (grown,) = memory.growth
        slots = most_leased(updates.arbiter) - at_rest
        updates.end()
    return median_of(moves, grown + slots)


def _put(updates: UpdatesOneByOne, rank: int, update: Any) -> float:
    """Put one, and wait until it is in the sum; when that was, by the gateway's trace, which costs it nothing."""
    updates.put(rank, update)
    # a line for each that is in the sum
    wait(lambda: len(updates.arbiter.traced("get")) > rank, _SECONDS, "an update to be added")
    return float(updates.arbiter.traced("get")[rank]["time"])


def to_tables(found: Sequence[Queued]) -> list[DataTable]:
    """For people: one for each model."""
    tables = []
    for model in dict.fromkeys(each.model for each in found):
        rows = [each for each in found if each.model == model]
        title = f"Figure 13: one update of {model}, {rows[0].update_bytes / 1e6:.0f} MB, from client to aggregator"
        cells = []
        for each in rows:
            delay, cpu, memory = each.times_ours or (None, None, None)
            of_memory, of_cpu, of_delay = each.paper
            cells.append(
                (
                    each.system,
                    f"{1000 * each.seconds:.1f} ms",
                    f"{1000 * each.least_seconds:.1f} ms",
                    times(delay),
                    of_delay,
                    f"{1000 * each.cpu_seconds:.1f} ms",
                    times(cpu),
                    of_cpu,
                    f"{each.memory_bytes / 1e6:.0f} MB",
                    times(memory),
                    of_memory,
                )
            )
        columns = ("system", "delay", "least", "× ours", "paper", "CPU", "× ours", "paper", "memory", "× ours", "paper")
        tables.append(DataTable(title, columns, cells))
    return tables
