"""Ways to move a payload for the tests of the benchmarks' runner: right ones, wasteful ones and wrong ones.

In a module of their own, because the processes of the parties import it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from fedrdma_fate.bench.baselines.interface import Schedule, Service, SideBytes
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec, plain_bytes

LARGE = plain_bytes(32 * 2**20)
SMALL = plain_bytes(5000)
PAUSE = 0.2
"""Long enough for the watch to see what is there meanwhile, seconds."""


class FileSender:
    """Sends through a file: the page cache is nobody's private memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        with (self._directory / "part").open("wb") as file:
            file.write(payload.flat.data)
        (self._directory / "part").rename(self._directory / str(iteration))

    def close(self) -> None:
        (self._directory / "sender-closed").touch()


class FileReceiver:
    """Maps the file copy-on-write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        path = self._directory / str(iteration)
        while not path.exists():
            time.sleep(0.001)
        return spec.arrays_in(np.memmap(path, np.uint8, "c"))

    def close(self) -> None:
        (self._directory / "receiver-closed").touch()


class HoardingSender(FileSender):
    """Makes a copy of the payload on the way."""

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        copy = payload.flat.copy()
        time.sleep(PAUSE)
        del copy
        super().put(iteration, payload)


class HoardingReceiver(FileReceiver):
    """Returns a copy instead of a view."""

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        copies = [np.array(array) for array in super().get(iteration, spec)]
        time.sleep(PAUSE)
        return copies


class DamagingReceiver(FileReceiver):
    """Changes one byte of the large payload."""

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        arrays = super().get(iteration, spec)
        if spec == LARGE:
            arrays[0][-1] ^= 1
        return arrays


class StaleReceiver(FileReceiver):
    """Shows what the iteration before has sent."""

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        current = super().get(iteration, spec)
        earlier = self._directory / str(iteration - 1)
        return current if iteration < 3 else spec.arrays_in(np.memmap(earlier, np.uint8, "c"))


class FailingSender(FileSender):
    def put(self, iteration: int, payload: PayloadArrays) -> None:
        raise ValueError(f"the cable is cut at {iteration} by {payload.spec.name}")


class DyingSender(FileSender):
    def put(self, iteration: int, payload: PayloadArrays) -> None:
        del iteration, payload
        os._exit(7)


class FailingOpen(FileSender):
    def __init__(self, directory: Path) -> None:
        raise ValueError(f"no cable at all in {directory.name[:7]}")


class FileService(Service):
    def check(self) -> None:
        (Path.cwd() / "checked").touch()

    def extra_shared(self) -> SideBytes:
        return SideBytes(1, 2)

    def complaints(self) -> str:
        return "the cable says so too"


class FileBaseline:
    name = "file"

    def __init__(
        self,
        sender: Callable[[Path], FileSender] = FileSender,
        receiver: Callable[[Path], FileReceiver] = FileReceiver,
        schedule: Schedule | None = None,
    ) -> None:
        self.schedule = schedule or Schedule(warm_ups=1)
        self.workspace: Path | None = None
        self.left_behind: set[str] = set()
        self._sender = sender
        self._receiver = receiver

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        assert largest_bytes >= SMALL.total_bytes
        self.workspace = workspace
        yield FileService(functools.partial(self._sender, workspace), functools.partial(self._receiver, workspace))
        self.left_behind = {path.name for path in workspace.iterdir()}
