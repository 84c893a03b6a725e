"""Messages used where they lie: a gateway of this host, or a task of its, maps the sender's slot instead of a copy.

Whoever uses a lent slot holds a lock on its bytes, which the kernel drops when the process dies, however it dies. So
the lender can find out whether a slot is still in use after losing the gateway that was to tell it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from fedrdma_fate.memory.region import PAGE_BYTES, region_unreachable
from fedrdma_fate.ports import Region, Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

_FLOCK = struct.Struct("hhqqi0q")
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""


def hold_range(fileno: int, offset: int, length: int) -> None:
    """Mark bytes of a lent file as in use, for as long as a descriptor of this opening of it is open anywhere.

    Raises:
        OSError: they cannot be locked.
    """
    fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, offset, length))


def range_is_held(slot: Slot) -> bool:
    """Whether anybody uses a slot of our own region, by `hold_range`."""
    fileno, offset, length = slot.region.fileno, slot.offset, slot.length
    try:
        fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, offset, length))
    except BlockingIOError:
        return True
    fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, offset, length))
    return False


class BorrowedFile:
    """A piece of another gateway's region that is lent to us: open and held, not mapped."""

    def __init__(
        self,
        path: Path,
        offset: int,
        length: int,
        own: Sequence[Region],
        when_closed: Callable[[], object] | None = None,
    ) -> None:
        """Open and hold it.

        Args:
            path: file of the region, as the lender says.
            offset: where the piece starts in it.
            length: bytes.
            own: regions of ours: the file has to be of the same file system and user as the first, and none of them.
            when_closed: called once, when the piece is let go.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when this is nothing that can be borrowed.
        """
        self.path = path
        self.offset = offset
        self.length = length
        self._when_closed: Callable[[], object] | None = None
        try:
            self._fileno = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (OSError, ValueError) as error:
            raise region_unreachable(path, error) from error
        try:
            _check_lendable(self._fileno, path, offset, length, own)
            hold_range(self._fileno, offset, length)
        except OSError as error:
            self.close()
            raise region_unreachable(path, error) from error
        except MemoryPoolError:
            self.close()
            raise
        self._when_closed = when_closed

    @property
    def fileno(self) -> int:
        """The open descriptor; -1 when closed."""
        return self._fileno

    def read_into(self, target: memoryview) -> None:
        """Copy the piece to the start of `target`; other threads may run meanwhile.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when the file has become shorter or cannot be read.
        """
        done = 0
        while done < self.length:
            try:
                count = os.preadv(self._fileno, [target[done : self.length]], self.offset + done)
            except OSError as error:
                raise region_unreachable(self.path, error) from error
            if not count:
                raise region_unreachable(self.path, ValueError("it has become shorter"))
            done += count

    def close(self) -> None:
        """Let it go. May be repeated."""
        fileno, self._fileno = self._fileno, -1
        if fileno >= 0:
            with contextlib.suppress(OSError):
                os.close(fileno)
            if self._when_closed is not None:
                self._when_closed()


def _check_lendable(fileno: int, path: Path, offset: int, length: int, own: Sequence[Region]) -> None:
    """A peer must not make our tasks map anything but its own gateway's region."""
    file, ours = os.fstat(fileno), [os.fstat(region.fileno) for region in own]
    if not stat.S_ISREG(file.st_mode) or (file.st_dev, file.st_uid) != (ours[0].st_dev, ours[0].st_uid):
        reason = "it is not a file of our user in our shared memory"
    elif any(os.path.samestat(file, each) for each in ours):
        reason = "it is a region of our own"
    elif offset % PAGE_BYTES or offset < 0 or length <= 0 or offset + length > file.st_size:
        reason = f"[{offset}, {offset + length}) is not a slot of its {file.st_size} bytes"
    else:
        return
    raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, f"cannot borrow from {path}: {reason}.")


def _lock(kind: int, offset: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, offset, length, 0)
