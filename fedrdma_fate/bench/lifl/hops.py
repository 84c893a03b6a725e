"""One update to the process that takes it, by what others build: gRPC directly, past a broker, past proxies.

The nodes are those of `fedrdma bench aggregate`. What a container, a broker that writes to disk, or a proxy that looks
at what passes would cost is not in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.aggregate import MODELS
from fedrdma_fate.bench.aggregate_hierarchy import nodes_that_answer, start_node
from fedrdma_fate.bench.aggregate_node import Neighbours, NodeSetting, cut
from fedrdma_fate.bench.aggregate_setting import AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.processes import MemoryWatch, cpu_seconds

_LOOK_SECONDS = 0.01
"""Between two looks at memory."""
_PAIR_BYTES = 16
"""Of a parameter that is masked: what is added here, whatever the updates of a figure are called."""

Stage = Literal["proxy", "store"]
Update = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """One update, the medians.

    Attributes:
        seconds: until it is there, whole.
        sender_cpu_seconds: of the process that sends it.
        cpu_seconds: of all others.
        memory_bytes: by how much their memory grew, at most; 0 where nobody looked.
        least_seconds: the shortest of those of which the median is given: what it takes on a busy host where it has not
            to wait for a core.
    """

    seconds: float
    sender_cpu_seconds: float
    cpu_seconds: float
    memory_bytes: int = 0
    least_seconds: float = 0.0


def setting_of(model: str, parameters: int | None, bytes_per_parameter: int, updates: int) -> AggregateSetting:
    """What to sum where updates are as long as those of a model.

    Args:
        model: its name.
        parameters: instead of those of the model.
        bytes_per_parameter: of an update.
        updates: how many.
    """
    length = (parameters or MODELS[model]) * bytes_per_parameter
    name = model if parameters is None else f"{parameters} parameters"
    return AggregateSetting(name, length // _PAIR_BYTES, updates, updates + 1, "tcp")


def by_each_system(
    settings: Sequence[AggregateSetting],
    systems: Sequence[str],
    move: Callable[[AggregateSetting, str], Moved],
    tell: Callable[[str], object],
) -> tuple[list[tuple[AggregateSetting, dict[str, Moved]]], dict[str, str]]:
    """Measure each model by each system; what was measured of each, and why others were not.

    Args:
        settings: whose updates.
        systems: their names.
        move: one of them by one system; raises RowError where that cannot be.
        tell: told what is measured.
    """
    found, failures = [], {}
    for setting in settings:
        moved: dict[str, Moved] = {}
        for system in systems:
            tell(f"{setting.model}, {system}")
            try:
                moved[system] = move(setting, system)
            except RowError as error:
                failures[f"{setting.model}, {system}"] = str(error)
        found.append((setting, moved))
    return found, failures


def median_of(moves: Sequence[Moved], memory_bytes: int = 0) -> Moved:
    """Of each number by itself."""
    return Moved(
        statistics.median(each.seconds for each in moves),
        statistics.median(each.sender_cpu_seconds for each in moves),
        statistics.median(each.cpu_seconds for each in moves),
        memory_bytes,
        min(each.seconds for each in moves),
    )


def over_stages(setting: AggregateSetting, stages: Sequence[Stage], repeats: int) -> Moved:
    """Send an update past these to a process that takes it, again and again.

    Args:
        setting: whose update.
        stages: in the order in which it passes them.
        repeats: that count; one before them warms up, in another one memory is looked at.

    Raises:
        RowError: a process has ended or does not answer, or what came is another update.
    """
    with nodes_that_answer(), contextlib.ExitStack() as stack:
        neighbours = stack.enter_context(contextlib.closing(Neighbours()))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        nodes = [start_node(stack, NodeSetting(stage)) for stage in stages]
        nodes.append(start_node(stack, NodeSetting("take", bytes=setting.update_bytes)))
        route, processes = tuple(address for address, _ in nodes), [process for _, process in nodes]
        update = make_update(setting)
        taken = 0

        def move() -> Moved:
            nonlocal taken
            taken += 1
            own, used, began = time.process_time(), cpu_seconds(processes), time.monotonic()
            sent = pool.submit(neighbours.send, route, cut(update))
            neighbours.ask(route[-1], "Wait", b"%d" % taken)
            seconds = time.monotonic() - began
            sent.result()
            return Moved(seconds, time.process_time() - own, cpu_seconds(processes) - used)

        # memory first: nothing is kept of an earlier one, and channels are connected on the way
        with MemoryWatch([processes], _LOOK_SECONDS) as memory:
            move()
        (grown,) = memory.growth
        moves = [move() for _ in range(repeats)]
        if b"".join(neighbours.fetch(route[-1])) != update.tobytes():
            raise RowError("another update came than was sent")
    return median_of(moves, grown)
