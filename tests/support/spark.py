"""What Spark's Python workers run in tests; they import it by name."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fedrdma_fate.fate.table_batches import Pair


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


def imported(_partition: int, _pairs: Iterable[Pair]) -> Iterator[str]:
    """Which of the large libraries the worker has imported."""
    yield " ".join(name for name in ("torch", "grpc", "pandas") if name in sys.modules)
