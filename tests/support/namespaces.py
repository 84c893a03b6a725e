"""Another host of the testbed, from within one process: a thread visits its namespace and opens its devices."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fedrdma_fate.transport.verbs.interface import Device, DeviceInfo, Verbs

Result = TypeVar("Result")

NAMESPACES = Path("/run/netns")
CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


class NamespacedVerbs:
    """The devices that another network namespace owns. What is open works from every namespace."""

    def __init__(self, name: str, verbs: Verbs) -> None:
        self._path = NAMESPACES / name
        self._verbs = verbs

    def devices(self) -> Sequence[DeviceInfo]:
        """Every device there."""
        return self._there(self._verbs.devices)

    def open(self, name: str) -> Device:
        """Open one of them."""
        return self._there(lambda: self._verbs.open(name))

    def _there(self, action: Callable[[], Result]) -> Result:
        with ThreadPoolExecutor(1) as visitor:
            return visitor.submit(self._visit, action).result()

    def _visit(self, action: Callable[[], Result]) -> Result:
        """Enter with this thread alone, which ends there. /sys shows the namespace in which it was mounted."""
        libc = ctypes.CDLL(None, use_errno=True)
        namespace = os.open(self._path, os.O_RDONLY)
        try:
            _check(libc.unshare(CLONE_NEWNS))
            _check(libc.setns(namespace, CLONE_NEWNET))
            _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
            _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))
        finally:
            os.close(namespace)
        return action()


def _check(status: int) -> None:
    if status:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
