"""Live keys in a small shared file, so that a writer of the same host sees that a grant was withdrawn before it writes.

The exposing side owns the file, and passes a descriptor of it that is for reading and of an opening of its own, since
locks belong to an opening. A writer locks the key's byte shared while it copies. Withdrawing clears the key first
and then takes the same byte exclusively once, so when it returns no copy is running and none will start. The locks are
open-file-description locks: the kernel drops them when a writer dies.

Neither side maps the table, which is read and written a key at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Iterator

from fedrdma_fate import memory_files
from fedrdma_fate.transport.exposure import ProtocolViolation

_ENTRY = struct.Struct("<Q")
# l_type, l_whence, l_start, l_len, l_pid of the kernel's struct flock
_LOCK = struct.Struct("@hhqqi0q")
_INDEX_BITS = 16
"""The low bits of a key: the place of its entry in the table."""
_RANDOM_BITS = 47
"""Those above, the highest of them set: nobody guesses a key, none is 0, and all are positive as signed numbers."""

ENTRIES = 1 << _INDEX_BITS
"""Grants that can be live at once on a link."""

TABLE_BYTES = ENTRIES * _ENTRY.size
"""Length of the file."""

REVOKE_SECONDS = 5.0
"""A copy under way is waited for so long; it takes milliseconds unless its process was stopped."""


class PeerStuck(Exception):  # noqa: N818 - internal: the endpoint turns it into LINK_LOST
    """The peer has been in the middle of a write for too long."""


class KeyTable:
    """The keys that one endpoint has given out."""

    def __init__(self) -> None:
        """Make the file, with all its bytes, so that no key is without room later.

        Raises:
            OSError: it cannot be made.
        """
        self._fileno = memory_files.make("fedrdma-keys")
        try:
            os.posix_fallocate(self._fileno, 0, TABLE_BYTES)
            memory_files.seal(self._fileno)
        except OSError:
            os.close(self._fileno)
            raise
        self._free = list(range(ENTRIES - 1, -1, -1))
        self._live: set[int] = set()
        self._revoked: dict[int, int] = {}

    def publish(self) -> int:
        """A new live key.

        Raises:
            ValueError: ENTRIES keys are live.
        """
        if not self._free:
            raise ValueError(f"{ENTRIES} grants are exposed already")
        index = self._free.pop()
        key = ((secrets.randbits(_RANDOM_BITS - 1) | 1 << (_RANDOM_BITS - 1)) << _INDEX_BITS) | index
        self._write(index, key)
        self._live.add(index)
        return key

    def revoke(self, key: int) -> None:
        """End a key; when this returns, no write under it is running and none will start.

        Raises:
            PeerStuck: a write under it does not end.
        """
        index = key % ENTRIES
        self._write(index, 0)
        self._live.discard(index)
        self._await_writers(index, 1)
        self._revoked[index] = key
        self._free.append(index)

    def was_revoked(self, key: int) -> bool:
        """Whether this was the last key in its place: a write may have ended before, and its notice come after."""
        return self._revoked.get(key % ENTRIES) == key

    def open_for_reading(self) -> int:
        """A descriptor for the writer; see `PeerKeys`.

        Raises:
            OSError: there is none to be had.
        """
        return memory_files.open_for_reading(self._fileno)

    def close(self) -> None:
        """End all keys and give the file back. May be repeated.

        Raises:
            PeerStuck: a write does not end; the file is given back all the same.
        """
        fileno = self._fileno
        if fileno < 0:
            return
        try:
            for index in self._live:
                self._write(index, 0)
            self._await_writers(0, ENTRIES)
        finally:
            self._fileno = -1
            os.close(fileno)

    def _write(self, index: int, key: int) -> None:
        os.pwrite(self._fileno, _ENTRY.pack(key), index * _ENTRY.size)

    def _await_writers(self, index: int, count: int) -> None:
        deadline = time.monotonic() + REVOKE_SECONDS
        while not _lock(self._fileno, fcntl.F_WRLCK, index, count):
            if time.monotonic() > deadline:
                raise PeerStuck(f"the peer has been in the middle of a write for {REVOKE_SECONDS:g} s")
            # rare: a copy of some MiB is running just now
            time.sleep(0.0005)
        _lock(self._fileno, fcntl.F_UNLCK, index, count)


class PeerKeys:
    """The peer's keys, as a writer sees them."""

    def __init__(self, fileno: int) -> None:
        """Use the peer's file.

        Args:
            fileno: its descriptor, of an opening of its own; it is taken over, whatever comes of it.

        Raises:
            OSError, ValueError: it is not what it should be.
        """
        try:
            memory_files.check(fileno, TABLE_BYTES)
        except (OSError, ValueError):
            os.close(fileno)
            raise
        self._fileno = fileno

    @contextlib.contextmanager
    def holding(self, key: int) -> Iterator[None]:
        """Keep the key from being withdrawn while the body writes.

        Raises:
            ProtocolViolation: it is not live.
        """
        index = key % ENTRIES
        locked = _lock(self._fileno, fcntl.F_RDLCK, index)
        try:
            raw = os.pread(self._fileno, _ENTRY.size, index * _ENTRY.size)
            if not locked or _ENTRY.unpack(raw)[0] != key:
                raise ProtocolViolation("a write names a key that was never granted or was withdrawn")
            yield
        finally:
            if locked:
                _lock(self._fileno, fcntl.F_UNLCK, index)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fileno)


def _lock(fileno: int, kind: int, index: int, count: int = 1) -> bool:
    """Lock or unlock bytes without waiting; False when another holds one."""
    try:
        fcntl.fcntl(fileno, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, index, count, 0))
    except BlockingIOError:
        return False
    return True
