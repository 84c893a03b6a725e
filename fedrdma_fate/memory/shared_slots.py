"""Messages used where they lie: a gateway of this host, or a task of its, maps the sender's slot instead of a copy.

Whoever uses a lent slot holds a lock on its bytes, which the kernel drops when the process dies, however it dies. So
the lender can find out whether a slot is still in use after losing the gateway that was to tell it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable

from fedrdma_fate import memory_files
from fedrdma_fate.memory.region import PAGE_BYTES, region_unusable
from fedrdma_fate.ports import LentRegion, Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

_FLOCK = struct.Struct("hhqqi0q")
"""struct flock of 64-bit Linux: type, whence, start, length, pid."""


def hold_range(fileno: int, offset: int, length: int) -> None:
    """Mark bytes of a lent file as in use, for as long as a descriptor of this opening of it is open anywhere.

    Raises:
        OSError: they cannot be locked.
    """
    fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, offset, length))


def let_go_range(fileno: int, offset: int, length: int) -> None:
    """What `hold_range` has marked by this opening is not in use by it any more.

    Raises:
        OSError: it is no open descriptor.
    """
    fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, offset, length))


def range_is_held(slot: Slot) -> bool:
    """Whether anybody uses a slot of our own region, by `hold_range`."""
    fileno, offset, length = slot.region.fileno, slot.offset, slot.length
    try:
        fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_WRLCK, offset, length))
    except BlockingIOError:
        return True
    fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _lock(fcntl.F_UNLCK, offset, length))
    return False


def place_is_held(fileno: int, place: int) -> bool:
    """Whether anybody else holds a lock on one byte of a file, which may lie behind its end."""
    return _held(fileno, place, 1) is not None


def held_ranges(fileno: int, length: int) -> list[tuple[int, int]]:
    """What others hold of the first `length` bytes of a file, by `hold_range`: offsets and lengths, in their order."""
    found, unseen = [], [(0, length)]
    while unseen:
        at, end = unseen.pop()
        if (held := _held(fileno, at, end - at)) is None:
            continue
        # the kernel tells of one of them, not of the first
        start, after = max(held[0], at), min(held[0] + held[1], end) if held[1] else end
        found.append((start, after - start))
        unseen += [piece for piece in ((at, start), (after, end)) if piece[0] < piece[1]]
    return sorted(found)


def _held(fileno: int, offset: int, length: int) -> tuple[int, int] | None:
    """Where a lock of others begins that lies there, and how long it is; 0: to the end of the file."""
    raw = fcntl.fcntl(fileno, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK, offset, length))
    kind, _, start, count, _ = _FLOCK.unpack(raw)
    return None if kind == fcntl.F_UNLCK else (start, count)


class PresentedRegion:
    """The send region of a gateway of this host, which may lend pieces of it to us. Any thread may use it."""

    def __init__(self, fileno: int, length: int) -> None:
        """Keep it.

        Args:
            fileno: its descriptor, which is taken over, whatever comes of it.
            length: bytes that it is said to have.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when it is no memory file of that length, or could be cut short.
        """
        try:
            memory_files.check(fileno, length)
        except (OSError, ValueError) as error:
            os.close(fileno)
            raise region_unusable("the send region of a peer", error) from error
        self._lock = threading.Lock()
        self._fileno = fileno
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    def open_for_reading(self) -> int:
        """See `ports.LentRegion`."""
        with self._lock:
            if self._fileno < 0:
                raise OSError(errno.EBADF, "the data path to its gateway was lost")
            return memory_files.open_for_reading(self._fileno)

    def close(self) -> None:
        """Open it no more. May be repeated."""
        with self._lock:
            if self._fileno >= 0:
                os.close(self._fileno)
                self._fileno = -1


class BorrowedSlot:
    """A piece of another gateway's region that is lent to us: open and held, not mapped."""

    def __init__(
        self, region: LentRegion, offset: int, length: int, when_closed: Callable[[], object] | None = None
    ) -> None:
        """Open and hold it.

        Args:
            region: the lender's send region.
            offset: where the piece starts in it.
            length: bytes.
            when_closed: called once, when the piece is let go.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when this is nothing that can be borrowed.
        """
        if offset % PAGE_BYTES or offset < 0 or length <= 0 or offset + length > region.length:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"cannot borrow [{offset}, {offset + length}): it is no slot of a region of {region.length} bytes.",
            )
        self.offset = offset
        self.length = length
        self._when_closed: Callable[[], object] | None = None
        self._fileno = -1
        try:
            # an opening of its own for each: the lock ends with the last descriptor of it, wherever that is
            self._fileno = region.open_for_reading()
            hold_range(self._fileno, offset, length)
        except OSError as error:
            self.close()
            raise region_unusable("what a peer lends", error) from error
        self._when_closed = when_closed

    @property
    def fileno(self) -> int:
        """The open descriptor; -1 when closed. Who has a copy of it holds the piece."""
        return self._fileno

    def read_into(self, target: memoryview) -> None:
        """Copy the piece to the start of `target`; other threads may run meanwhile.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when it cannot be read.
        """
        done = 0
        while done < self.length:
            try:
                done += os.preadv(self._fileno, [target[done : self.length]], self.offset + done)
            except OSError as error:
                raise region_unusable("what a peer lends", error) from error

    def close(self) -> None:
        """Let it go. May be repeated."""
        fileno, self._fileno = self._fileno, -1
        if fileno >= 0:
            with contextlib.suppress(OSError):
                os.close(fileno)
            if self._when_closed is not None:
                self._when_closed()


def _lock(kind: int, offset: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, offset, length, 0)
