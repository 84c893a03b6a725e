"""A file of records that are only ever appended: what a process that is killed had written is read by the next one.

Before each record stand its length and a checksum of both (as in the logs of databases), so a record that was being
written when the process was killed is told from a whole one. The checksum begins from a salt of the file's own (as in
SQLite's write-ahead log), so a payload in a record cannot pass for records where a file is damaged and searched for the
next one: who sent it does not know the salt. The header says where the last whole record ends, and is written after it:
so a journal that somebody has cut short is told from one whose last record was never finished. What was written lives
in the kernel, which outlives the process; the machine is outlived only by what was synced (`JournalFile.sync`).

More than 500 lines: what writes the format, and what reads it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import secrets
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator

from fedrdma_fate.memory.disk_room import take_room
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

logger = logging.getLogger(__name__)

MAGIC = b"fedrdma journal 3\n"
"""First in the file; the number is the version of all that follows."""

_SALT_BYTES = 8
"""Behind it: more than the checksum has."""

_END = struct.Struct("<Q")
"""Behind the salt: where the last record ended that was written whole, or an earlier one where that was not noted."""

_END_AT = len(MAGIC) + _SALT_BYTES

HEADER_BYTES = _END_AT + _END.size
"""Before the first record."""

_HEAD = struct.Struct("<II")
"""Before a record: its length, and CRC-32 of the file's salt, that length and the record."""

_LENGTH = struct.Struct("<I")

MOST_RECORD_BYTES = 16 << 20
"""Of a record: the longest has the names of all parties of a session, some 8 MiB of them (a test counts)."""

MOST_FILE_BYTES = 1 << 30
"""A longer file is none of ours: it is compacted long before."""

COMPACT_FROM_BYTES = 16 << 20
"""A file is compacted when it has so many bytes and twice as many as after the last time: what is written anew is then
less than what was appended."""

RESERVED_BYTES = 4 << 20
"""Of the disk, taken behind the end of the file before they are needed: some ten thousand records go on to be written
where others have filled the disk, and few jobs need more of them until somebody has seen to it."""

MOST_UNWRITTEN_BYTES = 4 << 20
"""Kept for a disk that is full just now; beyond, the file is emptied: part of the truth would be worse than none."""

_SEARCHED_BYTES = 1 << 20
"""Behind what is no record, for the next one: a block of a disk has less, and so has a record with a small payload."""

_MOST_CHECKED_BYTES = 1 << 28
"""Of checksums in that search, a second or less: bytes of a payload may look like the lengths of many records."""

_NAME, _NEW_NAME = "journal", "journal.new"

_BEHIND_NAME = "journal.behind"
"""What it is called while a full disk keeps some of it out: a slot that it names may be another message's by then."""

_BEHIND = "its disk was full, and took no more of it"


ANOTHER_VERSION = (
    "It stays as it is, and this gateway does not start. Start the version of fedrdma-fate that wrote it, which hands "
    "out what waits, or remove the directory of the journal, and with it what waits."
)
"""What is to be done about a journal that cannot be read."""

_OTHER_USER = "Start the gateway as that user, or give its user the directory of the journal (`chown -R`)."


class DamagedJournalError(MemoryPoolError):
    """Records are missing from a journal, in the midst of it or at its end.

    Attributes:
        why: what has become of them.
        records: those that are there; what the others have said nobody knows.
    """

    def __init__(self, why: str, records: list[bytes]) -> None:
        """See there."""
        super().__init__(
            ErrorCode.JOURNAL_UNUSABLE,
            f"the journal of an earlier run lacks records: {why}.",
            "Both ends are told of the messages that it names, and its sessions end at all sites. See to the disk.",
        )
        self.why = why
        self.records = records


class ShortenedJournalError(DamagedJournalError):
    """Its last records were whole once, and are gone or damaged; where the machine crashed, they never were on disk."""


def read_records(directory: int) -> tuple[list[bytes], int]:
    """The records of the journal in a directory, as far as they are whole, and how many bytes follow them.

    Args:
        directory: its descriptor.

    Raises:
        FileNotFoundError: there is none.
        MemoryPoolError: JOURNAL_UNUSABLE when it is of another version, or is no journal.
        DamagedJournalError: a record is damaged, and others follow; or it lacks what was written last.
        ShortenedJournalError: it ends before what was written whole.
    """
    is_behind = _is_there(directory, _BEHIND_NAME)
    path = _BEHIND_NAME if is_behind else _NAME
    with open(path, "rb", opener=lambda name, flags: _open(directory, name, flags)) as opened:
        status = os.fstat(opened.fileno())
        if status.st_uid != os.geteuid():
            raise _unusable(f"user {status.st_uid} owns it", _OTHER_USER)
        if status.st_size > MOST_FILE_BYTES:
            raise _unusable(f"it has {status.st_size} bytes")
        data = memoryview(opened.read())
    if not data:
        if is_behind:
            raise DamagedJournalError(_BEHIND, [])
        return [], 0
    if bytes(data[: len(MAGIC)]) != MAGIC[: len(data)]:
        raise _unusable(f"it begins with {bytes(data[: len(MAGIC)])!r}, not {MAGIC!r}")
    if len(data) < HEADER_BYTES:
        # one that was cut within its first bytes has nothing in it
        return [], len(data)
    seed = zlib.crc32(data[len(MAGIC) : _END_AT])
    records, end = _whole(data, HEADER_BYTES, seed)
    damaged_at = end
    while (at := _next_frame(data, end, seed)) is not None:
        more, end = _whole(data, at, seed)
        records += more
    # what a crash has cut short has nothing behind it, and is no longer than a record can be
    if end != damaged_at or len(data) - end > _HEAD.size + MOST_RECORD_BYTES:
        raise DamagedJournalError(f"it is damaged at byte {damaged_at:,}, and goes on behind that", records)
    if is_behind:
        raise DamagedJournalError(_BEHIND, records)
    (written,) = _END.unpack_from(data, _END_AT)
    if end < written:
        raise ShortenedJournalError(f"it was cut short, or damaged, behind byte {end:,} of {written:,}", records)
    return records, len(data) - end


def remove(directory: int) -> None:
    """Remove the journal in a directory. May be repeated, and never raises."""
    for name in (_NAME, _NEW_NAME, _BEHIND_NAME):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)


class JournalFile:
    """Any thread may append."""

    def __init__(self, directory: int, records: Iterable[bytes], *, synced: bool = False) -> None:
        """Begin a new journal with these records, in the place of one that there is, whole or not at all.

        Args:
            directory: descriptor of where it lies, which stays open as long as this is used.
            records: what it begins with.
            synced: whether a new file is on disk before it takes the old one's place: else `sync` promises nothing.

        Raises:
            OSError: it cannot be written.
        """
        self._directory = directory
        self._lock = threading.Lock()
        # a disk may take seconds; who appends waits for neither
        self._sync_lock = threading.Lock()
        self._unwritten = bytearray()
        self._broken = False
        self._salt = secrets.token_bytes(_SALT_BYTES)
        self._seed = zlib.crc32(self._salt)
        self._synced = synced
        self._fileno, self._size = _write_new(directory, self._salt, records)
        self._compacted_size = self._size
        self._reserve_from = 0
        try:
            self._reserve()
            if synced:
                os.fsync(self._fileno)
            _rename(directory, _NEW_NAME, _NAME)
            if synced:
                os.fsync(directory)
        except BaseException:
            _abandon(directory, self._fileno)
            raise
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

        Raises:
            ValueError: one is longer than MOST_RECORD_BYTES, and nothing is written: with it, nobody would read what
                follows.
        """
        if (longest := max(map(len, bodies), default=0)) > MOST_RECORD_BYTES:
            raise ValueError(f"a record has {longest} bytes, more than {MOST_RECORD_BYTES}")
        data = b"".join(_framed(body, self._seed) for body in bodies)
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
            _note_end(self._fileno, self._size)
            if self._size >= self._reserve_from:
                self._reserve()
            return True

    def sync(self) -> None:
        """Wait until all that was appended before is on disk.

        Raises:
            OSError: it is not; where the disk has failed, the journal is given up, for nobody knows what is there.
        """
        with self._sync_lock:
            with self._lock:
                if self._broken or self._fileno < 0 or self._unwritten:
                    raise OSError(errno.ENOSPC, "the journal lacks records")
                fileno = os.dup(self._fileno)
            try:
                os.fdatasync(fileno)
            except OSError as error:
                with self._lock:
                    self._give_up(error)
                raise
            finally:
                os.close(fileno)

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
            data = _read(fileno, HEADER_BYTES, end)
            bodies = (bytes(body) for body, _ in _frames(data, 0, self._seed))
            fresh, size = _write_new(self._directory, self._salt, summarise(bodies))
        finally:
            os.close(fileno)
        is_used = False
        try:
            if not self._synced:
                self._replace(fresh, end, size)
                is_used = True
                return
            # here, where nobody waits for it; what comes meanwhile is little
            os.fsync(fresh)
            # nobody is told meanwhile that anything is on disk: it could be so of one file, and not of the other
            with self._sync_lock:
                end, size = self._follow(fresh, end, size)
                os.fsync(fresh)
                self._replace(fresh, end, size)
                is_used = True
                self._sync_directory()
        finally:
            if not is_used:
                _abandon(self._directory, fresh)

    def _follow(self, fresh: int, end: int, size: int) -> tuple[int, int]:
        """What was appended since follows in the fresh file, too: how many bytes there are here, and there."""
        with self._lock:
            return self._size, self._copy_since(end, fresh, size)

    def _replace(self, fresh: int, end: int, size: int) -> None:
        """The fresh file takes the place of the old one, with all that was appended to that behind `end`."""
        with self._lock:
            size = self._copy_since(end, fresh, size)
            _rename(self._directory, _NEW_NAME, _BEHIND_NAME if self._unwritten else _NAME)
            os.close(self._fileno)
            self._fileno = fresh
            self._size = self._compacted_size = size
            self._reserve()

    def _copy_since(self, end: int, fresh: int, size: int) -> int:
        """What was appended behind `end` follows in the fresh file of that size, with the lock held; its size then."""
        if self._broken or self._fileno < 0:
            raise OSError(errno.EBADF, "the journal was closed, or given up, meanwhile")
        later = _read(self._fileno, end, self._size)
        _write_all(fresh, later)
        _note_end(fresh, size + len(later))
        return size + len(later)

    def _sync_directory(self) -> None:
        try:
            os.fsync(self._directory)
        except OSError as error:
            with self._lock:
                self._give_up(error)
            raise

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

    def _reserve(self) -> None:
        """Take room on the disk for what comes next, so that a disk that others fill keeps nothing out."""
        take_room(self._fileno, self._size, RESERVED_BYTES)
        # where there was none, a try costs too much for each record
        self._reserve_from = self._size + RESERVED_BYTES // 2

    def _keep(self, data: bytes, error: OSError) -> None:
        """A disk is full: what was written in part must not stand before what is written later."""
        first = not self._unwritten
        self._unwritten[:] = data
        try:
            os.ftruncate(self._fileno, self._size)
            os.lseek(self._fileno, self._size, os.SEEK_SET)
            if first:
                _rename(self._directory, _NAME, _BEHIND_NAME)
            is_safe = len(data) <= MOST_UNWRITTEN_BYTES
        except OSError:
            is_safe = False
        if not is_safe:
            self._give_up(error)
        elif first:
            logger.error(
                "cannot write to the journal, and will try again; a gateway killed before loses what it has: %s",
                error.strerror,
            )

    def _give_up(self, error: OSError) -> None:
        self._broken = True
        self._unwritten.clear()
        with contextlib.suppress(OSError):
            os.ftruncate(self._fileno, 0)
        logger.error(
            "the journal is given up: a gateway that is killed from now on loses what it has: %s", error.strerror
        )


def _whole(data: memoryview, at: int, seed: int) -> tuple[list[bytes], int]:
    """Whole records from there on, and where they end."""
    records = []
    for body, after in _frames(data, at, seed):
        records.append(bytes(body))
        at = after
    return records, at


def _next_frame(data: memoryview, at: int, seed: int) -> int | None:
    """Where the next whole record begins behind what is none; None where there is none near, the end if who knows."""
    checked = 0
    for start in _likely_starts(data, at):
        length = _LENGTH.unpack_from(data, start)[0]
        if not 0 < length <= min(MOST_RECORD_BYTES, len(data) - start - _HEAD.size):
            continue
        if next(_frames(data, start, seed), None) is not None:
            return start
        checked += length
        if checked > _MOST_CHECKED_BYTES:
            return len(data)
    return None


def _likely_starts(data: memoryview, at: int) -> Iterator[int]:
    """Where the next record may begin: anywhere behind, and where the damaged one's length says, if that is whole."""
    last = len(data) - _HEAD.size
    yield from range(at + 1, min(at + 1 + _SEARCHED_BYTES, last + 1))
    if at <= last and (after := at + _HEAD.size + _LENGTH.unpack_from(data, at)[0]) <= last:
        yield after


def _framed(body: bytes, seed: int) -> bytes:
    length = _LENGTH.pack(len(body))
    return _HEAD.pack(len(body), zlib.crc32(body, zlib.crc32(length, seed))) + body


def _frames(data: memoryview, at: int, seed: int) -> Iterator[tuple[memoryview, int]]:
    """Whole records from an offset on, each with the offset behind it."""
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if length > MOST_RECORD_BYTES or len(body) != length:
            return
        if zlib.crc32(body, zlib.crc32(_LENGTH.pack(length), seed)) != checksum:
            return
        at += _HEAD.size + length
        yield body, at


def _write_new(directory: int, salt: bytes, records: Iterable[bytes]) -> tuple[int, int]:
    """A new file with these records, not yet in the place of the old one: its descriptor, and how many bytes it has."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_NEW_NAME, dir_fd=directory)
    # not O_APPEND: with that, the kernel would write the header's end behind the records
    fileno = _open(directory, _NEW_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        seed = zlib.crc32(salt)
        bodies = list(records)
        if any(len(body) > MOST_RECORD_BYTES for body in bodies):
            # nobody would read it, nor what stands behind it
            raise OSError(errno.EFBIG, f"a record would be longer than {MOST_RECORD_BYTES} bytes")
        frames = b"".join(_framed(body, seed) for body in bodies)
        data = MAGIC + salt + _END.pack(HEADER_BYTES + len(frames)) + frames
        _write_all(fileno, memoryview(data))
    except BaseException:
        _abandon(directory, fileno)
        raise
    return fileno, len(data)


def _abandon(directory: int, fileno: int) -> None:
    """A new file that does not take the old one's place: on a full disk it takes room of others."""
    os.close(fileno)
    with contextlib.suppress(OSError):
        os.unlink(_NEW_NAME, dir_fd=directory)


def _note_end(fileno: int, end: int) -> None:
    """All before it is whole; never raises, for an earlier end is true as well."""
    with contextlib.suppress(OSError):
        os.pwrite(fileno, _END.pack(end), _END_AT)


def _write_all(fileno: int, data: memoryview) -> None:
    written = 0
    while written < len(data):
        written += os.write(fileno, data[written:])


def _read(fileno: int, start: int, end: int) -> memoryview:
    # of the kernel, and given back to it: the allocator would keep as much for each thread that ever compacts
    data = memoryview(mmap.mmap(-1, max(1, end - start)))[: end - start]
    done = 0
    while done < len(data):
        count = os.preadv(fileno, [data[done:]], start + done)
        if not count:
            raise OSError(errno.EIO, "the journal has become shorter")
        done += count
    return data


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


def _unusable(why: str, remedy: str = ANOTHER_VERSION) -> MemoryPoolError:
    return MemoryPoolError(ErrorCode.JOURNAL_UNUSABLE, f"the journal of an earlier run cannot be used: {why}.", remedy)
