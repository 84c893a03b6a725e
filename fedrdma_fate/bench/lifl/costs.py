"""What the simulated rounds are made of, measured on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.bench.aggregate_adder import Adder, SharedMemory, Update
from fedrdma_fate.bench.aggregate_hierarchy import LEAVES, over_grpc
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError

_TINY = 10_000
"""Parameters of an update whose addition is next to nothing beside the start of a worker."""

_REPEATS = 15
"""Of an addition; the best counts."""

_HOPS_AFTER_LAST = 2
"""Of the last update in the rows over gRPC: to its leaf, and its leaf's sum to the top."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hop:
    """Moving an update to the process that adds it, on one host.

    Attributes:
        seconds_per_byte: until it is there.
        cpu_per_byte: seconds of all processors that it takes.
    """

    seconds_per_byte: float
    cpu_per_byte: float


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """What was measured; one byte is one of a masked update, 16 of a parameter.

    Attributes:
        add_seconds_per_byte: that a worker takes to add an update.
        start_seconds: that a worker takes to start, with its first addition, of a tiny update.
        notice_seconds: from telling a worker that runs of a tiny update to its answer.
        hops: by gRPC (`grpc`), and past a broker and two proxies (`broker-sidecar`), where they were measured.
        measured_bytes: of the update by which it was measured.
    """

    add_seconds_per_byte: float
    start_seconds: float
    notice_seconds: float
    hops: dict[str, Hop]
    measured_bytes: int


def measure_costs(parameters: int, tell: Callable[[str], object], *, with_hops: bool = False) -> Costs:
    """Measure. What one worker does is the time of its processor, so that it is the same beside other programs.

    Args:
        parameters: of the update that is added and moved.
        tell: told what is measured.
        with_hops: also what moving one costs in the systems that the paper compares with, by the clock.

    Raises:
        RowError: something could not be measured, and why.
    """
    setting = AggregateSetting("costs", parameters, 8, 9, "tcp")
    update = make_update(setting)
    try:
        tell("the start of a worker")
        tiny = AggregateSetting("tiny", _TINY, 2, 3, "tcp")
        start, _, notice = asyncio.run(_measure(tiny, make_update(tiny)))
        tell("additions")
        _, seconds, _ = asyncio.run(_measure(setting, update))
    except (OSError, WorkerLostError) as error:
        raise RowError(f"a worker could not add: {error}") from error
    hops = {}
    if with_hops:
        for name in ("grpc", "broker-sidecar"):
            tell(name)
            row = over_grpc(setting, update, broker=name != "grpc", proxies=name != "grpc")
            added = setting.updates + min(LEAVES, setting.updates)
            # what is not adding
            cpu = max(0.0, row.cpu_seconds / added - seconds)
            hop = max(0.0, row.after_last_seconds / _HOPS_AFTER_LAST - seconds)
            hops[name] = Hop(hop / setting.update_bytes, cpu / setting.update_bytes)
    return Costs(seconds / setting.update_bytes, start, notice, hops, setting.update_bytes)


async def _measure(setting: AggregateSetting, update: Update) -> tuple[float, float, float]:
    """Seconds of a processor to start a worker, and of an addition; by the clock, from a job to its answer."""
    with contextlib.ExitStack() as stack:
        memory, adder = SharedMemory(stack, setting.update_bytes), Adder(stack, setting, "exact")
        memory.mapping[:] = update.tobytes()
        adder.begin(1, _REPEATS + 1)
        # the first is written, not added
        await adder.add(memory.descriptor, 0)
        start = _processor_seconds(adder.process_id)
        best = best_clock = float("inf")
        for _ in range(_REPEATS):
            used, began = _processor_seconds(adder.process_id), time.monotonic()
            await adder.add(memory.descriptor, 0)
            best = min(best, _processor_seconds(adder.process_id) - used)
            best_clock = min(best_clock, time.monotonic() - began)
        return start, best, best_clock


def _processor_seconds(process: int) -> float:
    """That a process of one thread has had; other than in its times, not in hundredths."""
    return int(Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[0]) * 1e-9


def told(costs: Costs) -> str:
    """For people, one line."""
    hops = "".join(
        f"; {name} {hop.seconds_per_byte * 1e9:.2f} ns a byte, {hop.cpu_per_byte * 1e9:.2f} of processors"
        for name, hop in costs.hops.items()
    )
    return (
        f"Measured here, with an update of {costs.measured_bytes / 1e6:.0f} MB: adding "
        f"{costs.add_seconds_per_byte * 1e9:.3f} ns a byte, start of a worker {1000 * costs.start_seconds:.0f} ms, "
        f"notice and answer {1000 * costs.notice_seconds:.2f} ms{hops}"
    )
