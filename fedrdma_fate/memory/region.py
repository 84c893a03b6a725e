"""A memory region in shared memory, faulted in once and kept for the life of the gateway."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path

from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

PAGE_BYTES = mmap.PAGESIZE


class SharedRegion:
    """One file in shared memory, mapped whole.

    Made by the gateway with `create` (pages are allocated and mapped there and then), opened elsewhere with `attach`.
    """

    def __init__(self, path: Path, fileno: int, length: int, *, owner: bool) -> None:
        self._path = path
        self._fileno = fileno
        self._length = length
        self._owner = owner
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if length else 0)
        self._map = mmap.mmap(fileno, length, flags=flags)
        self._view = memoryview(self._map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls, path: Path, length: int) -> SharedRegion:
        """Make the file, allocate and map every page.

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
            os.posix_fallocate(fileno, 0, length)
            return cls(path, fileno, length, owner=True)
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
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"cannot map the region {path}: {error.strerror}.",
                "Both processes must run on one host, as the same user, and see the same memory.directory.",
            ) from error
        try:
            return cls(path, fileno, os.fstat(fileno).st_size, owner=False)
        except (OSError, ValueError) as error:
            os.close(fileno)
            raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, f"cannot map the region {path}: {error}.") from error

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

    def close(self) -> None:
        """Unmap, and remove the file if we made it. The pages live on in processes that still map them."""
        if self._fileno < 0:
            return
        os.close(self._fileno)
        self._fileno = -1
        self._view.release()
        # where a slice is still held somewhere, the mapping goes when the slice does
        with contextlib.suppress(BufferError):
            self._map.close()
        if self._owner:
            self._path.unlink(missing_ok=True)
