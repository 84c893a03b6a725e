"""Copies of payloads on disk, each synced before anybody is told that it is there (`durable`).

They lie in a directory of their site's journal, which no other gateway removes, whoever has died.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedrdma_fate.memory.direct_write import ALIGNMENT_BYTES, write_payload
from fedrdma_fate.memory.spill import Spilled, SpillStore, UnfinishedFile
from fedrdma_fate.ports import Slot
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

    def begin(self, payload: Slot) -> CopyAhead:
        """A copy of a payload that is still coming; to be discarded in the end."""
        return CopyAhead(self, payload)

    def _cannot_spill(self, payload_length: int, error: OSError) -> MemoryPoolError:
        return MemoryPoolError(
            ErrorCode.SPILL_FAILED,
            f"cannot have {payload_length} bytes on disk in {self.path}: {error.strerror}.",
            "Make room there, or point state_directory elsewhere: with `durable: true`, a message has to be on disk.",
        )

    def _sync(self, fileno: int) -> None:
        os.fsync(fileno)

    def _write_payload(self, fileno: int, payload: Slot) -> None:
        write_payload(fileno, payload, 0, payload.length)

    def leave(self) -> None:
        """Leave it as it is to the next run, when nothing is being written any more."""
        self.threads.shutdown(cancel_futures=True)
        super().leave()

    def close(self) -> None:
        """Remove the directory and all in it. May be repeated."""
        self.threads.shutdown(cancel_futures=True)
        super().close()


class CopyAhead:
    """A copy that is written while its payload comes, in whatever order, by one thread after the other.

    Attributes:
        payload: where it comes.
    """

    def __init__(self, copies: PayloadCopies, payload: Slot) -> None:
        """Use `PayloadCopies.begin`."""
        self._copies = copies
        self.payload = payload
        self._file: UnfinishedFile | None = None
        self._written = (0, 0)
        self._in_use = threading.Lock()
        self._is_discarded = False

    def write(self, start: int, end: int) -> None:
        """These bytes lie in the slot: more of them than the last time, at one end or both. Not once it is discarded.

        Raises:
            MemoryPoolError: SPILL_FAILED.
        """
        # whole blocks, so that all of them go past the page cache
        start = -(-start // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if end != self.payload.length:
            end = end // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        with self._used():
            if start < end and not self._is_discarded:
                self._write(start, end)

    def finish(self) -> Spilled:
        """Write what is left, now that all has come, and sync it.

        Raises:
            MemoryPoolError: SPILL_FAILED.
        """
        with self._used():
            return self._copies._finish(self._write(0, self.payload.length), self.payload.length)

    def discard(self) -> None:
        """Nobody needs it any more; what is finished stays. From any thread, at any time, and more than once."""
        self._is_discarded = True
        # else who uses it does this as soon as that is over: a descriptor that is closed may be another file's next
        if self._in_use.acquire(blocking=False):
            try:
                if self._file is not None:
                    self._file.discard()
            finally:
                self._in_use.release()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        try:
            with self._in_use:
                yield
        except OSError as error:
            raise self._copies._cannot_spill(self.payload.length, error) from error
        finally:
            if self._is_discarded:
                self.discard()

    def _write(self, start: int, end: int) -> UnfinishedFile:
        if self._file is None:
            self._file = UnfinishedFile(self._copies._directory.fileno)
        first, behind = self._written if self._written[1] else (end, end)
        write_payload(self._file.fileno, self.payload, start, first)
        write_payload(self._file.fileno, self.payload, behind, end)
        self._written = start, end
        return self._file


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
