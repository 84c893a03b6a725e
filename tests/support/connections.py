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
from collections.abc import Callable, Iterator, Sequence

_PIDFD_GETFD = 438
"""The system call's number, the same on all architectures that we know."""

_SO_ATTACH_FILTER = 26
"""Of <asm-generic/socket.h>."""

_SO_DETACH_FILTER = 27
"""Likewise."""

_SO_MAX_PACING_RATE = 47
"""Likewise."""

_RANDOM = 0xFFFFF000 + 56
"""Of <linux/filter.h>, SKF_AD_OFF + SKF_AD_RANDOM: where a filter loads a random number from."""

_MOST_REPLAYED_BYTES = 1 << 14
"""Some records or frames, and a datagram."""

_AF_UNSPEC = struct.pack("=H14x", socket.AF_UNSPEC)


@contextlib.contextmanager
def copies(pid: int, *, datagrams: bool = False) -> Iterator[list[socket.socket]]:
    """Copies of the TCP sockets of a process that are connected, and those of UDP on request; closed in the end.

    Raises:
        PermissionError: the process may not be traced.
    """
    process = os.pidfd_open(pid)
    found: list[socket.socket] = []
    try:
        # all names first: in this process, a copy may get the number of one that has been closed meanwhile
        numbers = [int(name) for name in os.listdir(f"/proc/{pid}/fd") if _is_socket(f"/proc/{pid}/fd/{name}")]
        for number in numbers:
            found.extend(_copy(process, number, datagrams))
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


def _copy(process: int, number: int, datagrams: bool) -> Iterator[socket.socket]:
    descriptor = _libc().syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        error = ctypes.get_errno()
        if error == errno.EBADF:
            # closed meanwhile
            return
        raise OSError(error, os.strerror(error))
    try:
        each = socket.socket(fileno=descriptor)
    except OSError:
        # closed meanwhile, and its number is that of a file
        os.close(descriptor)
        return
    try:
        wanted = each.family in (socket.AF_INET, socket.AF_INET6) and (
            (each.type == socket.SOCK_STREAM and bool(each.getpeername()))
            or (each.type == socket.SOCK_DGRAM and datagrams)
        )
    except OSError:
        wanted = False
    if wanted:
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
    _filter(connection, [(0x06, 0, 0, 0)])


def _filter(connection: socket.socket, instructions: Sequence[tuple[int, int, int, int]]) -> None:
    """Each: operation, jump where it is true, jump where not, value; the last ones return how many bytes are kept."""
    packed = b"".join(struct.pack("HBBI", *each) for each in instructions)
    kept = ctypes.create_string_buffer(packed)
    program = struct.pack("HL", len(instructions), ctypes.addressof(kept))
    connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def why_not_half_open() -> str:
    """Why this user cannot make TCP connections half-open, or lose what comes in by them; empty where they can."""
    with socket.socket() as connection:
        try:
            silence(connection)
        except PermissionError:
            return "this kernel lets only root put a filter on a TCP socket"
    return ""


def lose(connection: socket.socket, share: float) -> None:
    """So much of what comes in is dropped, segment by segment or datagram by datagram, until `heal`."""
    limit = int(share * 0xFFFFFFFF)
    # a random number: below the limit nothing of it is kept, else all
    _filter(connection, [(0x20, 0, 0, _RANDOM), (0x35, 1, 0, limit), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)])


def truncate(connection: socket.socket, share: float, kept_bytes: int) -> None:
    """Of so much of what comes in no more than the first bytes are kept, until `heal`."""
    limit = int(share * 0xFFFFFFFF)
    _filter(
        connection, [(0x20, 0, 0, _RANDOM), (0x35, 1, 0, limit), (0x06, 0, 0, kept_bytes), (0x06, 0, 0, 0xFFFFFFFF)]
    )


def pace(connection: socket.socket, rate: int) -> None:
    """What this process sends leaves at so many bytes a second at most; a stream's alone."""
    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)


def heal(connection: socket.socket) -> None:
    """All that comes in is kept again."""
    with contextlib.suppress(FileNotFoundError):
        connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def replay(target: socket.socket, source: socket.socket) -> bool:
    """Send again what the target has not read yet, by the other end's own socket; whether there was anything."""
    try:
        unread = target.recv(_MOST_REPLAYED_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        if not unread:
            return False
        if target.type == socket.SOCK_DGRAM:
            source.sendto(unread, socket.MSG_DONTWAIT, target.getsockname())
        else:
            source.send(unread, socket.MSG_DONTWAIT)
    except OSError:
        # it has ended, or has no room
        return False
    return True
