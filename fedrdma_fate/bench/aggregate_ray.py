"""The row `ray` of `fedrdma bench aggregate`: leaves and a top are actors, updates lie in Ray's shared object store.

Ray is no dependency of this project: the row is there where somebody has installed it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrdma_fate.bench.aggregate_hierarchy import copy_of, leaves_for
from fedrdma_fate.bench.aggregate_setting import AggregateRow, AggregateSetting, check, pairs_of
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.processes import MemoryWatch, cpu_seconds, family, shared_bytes

_STORE_HEADROOM = 256 * 2**20
"""Beside updates and sums in the object store: it evicts nothing that is in use, and spills where it is full."""
_QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.WARNING}
"""What is measured is all that is printed."""
_LOOK_SECONDS = 0.01
"""Between two looks at memory."""
_SUM_SECONDS = 300.0
"""For a sum."""

Update = npt.NDArray[np.uint8]


def is_installed() -> bool:
    """Whether Ray is there."""
    return importlib.util.find_spec("ray") is not None


class _Adder:
    """What an actor does."""

    def __init__(self) -> None:
        self._sum: Any = None

    def add(self, update: Any) -> int:
        """Add an update, which Ray maps read-only."""
        values = update.view(np.float64)
        if self._sum is None:
            self._sum = values.copy()
        else:
            np.add(self._sum, values, out=self._sum)
        return 0

    def take(self) -> Any:
        """The sum; the next update begins another."""
        total, self._sum = self._sum, None
        return total.view(np.uint8)


def with_ray(setting: AggregateSetting, update: Update) -> AggregateRow:
    """Leaves and a top that are actors of Ray.

    Raises:
        RowError: Ray is not installed, has no memory for its store, or the sum is wrong.
    """
    if not is_installed():
        raise RowError("Ray is not installed")
    ray = importlib.import_module("ray")
    store = (setting.updates + len(leaves_for(setting)) + 2) * setting.update_bytes + _STORE_HEADROOM
    adders = len(leaves_for(setting)) + 1
    try:
        # actors that wait need no core, and on a small host there are fewer cores than actors
        ray.init(num_cpus=adders, object_store_memory=store, **_QUIET)
        try:
            actors = [ray.remote(_Adder).remote() for _ in range(adders)]
            # the first round warms up: actors have started
            _round(ray, actors, setting, update)
            return _round(ray, actors, setting, update)
        finally:
            ray.shutdown()
    except (ray.exceptions.RayError, ValueError, OSError) as error:
        raise RowError(f"Ray could not add: {error}") from error


def _round(ray: Any, actors: list[Any], setting: AggregateSetting, update: Update) -> AggregateRow:
    *leaves, top = actors
    parts = leaves_for(setting)
    leaf_of = {rank: leaf for leaf, ranks in zip(leaves, parts, strict=True) for rank in ranks}
    its = [copy_of(update, setting, rank) for rank in range(setting.updates)]
    # its raylet, store and workers are children of this process, or of what it has started
    processes = [pid for pid in family([os.getpid()]) if pid != os.getpid()]
    with MemoryWatch([processes], _LOOK_SECONDS) as memory:
        used, started = cpu_seconds(processes) + time.process_time(), time.monotonic()
        added = {rank: leaf_of[rank].add.remote(ray.put(its[rank])) for rank in range(1, setting.updates)}
        ray.get(list(added.values()), timeout=_SUM_SECONDS)
        partial = [top.add.remote(leaf.take.remote()) for leaf in leaves if leaf is not leaf_of[0]]
        ray.get(partial, timeout=_SUM_SECONDS)
        last = ray.put(its[0])
        put = time.monotonic()
        leaf_of[0].add.remote(last)
        ray.get(top.add.remote(leaf_of[0].take.remote()), timeout=_SUM_SECONDS)
        done = time.monotonic()
        used = cpu_seconds(processes) + time.process_time() - used
    check(setting, update, pairs_of(ray.get(top.take.remote(), timeout=_SUM_SECONDS), setting))
    (most,) = memory.growth
    # its object store is one of its processes, and keeps the pages that it has used once
    store = max(map(shared_bytes, processes))
    return AggregateRow("ray", setting.model, setting.updates, done - started, done - put, used, most + store)
