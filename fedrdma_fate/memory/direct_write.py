"""Payloads written to a file past the page cache, where its file system lets them (`O_DIRECT`, open(2)).

A payload that is copied for safety is not read again soon; through the cache, its copy takes a core a third of a second
for each gigabyte, and the disk begins when the kernel thinks fit.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator

from fedrdma_fate.ports import Slot

ALIGNMENT_BYTES = 4096
"""Of addresses, places in the file and lengths of what goes past the cache: what common disks and file systems take;
slots lie so, and payloads in them."""

PIECE_BYTES = 32 * 1024 * 1024
"""Of one write: of less a disk makes more work, and whoever wants it to end waits for one."""

LEAST_BYTES = 1024 * 1024
"""Less goes through the cache, which takes as long, and is there for whoever pulls it."""


def write_payload(fileno: int, payload: Slot, start: int, end: int) -> None:
    """Write bytes of a payload to the same place in a file. Blocks for as long as the disk takes.

    Args:
        fileno: of the file, open for writing.
        payload: where it lies.
        start: the first of its bytes.
        end: behind the last.

    Raises:
        OSError: they cannot be written.
    """
    # where both addresses are aligned at once; elsewhere nothing of it is
    inner_start, inner_end = -(-start // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, end // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    is_aligned = (payload.region.address + payload.offset) % ALIGNMENT_BYTES == 0
    if is_aligned and inner_end - inner_start >= LEAST_BYTES:
        _write(fileno, payload, start, inner_start)
        if _sets_direct(fileno, on=True):
            try:
                inner_start = _write_direct(fileno, payload, inner_start, inner_end)
            finally:
                _sets_direct(fileno, on=False)
        start = inner_start
    _write(fileno, payload, start, end)


def _sets_direct(fileno: int, *, on: bool) -> bool:
    flags = fcntl.fcntl(fileno, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fileno, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # as of a file system that has no such thing
        return False
    return True


def _write_direct(fileno: int, payload: Slot, start: int, end: int) -> int:
    """How far it went: not to the end where the file system wants something else of it."""
    try:
        for at, piece in _pieces(payload, start, end):
            start = at
            if (written := os.pwrite(fileno, piece, at)) != len(piece):
                # a full disk, which the next write says, or a signal
                return at + written // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return start
    return end


def _write(fileno: int, payload: Slot, start: int, end: int) -> None:
    for at, piece in _pieces(payload, start, end):
        written = 0
        while written < len(piece):
            # the interpreter is free for the other threads meanwhile
            written += os.pwrite(fileno, piece[written:], at + written)


def _pieces(payload: Slot, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    for at in range(start, end, PIECE_BYTES):
        yield at, payload.part(at, min(PIECE_BYTES, end - at)).view
