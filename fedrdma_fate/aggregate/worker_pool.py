"""The workers of a gateway: one is kept warm while there are sums, more are started for sums that run at once.

A sum has one worker from its first update on, so that nobody else writes to its accumulator. A second worker for the
same sum would bring nothing: adding is bound by memory, and one core takes most of what a host's memory gives.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable

from fedrdma_fate.aggregate.worker import WorkerHandle

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


class WorkerPool:
    """Belongs to the event loop's thread."""

    def __init__(self, most: int, on_restart: Callable[[], object] = lambda: None) -> None:
        """
        Args:
            most: workers at a time, 1 or more.
            on_restart: called each time that one has ended over a job.
        """
        self._most = most
        self._on_restart = on_restart
        self._workers = [WorkerHandle(on_restart)]
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

    def enter(self) -> None:
        """There is a sum: there will be something to add. To be followed by `leave`."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._workers[0].prepare()

    def leave(self) -> None:
        """A sum is over."""
        self._users -= 1
        if not self._users and not self.is_closed:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._rest)

    def choose(self) -> WorkerHandle:
        """The worker for another sum, which it has until `give_back`."""
        worker = min(self._workers, key=lambda each: self._sums_of[each])
        if self._sums_of[worker] and len(self._workers) < self._most and not self.is_closed:
            worker = WorkerHandle(self._on_restart)
            self._workers.append(worker)
        self._sums_of[worker] += 1
        return worker

    def give_back(self, worker: WorkerHandle) -> None:
        """A sum is over that it had."""
        self._sums_of[worker] -= 1
        if not self._sums_of[worker]:
            del self._sums_of[worker]

    def close(self) -> None:
        """End them at once; when this returns they write nowhere. May be repeated."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        for worker in self._workers:
            worker.close()

    def _rest(self) -> None:
        self._idle = None
        first, *others = self._workers
        first.rest()
        for worker in others:
            self._earlier_restarts += worker.restarts
            worker.close()
        self._workers = [first]
