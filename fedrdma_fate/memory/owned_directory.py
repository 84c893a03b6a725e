"""A directory that belongs to one living process, and is swept away by the next one if that process crashed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path

_PREFIX = "fedrdma-"
_LOCK_NAME = "pid"
_UNNAMED_LOCK = re.compile(r"tmp\w{8}")
"""What `tempfile.mkstemp` calls the lock file before it has its name."""
_LABEL_LIMIT = 64
"""Characters of the label in the name of a directory, which may have 255 bytes with what stands around it."""
_GRACE_SECONDS = 60.0
"""A directory without a lock file is one being made, unless it has been so for this long."""


class OwnedDirectory:
    """A directory `fedrdma-<label>-<random>` of mode 0700 with a locked pid file in it.

    The lock, not the number in the file, says that the owner lives: the kernel drops it however the process ends, and
    no other process can get it by being given the same number.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Wrap a directory and the descriptor of its locked pid file. Use `create`."""
        self._path = path
        self._lock = lock

    @classmethod
    def create(cls, parent: Path, label: str) -> OwnedDirectory:
        """Sweep dead owners' directories out of `parent`, then make a new one in it.

        Raises:
            OSError: `parent` is missing, full or not ours to write.
        """
        sweep(parent)
        safe_label = re.sub(r"[^A-Za-z0-9._-]", "_", label)[:_LABEL_LIMIT]
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{safe_label}-", dir=parent))
        try:
            return cls(path, _make_lock(path))
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._path

    def close(self) -> None:
        """Remove it and all in it. May be repeated."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            _remove(self._path)
        os.close(self._lock)
        self._lock = -1


def sweep(parent: Path) -> list[Path]:
    """Remove what crashed owners (of this user) left in `parent`; which directories those were."""
    removed = []
    for path in sorted(parent.glob(f"{_PREFIX}*")):
        # a neighbour's sweep may be at work on the same directory
        with contextlib.suppress(OSError):
            if _is_ours(path) and _remove_if_dead(path):
                removed.append(path)
    return removed


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _remove_if_dead(path: Path) -> bool:
    try:
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if time.time() - path.lstat().st_mtime < _GRACE_SECONDS:
            return False
        return _remove_unfinished(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _remove(path)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _remove(path: Path) -> bool:
    """Remove a directory and the files in it; the lock file last, so that what is left of it is swept by a later one.

    Returns:
        whether it is gone.

    Raises:
        OSError: it cannot be looked at, or its lock file not be removed.
    """
    for name in os.listdir(path):
        if name != _LOCK_NAME:
            with contextlib.suppress(OSError):
                os.unlink(path / name)
    if os.listdir(path) != [_LOCK_NAME]:
        return False
    os.unlink(path / _LOCK_NAME)
    os.rmdir(path)
    return True


def _remove_unfinished(path: Path) -> bool:
    """Remove what `create` leaves that died before there was a lock; what holds anything else is somebody's own."""
    names = os.listdir(path)
    if len(names) > 1 or not all(_UNNAMED_LOCK.fullmatch(name) for name in names):
        return False
    for name in names:
        os.unlink(path / name)
    path.rmdir()
    return True


def _make_lock(path: Path) -> int:
    """Lock the pid file before it gets its name, so that no sweep ever sees it without."""
    lock, unnamed = tempfile.mkstemp(dir=path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, f"{os.getpid()}\n".encode())
        Path(unnamed).rename(path / _LOCK_NAME)
    except OSError:
        os.close(lock)
        raise
    return lock
