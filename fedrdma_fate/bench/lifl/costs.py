"""What the simulated rounds are made of, measured on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable

from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.bench.aggregate_adder import Adder, SharedMemory, exact_addition
from fedrdma_fate.bench.aggregate_hierarchy import LEAVES, over_grpc
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.processes import cpu_seconds

_TINY = 10_000
"""Parameters of an update whose addition is next to nothing beside the start of a worker."""

_REPEATS = 5
"""Of one addition; the best counts."""

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
        start_seconds: from the start of a worker to its first addition's end, of a tiny update.
        start_cpu_seconds: of its processor meanwhile.
        notice_seconds: from telling a worker that runs of a tiny update to its answer.
        hops: by gRPC (`grpc`), and past a broker and two proxies (`broker-sidecar`), where they were measured.
        measured_bytes: of the update by which it was measured.
    """

    add_seconds_per_byte: float
    start_seconds: float
    start_cpu_seconds: float
    notice_seconds: float
    hops: dict[str, Hop]
    measured_bytes: int


def measure_costs(parameters: int, tell: Callable[[str], object], *, with_hops: bool = False) -> Costs:
    """Measure.

    Args:
        parameters: of the update that is added and moved.
        tell: told what is measured.
        with_hops: also what moving one costs in the systems that the paper compares with.

    Raises:
        RowError: something could not be measured, and why.
    """
    tell("the start of a worker")
    start, start_cpu, notice = _start()
    setting = AggregateSetting("costs", parameters, 8, 9, "tcp")
    update = make_update(setting)
    tell("additions")
    seconds, _ = exact_addition(setting, update, _REPEATS)
    hops = {}
    if with_hops:
        for name in ("grpc", "broker-sidecar"):
            tell(name)
            row = over_grpc(setting, update, broker=name != "grpc", proxies=name != "grpc")
            moved = setting.update_bytes * (setting.updates + LEAVES)
            # what is not adding
            cpu = max(0.0, row.cpu_seconds - seconds * (setting.updates + LEAVES))
            hops[name] = Hop(row.after_last_seconds / _HOPS_AFTER_LAST / setting.update_bytes, cpu / moved)
    return Costs(seconds / setting.update_bytes, start, start_cpu, notice, hops, setting.update_bytes)


def _start() -> tuple[float, float, float]:
    try:
        return asyncio.run(_measure_start())
    except (OSError, WorkerLostError) as error:
        raise RowError(f"a worker could not be started: {error}") from error


async def _measure_start() -> tuple[float, float, float]:
    setting = AggregateSetting("tiny", _TINY, 2, 3, "tcp")
    with contextlib.ExitStack() as stack:
        memory = SharedMemory(stack, setting.update_bytes)
        began = time.monotonic()
        adder = Adder(stack, setting, "exact")
        adder.begin(1, _REPEATS + 1)
        await adder.add(memory.descriptor, 0)
        start, used = time.monotonic() - began, cpu_seconds([adder.process_id])
        notices = []
        for _ in range(_REPEATS):
            began = time.monotonic()
            await adder.add(memory.descriptor, 0)
            notices.append(time.monotonic() - began)
        return start, used, min(notices)


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
