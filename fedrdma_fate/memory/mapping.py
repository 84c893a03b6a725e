"""How a task sees the gateway's memory: the send region to write into, a received message to work on.

A forked child that inherits such views may read them for as long as its parent keeps them too: it is the parent's hold
that keeps the slot leased. What a child itself maps, it holds itself.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable

from fedrdma_fate.memory.paging import MADV_POPULATE_WRITE, advise, populate_for_reading
from fedrdma_fate.memory.region import PAGE_BYTES, region_unusable

_EXTENT_BYTES = 2 * 1024 * 1024
"""What is faulted in is remembered by the extent: the size of a huge page."""


class WritableMapping:
    """The send region of a gateway, mapped for the life of a client, whose threads may share it."""

    def __init__(self, mapping: mmap.mmap) -> None:
        """Use `map_for_writing`."""
        self._map = mapping
        self._view = memoryview(mapping)
        self._resident = bytearray(-(-len(mapping) // _EXTENT_BYTES))

    def slot(self, offset: int, length: int) -> memoryview:
        """The writable bytes [offset, offset + length), faulted in.

        A fault per page would take longer than the copy that follows. Only what is used is faulted in, so that a small
        task pays nothing for a large region.

        Raises:
            ValueError: they do not lie inside the region, or the mapping is closed.
        """
        if offset < 0 or length < 0 or offset + length > len(self._view):
            raise ValueError(f"[{offset}, {offset + length}) is outside a region of {len(self._view)} bytes")
        self._fault_in(offset // _EXTENT_BYTES, -(-(offset + length) // _EXTENT_BYTES))
        return self._view[offset : offset + length]

    def close(self) -> None:
        """Unmap; where a view of a slot is still held, the mapping goes when the view does. May be repeated."""
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()

    def _fault_in(self, first: int, end: int) -> None:
        first = self._resident.find(0, first, end)
        if first < 0:
            return
        end = self._resident.rfind(0, first, end) + 1
        start = first * _EXTENT_BYTES
        advise(self._map, MADV_POPULATE_WRITE, start, min(end * _EXTENT_BYTES, len(self._map)) - start)
        self._resident[first:end] = bytes([1]) * (end - first)


def map_for_writing(fileno: int) -> WritableMapping:
    """Map a gateway's send region, given its descriptor; once per client, which then asks it for slots.

    Raises:
        MemoryPoolError: REGION_UNAVAILABLE when it is not ours to map.
    """
    return WritableMapping(_map_file(fileno, 0, 0, mmap.ACCESS_WRITE))


def map_copy_on_write(
    fileno: int, offset: int, length: int, on_release: Callable[[], None], *, prefault: bool = True
) -> memoryview:
    """A private, writable view of a piece of a region or spill file; writing to it changes nothing elsewhere.

    `on_release` is called once, when the last view of these bytes has died: slices, NumPy arrays and torch tensors made
    from them included. That may happen in any thread and in the middle of anything, so it must neither block nor take
    a lock; `queue.SimpleQueue.put` is safe. It is not called in a forked child, nor when the process ends with views
    alive, nor when mapping failed. Each mapping holds one file descriptor until then.

    Args:
        fileno: of the region or the spill file; the mapping has a copy of it, and with it what is locked by it.
        offset: where the piece starts, a multiple of the page size.
        length: bytes.
        on_release: called without arguments.
        prefault: map all pages now: 20 to 30 ms a GB, where the first reader would spend 35 to 60 on page faults. Not
            for a spill file, which would be read from disk here and now.

    Raises:
        MemoryPoolError: REGION_UNAVAILABLE when the file is shorter, or not ours to map.
        ValueError: offset is not a multiple of the page size, or length is negative.
    """
    if offset % PAGE_BYTES or offset < 0 or length < 0:
        raise ValueError(f"cannot map {length} bytes at {offset}: a multiple of {PAGE_BYTES} is needed")
    # to mmap a length of 0 means all of the file, and an empty file cannot be mapped
    mapping = _map_file(fileno, offset, length, mmap.ACCESS_COPY) if length else mmap.mmap(-1, PAGE_BYTES)
    if prefault:
        populate_for_reading(mapping)
    release = weakref.finalize(mapping, _call_in_process, os.getpid(), on_release)
    # at exit the views may still be in use; the gateway takes the lease back when the connection goes
    release.atexit = False  # type: ignore[misc]  # typeshed gives finalize empty __slots__
    return memoryview(mapping)[:length]


def make_private(mapping: mmap.mmap) -> bool:
    """Give every page of what `map_copy_on_write` mapped memory of this process's own, where it lies: afterwards the
    file may hold something else. Whether that could be done.

    The kernel does for each page what a write would do, and changes none: other threads may read and write meanwhile.
    """
    # Linux 5.14 knows it; where memory is short it fails half-way, and no page is the worse for it
    return advise(mapping, MADV_POPULATE_WRITE)


def _map_file(fileno: int, offset: int, length: int, access: int) -> mmap.mmap:
    try:
        return mmap.mmap(fileno, length, access=access, offset=offset)
    except (OSError, ValueError) as error:
        raise region_unusable("memory of the gateway", error) from error


def _call_in_process(process: int, on_release: Callable[[], None]) -> None:
    """A forked child has copies of the parent's views, but not the parent's leases."""
    if os.getpid() == process:
        on_release()
