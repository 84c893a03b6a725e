"""One memcpy of the payload between two warm buffers: what the memory of this machine allows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedrdma_fate.bench.baselines.interface import Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec


class MemcpyEnd:
    """Sender and receiver in one process."""

    def __init__(self, largest_bytes: int) -> None:
        # filled, not just allocated: otherwise the copy would pay for the page faults
        self._target = np.full(largest_bytes, 0xFF, np.uint8)

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Copy."""
        del iteration
        np.copyto(self._target[: payload.flat.size], payload.flat)

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """The copy."""
        del iteration
        return spec.arrays_in(self._target)

    def close(self) -> None:
        """Nothing to give back."""


class Memcpy:
    """See the module."""

    name = "memcpy"
    schedule = Schedule()

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`."""
        del workspace
        yield Service(functools.partial(MemcpyEnd, largest_bytes), None)
