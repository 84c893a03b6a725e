"""A file of records that are only ever appended: what a process that is killed had written is read by the next one.

Before each record stand its length and a checksum of both (as in the logs of databases), so a record that was being
written when the process was killed is told from a whole one. Nothing is synced to disk: what was written lives in the
kernel, which outlives the process and not the machine.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator

from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

logger = logging.getLogger(__name__)

MAGIC = b"fedrdma journal 1\n"
"""First in the file; the number is the version of all that follows."""

_HEAD = struct.Struct("<II")
"""Before a record: its length, and CRC-32 of that length and the record."""

_LENGTH = struct.Struct("<I")

MOST_RECORD_BYTES = 16 << 20
"""Of a record: the longest has the names of all parties of a session, some 8 MiB of them (a test counts)."""

MOST_FILE_BYTES = 1 << 30
"""A longer file is none of ours: it is compacted long before."""

COMPACT_FROM_BYTES = 16 << 20
"""A file is compacted when it has so many bytes and twice as many as after the last time: what is written anew is then
less than what was appended."""

MOST_UNWRITTEN_BYTES = 4 << 20
"""Kept for a disk that is full just now; beyond, the file is emptied: part of the truth would be worse than none."""

_NAME, _NEW_NAME = "journal", "journal.new"

_BEHIND_NAME = "journal.behind"
"""What it is called while a full disk keeps some of it out: a slot that it names may be another message's by then."""


def read_records(directory: int) -> tuple[list[bytes], int]:
    """The records of the journal in a directory, as far as they are whole, and how many bytes follow them.

    Args:
        directory: its descriptor.

    Raises:
        FileNotFoundError: there is none.
        MemoryPoolError: JOURNAL_UNUSABLE when it is of another version, lacks what was written last, or is no journal.
    """
    if _is_there(directory, _BEHIND_NAME):
        raise _unusable("its disk was full, and took no more of it")
    with open(_NAME, "rb", opener=lambda name, flags: _open(directory, name, flags)) as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid != os.geteuid():
            raise _unusable(f"user {status.st_uid} owns it")
        if status.st_size > MOST_FILE_BYTES:
            raise _unusable(f"it has {status.st_size} bytes")
        data = memoryview(opened.read())
    if not data:
        return [], 0
    if bytes(data[: len(MAGIC)]) != MAGIC:
        # one that was cut within its first bytes has nothing in it
        if MAGIC.startswith(bytes(data)):
            return [], len(data)
        raise _unusable(f"it begins with {bytes(data[: len(MAGIC)])!r}, not {MAGIC!r}")
    records, end = [], len(MAGIC)
    for body, after in _frames(data, end):
        records.append(bytes(body))
        end = after
    return records, len(data) - end


def remove(directory: int) -> None:
    """Remove the journal in a directory. May be repeated, and never raises."""
    for name in (_NAME, _NEW_NAME, _BEHIND_NAME):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)


class JournalFile:
    """Any thread may append."""

    def __init__(self, directory: int, records: Iterable[bytes]) -> None:
        """Begin a new journal with these records, in the place of one that there is, whole or not at all.

        Args:
            directory: descriptor of where it lies, which stays open as long as this is used.
            records: what it begins with.

        Raises:
            OSError: it cannot be written.
        """
        self._directory = directory
        self._lock = threading.Lock()
        self._unwritten = bytearray()
        self._broken = False
        self._fileno, self._size = _write_new(directory, records)
        self._compacted_size = self._size
        _rename(directory, _NEW_NAME, _NAME)
        with contextlib.suppress(OSError):
            os.unlink(_BEHIND_NAME, dir_fd=directory)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    @property
    def wants_compacting(self) -> bool:
        """Whether much of it speaks of what is over."""
        return self._size > max(COMPACT_FROM_BYTES, 2 * self._compacted_size) and not self._broken

    def append(self, *bodies: bytes) -> bool:
        """Write records behind the others; whether they are there, and all that were to be there before.

        What the disk does not take is kept, and tried again with the next; until then nobody reads the others either.
        """
        data = b"".join(map(_framed, bodies))
        with self._lock:
            if self._broken or self._fileno < 0:
                return False
            if self._unwritten:
                self._unwritten += data
                data = bytes(self._unwritten)
            size = self._size
            try:
                self._write(data)
                if self._unwritten:
                    _rename(self._directory, _BEHIND_NAME, _NAME)
            except OSError as error:
                self._size = size
                self._keep(data, error)
                return False
            self._unwritten.clear()
            return True

    def compact(self, summarise: Callable[[Iterable[bytes]], Iterable[bytes]]) -> None:
        """Write it anew, without what is over; others may append meanwhile.

        Args:
            summarise: fewer records that say the same.

        Raises:
            OSError: it cannot be written anew, and stays as it is.
        """
        with self._lock:
            if self._broken or self._fileno < 0:
                return
            end, fileno = self._size, os.dup(self._fileno)
        try:
            data = _read(fileno, len(MAGIC), end)
            fresh, size = _write_new(self._directory, summarise(bytes(body) for body, _ in _frames(data, 0)))
        finally:
            os.close(fileno)
        with self._lock:
            try:
                if self._fileno < 0:
                    raise OSError(errno.EBADF, "the journal was closed meanwhile")
                # what was appended meanwhile follows from what there was
                later = _read(self._fileno, end, self._size)
                _write_all(fresh, later)
                _rename(self._directory, _NEW_NAME, _BEHIND_NAME if self._unwritten else _NAME)
            except OSError:
                os.close(fresh)
                raise
            os.close(self._fileno)
            self._fileno, self._size = fresh, size + len(later)
            self._compacted_size = self._size

    def close(self) -> None:
        """Append no more; the file stays. May be repeated."""
        with self._lock:
            if self._fileno >= 0:
                os.close(self._fileno)
                self._fileno = -1

    def _write(self, data: bytes) -> None:
        written = os.write(self._fileno, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _keep(self, data: bytes, error: OSError) -> None:
        """A disk is full: what was written in part must not stand before what is written later."""
        first = not self._unwritten
        self._unwritten[:] = data
        try:
            os.ftruncate(self._fileno, self._size)
            if first:
                _rename(self._directory, _NAME, _BEHIND_NAME)
            is_safe = len(data) <= MOST_UNWRITTEN_BYTES
        except OSError:
            is_safe = False
        if not is_safe:
            self._broken = True
            self._unwritten.clear()
            with contextlib.suppress(OSError):
                os.ftruncate(self._fileno, 0)
            logger.error(
                "the journal is given up: a gateway that is killed from now on loses what it has: %s", error.strerror
            )
        elif first:
            logger.error(
                "cannot write to the journal, and will try again; a gateway killed before loses what it has: %s",
                error.strerror,
            )


def _framed(body: bytes) -> bytes:
    length = _LENGTH.pack(len(body))
    return _HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(length))) + body


def _frames(data: memoryview, at: int) -> Iterator[tuple[memoryview, int]]:
    """Whole records from an offset on, each with the offset behind it."""
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if length > MOST_RECORD_BYTES or len(body) != length:
            return
        if zlib.crc32(body, zlib.crc32(_LENGTH.pack(length))) != checksum:
            return
        at += _HEAD.size + length
        yield body, at


def _write_new(directory: int, records: Iterable[bytes]) -> tuple[int, int]:
    """A new file with these records, not yet in the place of the old one: its descriptor, and how many bytes it has."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEW_NAME, dir_fd=directory)
    fileno = _open(directory, _NEW_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    try:
        data = MAGIC + b"".join(map(_framed, records))
        _write_all(fileno, memoryview(data))
    except BaseException:
        os.close(fileno)
        raise
    return fileno, len(data)


def _write_all(fileno: int, data: memoryview) -> None:
    written = 0
    while written < len(data):
        written += os.write(fileno, data[written:])


def _read(fileno: int, start: int, end: int) -> memoryview:
    data = bytearray(end - start)
    done = 0
    while done < len(data):
        count = os.preadv(fileno, [memoryview(data)[done:]], start + done)
        if not count:
            raise OSError(errno.EIO, "the journal has become shorter")
        done += count
    return memoryview(data)


def _rename(directory: int, name: str, to: str) -> None:
    os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _open(directory: int, name: str, flags: int) -> int:
    """For our user alone, and never by a link or a pipe that somebody has put there."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory)


def _unusable(why: str) -> MemoryPoolError:
    return MemoryPoolError(
        ErrorCode.JOURNAL_UNUSABLE,
        f"the journal of an earlier run cannot be used: {why}.",
        "What that run had is lost. Use one version of fedrdma-fate, and a directory of each site's own.",
    )
