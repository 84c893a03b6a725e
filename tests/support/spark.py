"""What Spark's Python workers run in tests; they import it by name."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import psutil

from fedrdma_fate.fate import tables
from fedrdma_fate.fate.table_batches import Pair, encode_batch

_ENDED_SECONDS = 60.0
"""For whoever ends a worker."""


@dataclasses.dataclass(frozen=True, slots=True)
class KilledOnce:
    """Runs a function in a worker that is killed in the middle of a partition, and at its end; each once.

    Attributes:
        function: what moves a partition.
        killed: directory with a file for each partition and place.
    """

    function: Callable[[int, Iterable[Pair]], Iterable[Pair]]
    killed: Path

    def __call__(self, partition: int, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """What the function makes."""
        for number, pair in enumerate(self.function(partition, pairs)):
            if number == 1:
                self._kill(f"{partition}-middle")
            yield pair
        self._kill(f"{partition}-end")

    def _kill(self, name: str) -> None:
        mark = self.killed / name
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True, slots=True)
class ExecutorKilledOnce:
    """Runs a function in a worker whose executor is killed in one partition, with all that it keeps; once.

    Attributes:
        function: what moves a partition.
        killed: a file that is there when it was killed.
        partition: in the middle of which.
    """

    function: Callable[[int, Iterable[Pair]], Iterable[Pair]]
    killed: Path
    partition: int

    def __call__(self, partition: int, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """What the function makes of the pairs."""
        return self.function(partition, self._until_killed(pairs) if partition == self.partition else pairs)

    def _until_killed(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for number, pair in enumerate(pairs):
            if number and not self.killed.exists():
                self.killed.touch()
                kill_executor()
            yield pair


@dataclasses.dataclass(frozen=True, slots=True)
class StoppedWithSlot:
    """Runs what sends a partition, in a worker that has written a slot and not handed it over; stopped there, once.

    Attributes:
        function: what sends a partition.
        stopped: a file that is there when it was.
        kills: whether the executor is killed there; else the worker waits until somebody ends it.
    """

    function: Callable[[int, Iterable[Pair]], Iterable[Pair]]
    stopped: Path
    kills: bool

    def __call__(self, partition: int, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """What the function makes of the pairs."""
        with mock.patch.object(tables, "encode_batch", self._encode):
            return self.function(partition, pairs)

    def _encode(self, batch: Sequence[Pair], is_last: bool, buffer: memoryview) -> None:
        encode_batch(batch, is_last, buffer)
        if self.stopped.exists():
            return
        self.stopped.touch()
        if self.kills:
            kill_executor()
        time.sleep(_ENDED_SECONDS)


def kill_executor() -> None:
    """End the executor of this worker, and this worker."""
    # a worker is forked by a process of Python's that the executor has started
    executor = psutil.Process().parents()[1]
    assert executor.name() == "java", executor
    executor.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def imported(_partition: int, _pairs: Iterable[Pair]) -> Iterator[str]:
    """Which of the large libraries the worker has imported."""
    yield " ".join(name for name in ("torch", "grpc", "pandas") if name in sys.modules)


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """Makes the pairs of a partition.

    Attributes:
        rows: of each partition.
        value: of each row, as FATE has serialised it.
    """

    rows: int
    value: bytes

    def __call__(self, partition: int, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs."""
        # a worker that has not read its input is ended by Spark, and not used again
        dropped(partition, pairs)
        first = partition * self.rows
        return ((pickle.dumps(first + number), self.value) for number in range(self.rows))


def dropped(_partition: int, pairs: Iterable[Pair]) -> list[Pair]:
    """Nothing, of all pairs."""
    for _pair in pairs:
        pass
    return []


def unchanged(_partition: int, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """The pairs."""
    yield from pairs
