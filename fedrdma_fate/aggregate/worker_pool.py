"""The workers of a gateway: one is kept warm while there are sums, more are started for sums that run at once.

Where nobody has said how many, more are started only when the estimate of what comes asks for them
(`core/planning.py`): until then sums that run at once take turns at one.

A sum has one worker from its first update on, so that nobody else writes to its accumulator. A second worker for the
same sum would bring nothing: adding is bound by memory, and one core takes most of what a host's memory gives.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable

from fedrdma_fate.aggregate.notices import Notices
from fedrdma_fate.aggregate.worker import WorkerHandle
from fedrdma_fate.core.planning import Load, workers_wanted

MOST_BY_ITSELF = 4
"""Workers where nobody has said how many: four cores that add take all that the memory of most hosts gives."""

IDLE_SECONDS = 60.0
"""After the last sum workers are ended, and what they have mapped is free: rounds of training follow each other sooner,
or so slowly that a start of 0.3 s is nothing."""


def most_workers(configured: int | None) -> int:
    """How many there may be; None: at most half the cores, for the others have data to move."""
    if configured is not None:
        return configured
    return max(1, min(MOST_BY_ITSELF, (os.cpu_count() or 1) // 2))


@dataclasses.dataclass(frozen=True, slots=True)
class WorkersPlan:
    """How many workers are wanted, and why.

    Attributes:
        most: that there may be.
        wanted: that sums which run at once are spread over.
        by_estimate: whether that follows from what comes; else as many as there may be are wanted.
        arrivals_per_second: updates, and sums of sites, that came to be added; smoothed.
        seconds_per_update: that an addition takes; 0 before the first one; smoothed.
        queue: the product: how many workers would be busy all the time.
    """

    most: int
    wanted: int
    by_estimate: bool
    arrivals_per_second: float
    seconds_per_update: float
    queue: float


class WorkerPool:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        most: int,
        on_restart: Callable[[], object] = lambda: None,
        *,
        by_estimate: bool = False,
        clock: Callable[[], float] = time.monotonic,
        notices: Notices | None = None,
    ) -> None:
        """
        Args:
            most: workers at a time, 1 or more.
            on_restart: called each time that one has ended over a job.
            by_estimate: start another one only when the estimate asks for it; else for each sum that runs besides.
            clock: what time it is, seconds.
            notices: how they are told of updates; None: over their sockets.
        """
        self._notices = notices
        self._most = most
        self._on_restart = on_restart
        self._by_estimate = by_estimate
        self._clock = clock
        self._load = Load(clock())
        self._workers = [self._new()]
        self._resting: dict[WorkerHandle, asyncio.TimerHandle] = {}
        self._sums_of: Counter[WorkerHandle] = Counter()
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._earlier_restarts = 0

    @property
    def restarts(self) -> int:
        """How often one had to be started again."""
        return self._earlier_restarts + sum(worker.restarts for worker in self._workers)

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that run."""
        return [worker.process_id for worker in self._workers if worker.process_id is not None]

    @property
    def is_closed(self) -> bool:
        """Whether they were ended for good."""
        return self._workers[0].is_closed

    def plan(self) -> WorkersPlan:
        """How many are wanted now; any thread may ask."""
        now, load = self._clock(), self._load
        queue = load.queue(now)
        wanted = workers_wanted(queue, self._most) if self._by_estimate else self._most
        return WorkersPlan(self._most, wanted, self._by_estimate, load.rate(now), load.seconds_per_update, queue)

    def arrived(self) -> None:
        """An update, or a sum of a site, is here to be added."""
        self._load.arrived(self._clock())

    def enter(self) -> None:
        """There is a sum: there will be something to add. To be followed by `leave`."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._workers[0].prepare()
        if self._by_estimate and len(self._workers) < min(self._users, self.plan().wanted):
            # its sum will want it with its first update
            worker = self._new()
            self._workers.append(worker)
            worker.prepare()
            self._dismiss_later(worker)

    def leave(self) -> None:
        """A sum is over."""
        self._users -= 1
        if not self._users and not self.is_closed:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._rest)

    def choose(self) -> WorkerHandle:
        """The worker for another sum, which it has until `give_back`."""
        wanted = self.plan().wanted
        worker = min(self._workers[:wanted], key=lambda each: self._sums_of[each])
        if self._sums_of[worker] and len(self._workers) < wanted and not self.is_closed:
            worker = self._new()
            self._workers.append(worker)
        self._sums_of[worker] += 1
        if (rest := self._resting.pop(worker, None)) is not None:
            rest.cancel()
        return worker

    def give_back(self, worker: WorkerHandle) -> None:
        """A sum is over that it had."""
        self._sums_of[worker] -= 1
        if not self._sums_of[worker]:
            del self._sums_of[worker]
            if worker in self._workers[1:] and not self.is_closed:
                # others may have sums all the time
                self._dismiss_later(worker)

    def close(self) -> None:
        """End them at once; when this returns they write nowhere. May be repeated."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        for rest in self._resting.values():
            rest.cancel()
        self._resting.clear()
        for worker in self._workers:
            worker.close()
        if self._notices is not None:
            self._notices.close()

    def _new(self) -> WorkerHandle:
        return WorkerHandle(self._on_restart, self._load.added, self._notices)

    def _rest(self) -> None:
        self._idle = None
        first, *others = self._workers
        first.rest()
        for worker in others:
            self._dismiss(worker)

    def _dismiss_later(self, worker: WorkerHandle) -> None:
        self._resting[worker] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._dismiss, worker)

    def _dismiss(self, worker: WorkerHandle) -> None:
        """End one that has had no sum for a while; never the first."""
        if (rest := self._resting.pop(worker, None)) is not None:
            rest.cancel()
        self._earlier_restarts += worker.restarts
        worker.close()
        self._workers.remove(worker)
