"""Files in memory that one process makes and others of the host get by descriptor: they have no path.

Whoever maps a file that another process can cut short dies of SIGBUS at the first touch of what is gone. So a file is
sealed against that when it is made, and one of another process is only used when it is sealed, too (memfd_create(2)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

_NOEXEC_SEAL = 0x8
"""MFD_NOEXEC_SEAL of Linux 6.3, which a host may insist on (vm.memfd_noexec) and Python does not name."""

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""On every file of ours: its length is for ever, and so are these seals."""

_OWN_DESCRIPTORS = "/proc/self/fd"
"""Where Linux lets a process open anew what it has open."""


def make(name: str) -> int:
    """A descriptor of a new, empty file of this user only; `seal` it when it has its length.

    Raises:
        OSError: there is none to be had.
    """
    try:
        fileno = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fileno = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # else whoever has a descriptor for reading may open it anew for writing
    os.fchmod(fileno, 0o600)
    return fileno


def seal(fileno: int) -> None:
    """Keep a file from ever having another length.

    Raises:
        OSError: it cannot be sealed.
    """
    fcntl.fcntl(fileno, fcntl.F_ADD_SEALS, _SEALS)


def open_for_reading(fileno: int) -> int:
    """A descriptor for reading only, of an opening of its own: locks on it are not those of the other descriptor.

    Raises:
        OSError: the process has no descriptor left, or no /proc.
    """
    return os.open(f"{_OWN_DESCRIPTORS}/{fileno}", os.O_RDONLY | os.O_CLOEXEC)


def open_for_writing(fileno: int) -> int:
    """A descriptor for reading and writing, of an opening of its own.

    Raises:
        OSError: the process has no descriptor left, or no /proc.
    """
    return os.open(f"{_OWN_DESCRIPTORS}/{fileno}", os.O_RDWR | os.O_CLOEXEC)


def check(fileno: int, length: int) -> None:
    """Do nothing where the file can be mapped without danger, and is as long as it was said to be.

    Raises:
        ValueError: why not.
    """
    status = os.fstat(fileno)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no file in memory")
    seals = 0
    # other files have none, and say so by an error
    with contextlib.suppress(OSError):
        seals = fcntl.fcntl(fileno, fcntl.F_GET_SEALS)
    if not seals & fcntl.F_SEAL_SHRINK:
        raise ValueError("it is not sealed against being cut short")
    if status.st_size != length:
        raise ValueError(f"it has {status.st_size} bytes, not {length}")
