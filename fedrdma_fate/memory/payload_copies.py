"""Copies of payloads on disk, each synced before anybody is told that it is there (`durable`).

They lie in a directory of their site's journal, which no other gateway removes, whoever has died.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

DIRECTORY_NAME = "payloads"
"""In that of the journal."""

MOST_COPYING = 16
"""Copies that are written at once: enough for a disk to sync several together."""


class PayloadCopies(SpillStore):
    """As spilled payloads, but on disk when they are told to be there, and left where they are by whoever ends.

    Attributes:
        threads: to write them in. A slow disk keeps each busy for seconds, and what else the gateway does in threads
            (names of hosts, certificates, spilled messages) does not wait for that.
    """

    def __init__(self, parent: Path) -> None:
        """Make the directory, or take the one that is there.

        Raises:
            MemoryPoolError: SPILL_FAILED when that is not possible.
        """
        self.threads = ThreadPoolExecutor(MOST_COPYING, "payload-copies")
        path = parent / DIRECTORY_NAME
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            # else what lies in it is nowhere after a power failure
            fileno = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fileno)
            finally:
                os.close(fileno)
            kept = _Kept(path)
        except OSError as error:
            raise MemoryPoolError(
                ErrorCode.SPILL_FAILED,
                f"cannot make a directory for payloads in {parent}: {error.strerror}.",
                "Point state_directory, or memory.spill_directory, at a directory that the gateway's user may write.",
            ) from error
        super().__init__(parent, earlier=kept)

    def _sync(self, fileno: int) -> None:
        os.fsync(fileno)

    def leave(self) -> None:
        """Leave it as it is to the next run, when nothing is being written any more."""
        self.threads.shutdown(cancel_futures=True)
        super().leave()

    def close(self) -> None:
        """Remove the directory and all in it. May be repeated."""
        self.threads.shutdown(cancel_futures=True)
        super().close()


class _Kept:
    """A directory that nobody sweeps: that of the journal around it has a lock."""

    lock = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fileno = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def remove_others(self, kept: Collection[str]) -> None:
        for name in os.listdir(self.fileno):
            if name not in kept:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self.fileno)

    def close(self) -> None:
        if self.fileno >= 0:
            self.remove_others(())
            self.leave()
            with contextlib.suppress(OSError):
                self.path.rmdir()

    def leave(self) -> None:
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1
