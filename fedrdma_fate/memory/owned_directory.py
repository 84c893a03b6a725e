"""A directory that belongs to one living process, and is swept away by the next one if that process crashed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

_PREFIX = "fedrdma-"
_LOCK_NAME = "pid"
_UNNAMED_LOCK = re.compile(r"tmp\w{8}")
"""What the lock file is called before it has its name."""
_LABEL_LIMIT = 64
"""Characters of the label in the name of a directory, which may have 255 bytes with what stands around it."""
_GRACE_SECONDS = 60.0
"""A directory without a lock file is one being made, unless it has been so for this long."""


class OwnedDirectory:
    """A directory `fedrdma-<label>-<random>` of mode 0700 with a locked pid file in it.

    The lock, not the number in the file, says that the owner lives: the kernel drops it however the process ends, and
    no other process can get it by being given the same number.
    """

    def __init__(self, path: Path, fileno: int, lock: int) -> None:
        """Wrap a directory, its descriptor and that of its locked pid file. Use `create`."""
        self._path = path
        self._fileno = fileno
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
        fileno = _open(path)
        try:
            return cls(path, fileno, _make_lock(fileno))
        except OSError:
            _remove_unfinished(path, fileno)
            os.close(fileno)
            raise

    @classmethod
    def take_over(cls, path: Path, lock: int | None = None) -> OwnedDirectory:
        """Own what a crashed owner left.

        Args:
            path: of the directory.
            lock: descriptor of its lock, where somebody has held on to it; taken over, whatever comes of it.

        Raises:
            OSError: it is not there, of another user, or somebody else owns it.
        """
        fileno = -1
        try:
            fileno = _open(path)
            named = os.open(_LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=fileno)
            if lock is not None and os.path.samestat(os.fstat(lock), os.fstat(named)):
                os.close(named)
            else:
                # nobody has held on to it, or to another
                if lock is not None:
                    os.close(lock)
                lock = named
            # again is nothing, where it is the very same opening
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(lock, f"{os.getpid()}\n".encode().ljust(os.fstat(lock).st_size), 0)
            return cls(path, fileno, lock)
        except OSError:
            for descriptor in (fileno, -1 if lock is None else lock):
                if descriptor >= 0:
                    os.close(descriptor)
            raise

    @property
    def lock(self) -> int:
        """Descriptor of its lock, which whoever has a copy of holds on to; -1 when closed."""
        return self._lock

    @property
    def path(self) -> Path:
        """Where it was made. Where others may write to its parent, something of theirs may lie there by now."""
        return self._path

    @property
    def fileno(self) -> int:
        """Its descriptor, which leads to it wherever it is; -1 when closed."""
        return self._fileno

    def remove_others(self, kept: Collection[str]) -> None:
        """Remove all files in it but these, and the lock."""
        for name in os.listdir(self._fileno):
            if name != _LOCK_NAME and name not in kept:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._fileno)

    def close(self) -> None:
        """Remove it and all in it. May be repeated."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            _remove(self._path, self._fileno)
        self.leave()

    def leave(self) -> None:
        """Let go of it as it is, as if this process was killed. May be repeated."""
        if self._lock < 0:
            return
        os.close(self._lock)
        os.close(self._fileno)
        self._lock = self._fileno = -1


def sweep(parent: Path) -> list[Path]:
    """Remove what crashed owners (of this user) left in `parent`; which directories those were."""
    removed = []
    for path in sorted(parent.glob(f"{_PREFIX}*")):
        # a neighbour's sweep may be at work on the same directory
        with contextlib.suppress(OSError):
            fileno = _open(path)
            try:
                if _remove_if_dead(path, fileno):
                    removed.append(path)
            finally:
                os.close(fileno)
    return removed


def _open(path: Path) -> int:
    """A descriptor of a directory of this user.

    Raises:
        OSError: there is none; a link is not followed.
    """
    fileno = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(fileno).st_uid != os.geteuid():
        os.close(fileno)
        raise PermissionError(errno.EPERM, "another user owns it", str(path))
    return fileno


def _remove_if_dead(path: Path, fileno: int) -> bool:
    try:
        lock = os.open(_LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=fileno)
    except FileNotFoundError:
        if time.time() - os.fstat(fileno).st_mtime < _GRACE_SECONDS:
            return False
        return _remove_unfinished(path, fileno)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _remove(path, fileno)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


def _remove(path: Path, fileno: int) -> bool:
    """Remove a directory and the files in it; the lock file last, so that what is left of it is swept by a later one.

    Returns:
        whether it is gone.

    Raises:
        OSError: it cannot be looked at, or is not where it was.
    """
    for name in os.listdir(fileno):
        if name != _LOCK_NAME:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=fileno)
    if os.listdir(fileno) != [_LOCK_NAME]:
        return False
    os.unlink(_LOCK_NAME, dir_fd=fileno)
    os.rmdir(path)
    return True


def _remove_unfinished(path: Path, fileno: int) -> bool:
    """Remove what `create` leaves that died before there was a lock; what holds anything else is somebody's own."""
    names = os.listdir(fileno)
    if len(names) > 1 or not all(_UNNAMED_LOCK.fullmatch(name) for name in names):
        return False
    for name in names:
        os.unlink(name, dir_fd=fileno)
    os.rmdir(path)
    return True


def _make_lock(directory: int) -> int:
    """Lock the pid file before it gets its name, so that no sweep ever sees it without."""
    unnamed = f"tmp{secrets.token_hex(4)}"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, f"{os.getpid()}\n".encode())
        os.rename(unnamed, _LOCK_NAME, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.close(lock)
        raise
    return lock
