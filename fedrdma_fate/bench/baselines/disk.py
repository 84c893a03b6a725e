"""The disk's own write of the payload, until it is there: what `durable: true` cannot be cheaper than."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedrdma_fate.bench.baselines.interface import Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec


class DiskEnd:
    """Sender and receiver in one process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Write it to a new file, and wait until that is on disk, as what is durable is written."""
        del iteration
        self._path.unlink(missing_ok=True)
        fileno = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            rest = payload.flat.data
            while rest:
                rest = rest[os.write(fileno, rest) :]
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


class Disk:
    """See the module."""

    name = "disk"
    schedule = Schedule()

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`."""
        del largest_bytes
        yield Service(functools.partial(DiskEnd, workspace / "payload"), None)
