"""A memory region, shared by descriptor and kept for the life of the gateway: warm, or given pages slot by slot."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from fedrdma_fate import memory_files
from fedrdma_fate.memory.paging import MADV_POPULATE_WRITE, advise
from fedrdma_fate.memory.room import available_bytes
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

PAGE_BYTES = mmap.PAGESIZE
_BLOCK_BYTES = 512
"""Unit of st_blocks."""

_FREE_MEMORY = "Free memory, lower memory.send_bytes or memory.receive_bytes, or raise the container's limit."


class SharedRegion:
    """One sealed file in memory, mapped whole.

    Made by the gateway with `create`, opened elsewhere with `attach`. A warm region has all its pages from the start;
    a cold one has none but those of slots between `take` and `give_back`.
    Its pages are huge pages where the kernel gives them to shared memory on advice.
    """

    def __init__(self, name: str, fileno: int, mapping: mmap.mmap, *, warm: bool) -> None:
        """Wrap a mapping; takes over `fileno`. Use `create` or `attach`."""
        self._name = name
        self._warm = warm
        self._fileno = fileno
        self._length = len(mapping)
        self._map = mapping
        self._view = memoryview(mapping)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    @classmethod
    def create(cls, name: str, length: int, *, warm: bool = True) -> SharedRegion:
        """Make the file and map it, with every page when it is to be warm.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there is no memory for `length` bytes.
        """
        if length <= 0 or length % PAGE_BYTES:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE, f"a region needs a positive multiple of {PAGE_BYTES} bytes, not {length}."
            )
        if warm:
            _check_room(length, f"the {name} region of {length} bytes")
        fileno = -1
        try:
            fileno = memory_files.make(f"fedrdma-{name}")
            mapping = _allocate(fileno, length) if warm else _reserve(fileno, length)
            memory_files.seal(fileno)
            return cls(name, fileno, mapping, warm=warm)
        except OSError as error:
            if fileno >= 0:
                os.close(fileno)
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"cannot make the {name} region of {length} bytes: {error.strerror}.",
                "Lower memory.send_bytes or memory.receive_bytes.",
            ) from error

    @classmethod
    def attach(cls, fileno: int, length: int, name: str = "peer's", *, warm: bool | None = None) -> SharedRegion:
        """Map a region made by another process of this host, for writing.

        Args:
            fileno: its descriptor, which is taken over, whatever comes of it.
            length: bytes that it is said to have.
            name: what to call it.
            warm: whether it is to have all its pages; None: as it is.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when it is none, could be cut short, is not ours to write, or lacks
                pages that it is to have and there is no memory for them.
        """
        try:
            memory_files.check(fileno, length)
            # to map a cold region's pages would be to allocate them
            has_all = os.fstat(fileno).st_blocks * _BLOCK_BYTES >= length
            if warm and not has_all:
                os.posix_fallocate(fileno, 0, length)
            warm = has_all if warm is None else warm
            populate = mmap.MAP_POPULATE if warm else 0
            mapping = mmap.mmap(fileno, length, flags=mmap.MAP_SHARED | populate)
        except (OSError, ValueError) as error:
            os.close(fileno)
            raise region_unusable(f"the {name} region", error) from error
        return cls(name, fileno, mapping, warm=warm)

    @property
    def name(self) -> str:
        return self._name

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
        _check_room(length, f"{length} bytes of the {self._name} region")
        try:
            os.posix_fallocate(self._fileno, offset, max(length, 1))
        except OSError as error:
            raise MemoryPoolError(
                ErrorCode.REGION_UNAVAILABLE,
                f"no memory for {length} bytes of the {self._name} region: {error.strerror}.",
                _FREE_MEMORY,
            ) from error

    def give_back(self, offset: int, length: int) -> None:
        """Take the pages of a piece away, also from every process that maps them; rounded up to whole pages."""
        advise(self._map, mmap.MADV_REMOVE, offset, -(-length // PAGE_BYTES) * PAGE_BYTES)

    def close(self) -> None:
        """Unmap. May be repeated.

        The pages live on in processes that still map them, and here while an array still views them.
        """
        if self._fileno < 0:
            return
        os.close(self._fileno)
        self._fileno = -1
        # where a slice or an array is still held somewhere, the mapping goes when it does
        with contextlib.suppress(BufferError):
            self._view.release()
            self._map.close()


def region_unusable(what: str, error: OSError | ValueError) -> MemoryPoolError:
    """The error for memory of another process, or a spill file, that cannot be used here."""
    reason = error.strerror if isinstance(error, OSError) else error
    return MemoryPoolError(
        ErrorCode.REGION_UNAVAILABLE,
        f"cannot use {what}: {reason}.",
        "Gateway and tasks must be of one version and run on one host, with descriptors to spare (`ulimit -n`).",
    )


def _check_room(length: int, what: str) -> None:
    """Raise where there is less memory than that: taken all the same, it would cost some process its life."""
    available = available_bytes()
    if length > available:
        raise MemoryPoolError(
            ErrorCode.REGION_UNAVAILABLE, f"no memory for {what}: {available} bytes are available.", _FREE_MEMORY
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
        # Only fallocate says that there is no memory; without it we would be killed at first touch.
        os.posix_fallocate(fileno, 0, length)
    except OSError:
        mapping.close()
        raise
    if resident:
        return mapping
    mapping.close()
    return mmap.mmap(fileno, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
