"""Room on a disk that a file takes before it is written to, so that whoever fills the disk later leaves it."""

from __future__ import annotations

import contextlib
import ctypes

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2): the file does not become longer. `os.posix_fallocate` cannot say so."""


def take_room(fileno: int, offset: int, length: int) -> bool:
    """Take the room that a part of a file will need; the file stays as long as it is.

    Args:
        fileno: of a file that is open for writing.
        offset: in bytes, where the part begins.
        length: of it, in bytes.

    Returns:
        Whether it is taken: not on a disk that is full, nor where a file system or the C library knows no such thing.
    """
    with contextlib.suppress(OSError, AttributeError):
        fallocate = ctypes.CDLL(None).fallocate
        return bool(fallocate(fileno, _KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0)
    return False
