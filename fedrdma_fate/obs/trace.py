"""A trace: one JSON object a line, one line an event."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_log = logging.getLogger(__name__)


TRY_AGAIN_SECONDS = 5.0
"""After a write, or a rotation, that failed, the next try: soon enough for who has made room, and no work for a disk
that is full."""


class Trace:
    """Appends events to a file. Any thread may emit, and several processes may share one file.

    Once open, it never raises: when the file cannot be written (a full disk), it says so once in the log, drops events,
    and tries again every TRY_AGAIN_SECONDS. Then an event `lost` says how many there were.

    A file that has become too long is renamed to its name with `.1` behind, in the place of an earlier one, and begun
    anew.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        most_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the file for appending; None makes a trace that drops everything.

        Args:
            path: of the file.
            most_bytes: as long as it may become; None: it is never begun anew.
            clock: Unix seconds.
            monotonic: seconds, of any origin.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when the file cannot be opened.
        """
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        self._lost = 0
        self._retry_at = 0.0
        self._most_bytes = most_bytes
        self._rotate_at = 0.0
        self._lock = threading.Lock()
        self._fileno = -1 if path is None else _open_for_append(path)
        self._torn = path is not None and _ends_in_a_line(self._fileno, path)
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    @property
    def enabled(self) -> bool:
        """Whether there is a file that events go to."""
        return self._fileno >= 0

    def emit(self, event: str, **fields: object) -> None:
        """Write one event with its time (Unix seconds) and these fields; a field called `time` is dropped."""
        if not self.enabled:
            return
        try:
            line = self._line(event, fields)
        except Exception as error:  # what a field's __str__ may raise is not ours to foresee
            _log.warning("trace event %s is left out, a field does not encode: %s", event, error)
            return
        with self._lock:
            self._write(line)

    def reopen(self) -> None:
        """Open the file anew, which somebody may have renamed; where that cannot be done, the old one goes on."""
        with self._lock:
            if self._fileno >= 0:
                self._open_anew()

    def close(self) -> None:
        """Close the file; later events are dropped."""
        with self._lock:
            if self._fileno >= 0:
                os.close(self._fileno)
                self._fileno = -1

    def _line(self, event: str, fields: Mapping[str, object]) -> bytes:
        stamp: dict[str, object] = {"time": self._clock(), "event": event}
        return self._encoder.encode({**stamp, **fields, **stamp}) + b"\n"

    def _write(self, line: bytes) -> None:
        if self._fileno < 0:
            return
        if self._lost and (self._monotonic() < self._retry_at or not self._tell_gap()):
            self._lost += 1
            return
        if problem := self._append(line):
            self._lost = 1
            self._retry_at = self._monotonic() + TRY_AGAIN_SECONDS
            _log.error("events are lost: the trace %s cannot be written: %s", self._path, problem)

    def _tell_gap(self) -> bool:
        """Whether the file can be written again; then it says how many events are missing."""
        lost = self._lost
        if self._append(self._line("lost", {"events": lost})):
            self._retry_at = self._monotonic() + TRY_AGAIN_SECONDS
            return False
        self._lost = 0
        _log.warning("the trace %s is written again, %d events are missing", self._path, lost)
        return True

    def _open_anew(self) -> None:
        assert self._path is not None
        try:
            fileno = _open_ours(self._path)
        except OSError as error:
            _log.error("the trace %s cannot be opened anew, and goes on as it was: %s", self._path, error.strerror)
            return
        os.close(self._fileno)
        self._fileno, self._torn = fileno, _ends_in_a_line(fileno, self._path)
        # where the other disk was full, this one need not be
        self._retry_at = self._rotate_at = 0.0

    def _rotate_when_long(self, line: bytes) -> None:
        """Begin a new file where this one is too long; one that somebody else has renamed meanwhile is only left."""
        assert self._path is not None
        if self._most_bytes is None or self._monotonic() < self._rotate_at:
            return
        try:
            status = os.fstat(self._fileno)
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                return
            if status.st_size + len(line) <= self._most_bytes:
                return
            if self._is_at_path(status):
                os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            _log.error("the trace %s cannot be begun anew, and becomes longer: %s", self._path, error.strerror)
            self._rotate_at = self._monotonic() + TRY_AGAIN_SECONDS
            return
        self._rotate_at = self._monotonic() + TRY_AGAIN_SECONDS
        self._open_anew()

    def _is_at_path(self, status: os.stat_result) -> bool:
        assert self._path is not None
        try:
            return os.path.samestat(status, self._path.stat())
        except FileNotFoundError:
            return False

    def _append(self, line: bytes) -> str:
        """Why a line could not be written, or empty; in one call, so that O_APPEND keeps several writers apart."""
        self._rotate_when_long(line)
        line = b"\n" + line if self._torn else line
        try:
            written = os.write(self._fileno, line)
        except OSError as error:
            return str(error.strerror)
        if written == len(line):
            self._torn = False
            return ""
        self._torn = not self._take_back(written)
        return f"only {written} of {len(line)} bytes were written"

    def _take_back(self, count: int) -> bool:
        """Cut off half a line, where nobody has written behind it; whether it is gone."""
        try:
            end = os.lseek(self._fileno, 0, os.SEEK_CUR)
            if end < count or os.fstat(self._fileno).st_size != end:
                return False
            os.ftruncate(self._fileno, end - count)
        except OSError:
            return False
        return True


_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
"""Without waiting, should somebody have put a pipe there that nobody reads."""


def _open_for_append(path: Path) -> int:
    try:
        return _open_ours(path)
    except OSError as error:
        raise ConfigError(
            ErrorCode.CONFIG_BAD_VALUE,
            f"the trace file {path} cannot be opened: {error.strerror}.",
            "Point `trace` at a file in a directory that exists and that the gateway may write to.",
        ) from error


def _ends_in_a_line(fileno: int, path: Path) -> bool:
    """Whether an opened file ends in the middle of a line: whoever wrote it was killed there."""
    status = os.fstat(fileno)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _open_ours(path: Path) -> int:
    """Open the file, unless another user of the host has put it, or a link to it, there.

    Raises:
        OSError: one has, or it cannot be opened.
    """
    ours = (os.geteuid(), 0)
    follow = path.is_symlink() and path.lstat().st_uid in ours
    fileno = os.open(path, _APPENDING if follow else _APPENDING | os.O_NOFOLLOW, 0o640)
    status = os.fstat(fileno)
    if stat.S_ISREG(status.st_mode) and status.st_uid not in ours:
        os.close(fileno)
        raise PermissionError(errno.EPERM, f"user {status.st_uid} owns it", str(path))
    os.set_blocking(fileno, True)
    return fileno
