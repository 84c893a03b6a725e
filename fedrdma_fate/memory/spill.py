"""Messages that nobody has pulled yet leave memory for a file, so that the next ones have room."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from fedrdma_fate.memory.owned_directory import OwnedDirectory
from fedrdma_fate.memory.shared_slots import BorrowedSlot
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Spilled:
    """A payload in a file, from the file's first byte on, so that a task can map it as it would the slot.

    Attributes:
        path: the file, where it was made.
        length: bytes of payload.
        directory: descriptor of the directory that it lies in.
    """

    path: Path
    length: int
    directory: int

    def open(self) -> int:
        """A descriptor for reading; whoever asked closes it.

        Raises:
            GatewayError: MESSAGE_LOST when somebody has removed the file.
            MemoryPoolError: SPILL_FAILED when there is none to be had just now.
        """
        try:
            return os.open(self.path.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.directory)
        except FileNotFoundError as error:
            raise GatewayError(
                ErrorCode.MESSAGE_LOST,
                f"the spilled message {self.path} was removed.",
                "Run the job again, and leave what lies in memory.spill_directory to the gateway.",
            ) from error
        except OSError as error:
            is_limit = error.errno in (errno.EMFILE, errno.ENFILE)
            raise MemoryPoolError(
                ErrorCode.SPILL_FAILED,
                f"cannot open the spilled message {self.path}: {error.strerror}.",
                "Raise the gateway's limit of open files (`ulimit -n`)." if is_limit else "See to that disk.",
            ) from error

    def discard(self) -> None:
        """Remove the file; whoever has it mapped keeps its bytes. May be repeated, and never raises.

        Where the disk does not let it go, the log says so: whoever gives back more than this goes on.
        """
        try:
            os.unlink(self.path.name, dir_fd=self.directory)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("a spilled message stays on disk: %s", error)


class StoreDirectory(Protocol):
    """Where such files lie."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    @property
    def fileno(self) -> int:
        """A descriptor of it."""
        ...

    @property
    def lock(self) -> int:
        """Descriptor of what keeps it from being removed."""
        ...

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove all files in it but these."""
        ...

    def close(self) -> None:
        """Remove it and all in it."""
        ...

    def leave(self) -> None:
        """Let go of it as it is."""
        ...


class SpillStore:
    """Files of spilled payloads, in a directory of this gateway's own that goes when the gateway does.

    Nothing is synced to disk: a spilled message is no safer than one in memory.
    """

    def __init__(self, directory: Path, label: str = "spill", earlier: StoreDirectory | None = None) -> None:
        """Make `<directory>/fedrdma-<label>-<random>`, and remove what crashed gateways left beside it.

        Args:
            directory: where to make it.
            label: in its name.
            earlier: one that there is, as that of a gateway that was killed, to be used instead.

        Raises:
            MemoryPoolError: SPILL_FAILED when that is not possible.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._directory: StoreDirectory = earlier or OwnedDirectory.create(directory, label)
        except OSError as error:
            raise MemoryPoolError(
                ErrorCode.SPILL_FAILED,
                f"cannot make a directory for spilled messages in {directory}: {error.strerror}.",
                "Point memory.spill_directory at a directory that the gateway's user may write.",
            ) from error

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    @property
    def lock(self) -> int:
        """Descriptor of what keeps it from being removed."""
        return self._directory.lock

    def find(self, name: str, payload_length: int) -> Spilled | None:
        """A payload that an earlier run has spilled here; None where it is not here, or not whole."""
        try:
            status = os.stat(name, dir_fd=self._directory.fileno, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        if os.path.basename(name) != name or not stat.S_ISREG(status.st_mode) or status.st_size != payload_length:
            return None
        return Spilled(self.path / name, payload_length, self._directory.fileno)

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove what lies here beside these files and the lock: an earlier run was killed while it wrote it."""
        self._directory.remove_others(kept)

    def spill(self, slot: Slot, payload_offset: int, payload_length: int) -> Spilled:
        """Write a piece of a slot to a file of its own.

        Blocks for as long as the disk takes: call it from a thread. Several threads may call it at once. The slot is
        only read, and must stay leased until this returns.

        Raises:
            MemoryPoolError: SPILL_FAILED when it cannot be written, as on a full disk; no file is left.
            ValueError: the piece does not lie inside the slot.
        """
        payload = slot.part(payload_offset, payload_length)
        return self._keep(payload_length, lambda file: self._write_payload(file, payload))

    def spill_bytes(self, payload: bytes) -> Spilled:
        """Write a payload to a file of its own; else as `spill`.

        Raises:
            MemoryPoolError: SPILL_FAILED.
        """
        return self._keep(len(payload), lambda file: _write(file, memoryview(payload)))

    def spill_borrowed(self, borrowed: BorrowedSlot) -> Spilled:
        """Copy a borrowed payload to a file of its own; else as `spill`.

        Raises:
            MemoryPoolError: SPILL_FAILED.
        """
        return self._keep(borrowed.length, lambda file: _copy(file, borrowed))

    def again(self, spilled: Spilled) -> Spilled | None:
        """The same bytes once more, under a name of their own; None where the disk has no second name for a file."""
        name, directory = secrets.token_hex(16), self._directory.fileno
        try:
            os.link(spilled.path.name, name, src_dir_fd=spilled.directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError:
            return None
        return Spilled(self.path / name, spilled.length, directory)

    def _keep(self, payload_length: int, write: Callable[[int], None]) -> Spilled:
        try:
            file = UnfinishedFile(self._directory.fileno)
            try:
                write(file.fileno)
                return self._finish(file, payload_length)
            finally:
                file.discard()
        except OSError as error:
            raise self._cannot_spill(payload_length, error) from error

    def _finish(self, file: UnfinishedFile, payload_length: int) -> Spilled:
        """All of it is written.

        Raises:
            OSError: it cannot be had under its name.
        """
        self._sync(file.fileno)
        file.finish()
        self._sync(self._directory.fileno)
        return Spilled(self.path / file.name, payload_length, self._directory.fileno)

    def _cannot_spill(self, payload_length: int, error: OSError) -> MemoryPoolError:
        return MemoryPoolError(
            ErrorCode.SPILL_FAILED,
            f"cannot spill {payload_length} bytes to {self.path}: {error.strerror}.",
            "Make room there, point memory.spill_directory elsewhere, or raise memory.receive_bytes.",
        )

    def _sync(self, fileno: int) -> None:
        """What was written there is as safe as it is to be."""

    def _write_payload(self, fileno: int, payload: Slot) -> None:
        """All of it."""
        _write(fileno, payload.view)

    def leave(self) -> None:
        """Leave it as it is to the next run, which takes it over."""
        self._directory.leave()

    def close(self) -> None:
        """Remove the directory and every spilled message in it. May be repeated."""
        self._directory.close()


class UnfinishedFile:
    """A new file under a name that nobody takes for a payload's; `discard` is to be called in the end, in any case.

    Attributes:
        name: that it gets.
        fileno: of the file.
    """

    def __init__(self, directory: int) -> None:
        """
        Args:
            directory: descriptor of where it lies.

        Raises:
            OSError: it cannot be made.
        """
        self.name = secrets.token_hex(16)
        self._directory = directory
        self._unfinished = f"{self.name}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fileno = os.open(self._unfinished, flags, 0o600, dir_fd=directory)

    def finish(self) -> None:
        """It gets its name.

        Raises:
            OSError: it cannot have it.
        """
        os.rename(self._unfinished, self.name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._unfinished = ""

    def discard(self) -> None:
        """Close it, and remove it unless it is finished. May be repeated."""
        if self.fileno >= 0:
            os.close(self.fileno)
            self.fileno = -1
        if self._unfinished:
            with contextlib.suppress(OSError):
                os.unlink(self._unfinished, dir_fd=self._directory)
            self._unfinished = ""


def _write(fileno: int, payload: memoryview) -> None:
    written = 0
    while written < len(payload):
        # straight from the slot to the page cache, the interpreter free for the other threads meanwhile
        written += os.write(fileno, payload[written:])


def _copy(fileno: int, borrowed: BorrowedSlot) -> None:
    copied = 0
    while copied < borrowed.length:
        count = os.sendfile(fileno, borrowed.fileno, borrowed.offset + copied, borrowed.length - copied)
        if not count:
            raise OSError(errno.EIO, "the borrowed slot has become shorter")
        copied += count
