"""A memory region in shared memory, kept for the life of the gateway: warm, or filled with pages slot by slot."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path

from fedrdma_fate.memory.paging import MADV_POPULATE_WRITE, advise
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

PAGE_BYTES = mmap.PAGESIZE
_BLOCK_BYTES = 512
"""Unit of st_blocks."""


class SharedRegion:
    """One file in shared memory, mapped whole.

    Made by the gateway with `create`, opened elsewhere with `attach`. A warm region has all its pages from the start;
    a cold one has none but those of slots between `take` and `give_back`.
    On a tmpfs mounted with `huge=advise`, `within_size` or `always` its pages are huge pages.
    """

    def __init__(self, path: Path, fileno: int, mapping: mmap.mmap, *, owner: bool, warm: bool) -> None:
        """Wrap a mapping; takes over `fileno`. Use `create` or `attach`."""
        self._path = path
        self._warm = warm
        self._fileno = fileno
        self._length = len(mapping)
        self._owner = owner
        self._map = mapping
        self._view = memoryview(mapping)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    @classmethod
    def create(cls, path: Path, length: int, *, warm: bool = True) -> SharedRegion:
        """Make the file and map it, with every page when it is to be warm.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when the directory cannot hold `length` bytes.
        """
        if length <= 0 or length % PAGE_BYTES:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE, f"a region needs a positive multiple of {PAGE_BYTES} bytes, not {length}."
            )
        fileno = -1
        try:
            fileno = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            mapping = _allocate(fileno, length) if warm else _reserve(fileno, length)
            return cls(path, fileno, mapping, owner=True, warm=warm)
        except OSError as error:
            if fileno >= 0:
                os.close(fileno)
                path.unlink(missing_ok=True)
            room = " There is not enough room." if error.errno in (errno.ENOSPC, errno.ENOMEM) else ""
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"cannot make a region of {length} bytes at {path}: {error.strerror}.{room}",
                "Lower memory.send_bytes or memory.receive_bytes, or point memory.directory at a larger tmpfs.",
            ) from error

    @classmethod
    def attach(cls, path: Path) -> SharedRegion:
        """Map a region made by another process of this host.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when the file is not there or not ours to map.
        """
        try:
            fileno = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise region_unreachable(path, error) from error
        try:
            file = os.fstat(fileno)
            # to map a cold region's pages would be to allocate them
            warm = file.st_blocks * _BLOCK_BYTES >= file.st_size
            populate = mmap.MAP_POPULATE if warm else 0
            mapping = mmap.mmap(fileno, file.st_size, flags=mmap.MAP_SHARED | populate)
        except (OSError, ValueError) as error:
            os.close(fileno)
            raise region_unreachable(path, error) from error
        return cls(path, fileno, mapping, owner=False, warm=warm)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def length(self) -> int:
        return self._length

    @property
    def address(self) -> int:
        return self._address

    @property
    def fileno(self) -> int:
        return self._fileno

    @property
    def view(self) -> memoryview:
        return self._view

    def take(self, offset: int, length: int) -> None:
        """Give a piece of a cold region its pages, zeroed where it had none; a warm one has them.

        Only fallocate says that there is no memory for a page: to touch one that is missing is a SIGBUS then.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there is no memory for them.
        """
        if self._warm:
            return
        try:
            os.posix_fallocate(self._fileno, offset, max(length, 1))
        except OSError as error:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"no memory for {length} bytes of {self._path}: {error.strerror}.",
                "Free memory of the tmpfs, or use `memory.warm: true` to have it all from the start on.",
            ) from error

    def give_back(self, offset: int, length: int) -> None:
        """Take the pages of a piece away, also from every process that maps them; rounded up to whole pages."""
        advise(self._map, mmap.MADV_REMOVE, offset, -(-length // PAGE_BYTES) * PAGE_BYTES)

    def close(self) -> None:
        """Unmap, and remove the file if we made it. May be repeated.

        The pages live on in processes that still map them, and here while an array still views them.
        """
        if self._fileno < 0:
            return
        os.close(self._fileno)
        self._fileno = -1
        if self._owner:
            self._path.unlink(missing_ok=True)
        # where a slice or an array is still held somewhere, the mapping goes when it does
        with contextlib.suppress(BufferError):
            self._view.release()
            self._map.close()


def region_unreachable(path: Path, error: OSError | ValueError) -> MemoryPoolError:
    """The error for a region or spill file that this process cannot map."""
    reason = error.strerror if isinstance(error, OSError) else error
    return MemoryPoolError(
        ErrorCode.REGION_UNAVAILABLE,
        f"cannot map {path}: {reason}.",
        "Gateway and tasks must run on one host, as the same user, and see the same memory.directory; "
        "after a gateway's restart its old regions are gone.",
    )


def _reserve(fileno: int, length: int) -> mmap.mmap:
    """Give the file `length` bytes without a page, and map them."""
    os.ftruncate(fileno, length)
    return mmap.mmap(fileno, length)


def _allocate(fileno: int, length: int) -> mmap.mmap:
    """Give the file `length` bytes of zeroed pages, huge ones where the file system offers them, and map them."""
    os.ftruncate(fileno, length)
    mapping = mmap.mmap(fileno, length)
    try:
        # Before fallocate, which knows nothing of this mapping's advice and would take small pages.
        advise(mapping, mmap.MADV_HUGEPAGE)
        resident = advise(mapping, MADV_POPULATE_WRITE)
        # Only fallocate tells ENOSPC from other trouble; without it a full tmpfs would kill us at first touch.
        os.posix_fallocate(fileno, 0, length)
    except OSError:
        mapping.close()
        raise
    if resident:
        return mapping
    mapping.close()
    return mmap.mmap(fileno, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
