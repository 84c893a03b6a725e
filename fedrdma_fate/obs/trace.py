"""A trace: one JSON object a line, one line an event."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_log = logging.getLogger(__name__)


class Trace:
    """Appends events to a file. Any thread may emit, and several processes may share one file.

    Once open, it never raises: when the file can no longer be written (a full disk), it says so once in the log and
    turns itself off, and the data path goes on.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Open the file for appending; None makes a trace that drops everything.

        Raises:
            ConfigError: CONFIG_BAD_VALUE when the file cannot be opened.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._fileno = -1 if path is None else _open_for_append(path)
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    @property
    def enabled(self) -> bool:
        """Whether events are still written."""
        return self._fileno >= 0

    def emit(self, event: str, **fields: object) -> None:
        """Write one event with its time (Unix seconds) and these fields; a field called `time` is dropped."""
        if not self.enabled:
            return
        stamp: dict[str, object] = {"time": self._clock(), "event": event}
        try:
            line = self._encoder.encode(stamp | fields | stamp) + b"\n"
        except Exception as error:  # what a field's __str__ may raise is not ours to foresee
            _log.warning("trace event %s is left out, a field does not encode: %s", event, error)
            return
        with self._lock:
            self._write(line)

    def close(self) -> None:
        """Close the file; later events are dropped."""
        with self._lock:
            if self._fileno >= 0:
                os.close(self._fileno)
                self._fileno = -1

    def _write(self, line: bytes) -> None:
        """One write call a line, so that O_APPEND keeps lines of several writers apart."""
        if self._fileno < 0:
            return
        try:
            written = os.write(self._fileno, line)
            problem = "" if written == len(line) else f"only {written} of {len(line)} bytes were written"
        except OSError as error:
            problem = str(error.strerror)
        if problem:
            os.close(self._fileno)
            self._fileno = -1
            _log.error("the trace %s is turned off: %s", self._path, problem)


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
