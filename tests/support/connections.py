"""Connections of another process on this host: cut, reset, or made half-open from outside.

The kernel lets one who may trace a process have a copy of its descriptors (pidfd_getfd), and what is done to a socket
through a copy is done to the socket. So the process meets what a failing network does, and nothing of it is replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator

_PIDFD_GETFD = 438
"""The system call's number, the same on all architectures that we know."""

_SO_ATTACH_FILTER = 26
"""Of <asm-generic/socket.h>."""

_AF_UNSPEC = struct.pack("=H14x", socket.AF_UNSPEC)


@contextlib.contextmanager
def copies(pid: int) -> Iterator[list[socket.socket]]:
    """Copies of the TCP sockets of a process that are connected; closed in the end.

    Raises:
        PermissionError: the process may not be traced.
    """
    process = os.pidfd_open(pid)
    found: list[socket.socket] = []
    try:
        # all names first: in this process, a copy may get the number of one that has been closed meanwhile
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/fd") if _is_socket(f"/proc/{pid}/fd/{name}")]
        for number in numbers:
            found.extend(_copy(process, number))
        yield found
    finally:
        os.close(process)
        for each in found:
            each.close()


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except FileNotFoundError:
        return False


def _copy(process: int, number: int) -> Iterator[socket.socket]:
    descriptor = _libc().syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        error = ctypes.get_errno()
        if error == errno.EBADF:
            # closed meanwhile
            return
        raise OSError(error, os.strerror(error))
    each = socket.socket(fileno=descriptor)
    try:
        connected = (
            each.family in (socket.AF_INET, socket.AF_INET6)
            and each.type == socket.SOCK_STREAM
            and bool(each.getpeername())
        )
    except OSError:
        connected = False
    if connected:
        yield each
    else:
        each.close()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def strike(pid: int, chosen: Callable[[int, int], bool], what: Callable[[socket.socket], None]) -> int:
    """Do something to connections of a process.

    Args:
        pid: of the process.
        chosen: by its own port and the other end's.
        what: `cut`, `reset` or `silence`.

    Returns:
        how many there were.
    """
    count = 0
    with copies(pid) as found:
        for each in found:
            with contextlib.suppress(OSError):
                if chosen(each.getsockname()[1], each.getpeername()[1]):
                    what(each)
                    count += 1
    return count


def cut(connection: socket.socket) -> None:
    """Both ends see an end."""
    connection.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    """The other end sees a RST, this one a socket that is not connected."""
    if _libc().connect(connection.fileno(), _AF_UNSPEC, len(_AF_UNSPEC)):
        raise OSError(ctypes.get_errno(), "connect")


def silence(connection: socket.socket) -> None:
    """Nothing that the other end sends comes in any more, not even that it has closed: it is half open."""
    drop_all = struct.pack("HBBI", 0x06, 0, 0, 0)
    instructions = ctypes.create_string_buffer(drop_all)
    program = struct.pack("HL", 1, ctypes.addressof(instructions))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
