"""Processes and their children: their CPU time and private memory, from the kernel's own books."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil

_PROC = Path("/proc")
_CHILDREN_REFRESH_SECONDS = 0.05
"""Between two looks for new descendants, which cost more than looks at memory."""
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def family(pids: Sequence[int]) -> list[int]:
    """These processes and all their descendants; those that are gone are left out."""
    found: dict[int, None] = {}
    pending = list(pids)
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError):
            threads = list((_PROC / str(pid) / "task").iterdir())
            found[pid] = None
            for thread in threads:
                # one that has ended meanwhile takes nobody with it: its children are another thread's then
                with contextlib.suppress(OSError):
                    pending += map(int, (thread / "children").read_text().split())
    return list(found)


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time that these processes, their descendants, and children they have reaped, have used so far."""
    return sum(_own_cpu_seconds(pid) + _reaped_cpu_seconds(pid) for pid in family(pids))


def anonymous_bytes(pid: int) -> int:
    """Private memory of a process: resident anonymous pages (RssAnon), those copied on write included.

    Pages of shared memory do not count, however they are mapped; 0 for a process that is gone. The kernel keeps this
    counter a piece per CPU, so it may be off by some hundred kilobytes.
    """
    return _resident(pid, "RssAnon:")


def shared_bytes(pid: int) -> int:
    """Shared memory that a process has mapped and touched: resident pages (RssShmem); 0 for a process that is gone."""
    return _resident(pid, "RssShmem:")


def peak_resident_bytes(pid: int) -> int:
    """All memory that a process had resident at once, at most, shared and file pages too (VmHWM); 0 for one that is
    gone."""
    return _resident(pid, "VmHWM:")


def _resident(pid: int, name: str) -> int:
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return 0
    _, _, rest = status.partition(name)
    return int(rest.split(maxsplit=1)[0]) * 1024 if rest else 0


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends, even if killed; at once if it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def kill_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: have the kernel kill the child that is being made when this process is gone."""
    # both are looked up here: a child of a process with threads does as little as it can before it is another program
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


class MemoryWatch:
    """Samples the private memory of groups of processes, and keeps each group's largest growth.

    Growth counts from the moment that the watch is made, not from when it starts: make it when everything is connected
    and nothing has been sent.
    """

    def __init__(self, groups: Sequence[Sequence[int]], interval: float) -> None:
        """
        Args:
            groups: process ids; each group is summed up, descendants included.
            interval: seconds between samples.
        """
        self._groups = groups
        self._interval = interval
        self._families = [family(group) for group in groups]
        self._before = self._sums()
        self._peaks = list(self._before)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-watch", daemon=True)

    @property
    def growth(self) -> list[int]:
        """Peak minus what was there before, of each group, bytes."""
        return [peak - before for peak, before in zip(self._peaks, self._before, strict=True)]

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _sample(self) -> None:
        refresh_at = 0.0
        while True:
            if time.monotonic() >= refresh_at:
                self._families = [family(group) for group in self._groups]
                refresh_at = time.monotonic() + _CHILDREN_REFRESH_SECONDS
            self._look()
            if self._done.wait(self._interval):
                return

    def _look(self) -> None:
        self._peaks = [max(pair) for pair in zip(self._peaks, self._sums(), strict=True)]

    def _sums(self) -> list[int]:
        return [sum(map(anonymous_bytes, pids)) for pids in self._families]


def _own_cpu_seconds(pid: int) -> float:
    """By the process's CPU clock: to the nanosecond, where /proc counts ticks of 10 ms."""
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def _reaped_cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.children_user + times.children_system)
