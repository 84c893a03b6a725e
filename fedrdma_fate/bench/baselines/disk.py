"""The disk's own write of the payload, until it is there: what `durable: true` cannot be cheaper than."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedrdma_fate.bench.baselines.interface import Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec
from fedrdma_fate.memory.writeback import write_for_disk


class DiskEnd:
    """Sender and receiver in one process."""

    def __init__(self, path: Path, write: Callable[[int, memoryview], None]) -> None:
        self._path = path
        self._write = write

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Write it to a new file, and wait until that is on disk, as what is durable is written."""
        del iteration
        self._path.unlink(missing_ok=True)
        fileno = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._write(fileno, payload.flat.data)
            os.fsync(fileno)
        finally:
            os.close(fileno)

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """The file, mapped."""
        del iteration
        return spec.arrays_in(np.memmap(self._path, np.uint8, "r"))

    def close(self) -> None:
        """Remove it."""
        self._path.unlink(missing_ok=True)


def _write_whole(fileno: int, payload: memoryview) -> None:
    while payload:
        payload = payload[os.write(fileno, payload) :]


class Disk:
    """See the module.

    Attributes:
        name: `disk`, which writes the payload whole, or `disk-pieces`.
    """

    schedule = Schedule()

    def __init__(self, *, in_pieces: bool = False) -> None:
        """
        Args:
            in_pieces: as a gateway does, so that the disk begins with the first while the next are written.
        """
        self.name = "disk-pieces" if in_pieces else "disk"
        self._write = write_for_disk if in_pieces else _write_whole

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`."""
        del largest_bytes
        yield Service(functools.partial(DiskEnd, workspace / "payload", self._write), None)
