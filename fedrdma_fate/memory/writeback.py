"""Writing a file that is to be synced: the disk begins with the first piece while the next ones are written."""

from __future__ import annotations

import contextlib
import ctypes
import os

PIECE_BYTES = 8 << 20
"""Long enough for a disk to work at full speed, short enough that it begins at once. A gigabyte written whole and then
synced is held up by the kernel, which throttles who has made much of its memory dirty: measured, that took five times
as long (docs/results/journal.md)."""

_SYNC_FILE_RANGE_WRITE = 2
"""Of <fcntl.h>: begin to write, and do not wait."""


def write_for_disk(fileno: int, payload: memoryview) -> None:
    """Write it at the end of what was written, and let the disk begin. It is safe only after `fsync`.

    The interpreter is free for other threads meanwhile.

    Raises:
        OSError: it cannot be written.
    """
    written = 0
    while written < len(payload):
        length = os.write(fileno, payload[written : written + PIECE_BYTES])
        _begin_writing(fileno, os.lseek(fileno, 0, os.SEEK_CUR) - length, length)
        written += length


def _begin_writing(fileno: int, offset: int, length: int) -> None:
    # where the C library or the file system has no such function, `fsync` does all of it
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).sync_file_range(
            fileno, ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
        )
