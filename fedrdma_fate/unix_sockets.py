"""Unix sockets: addresses whose path may be of any length, who is at the other end, and descriptors that are passed.

The kernel takes few bytes of path. A socket whose path has more is reached through a descriptor of its directory, under
/proc/self/fd; it lies where it was asked for all the same, so both ends need not agree on how they name it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

LONGEST_DIRECT_BYTES = 107
"""Of a path that the kernel takes as it is: `sun_path` has 108 bytes (unix(7)), the last of them zero."""

LONGEST_NAME_BYTES = 80
"""Of a socket's file name: `/proc/self/fd/` and a descriptor of up to eleven digits leave that much, and one slash."""

_COUNT = struct.Struct("i")
"""Of bytes, as the kernel tells it."""

_CREDENTIALS = struct.Struct("3i")
"""struct ucred of Linux: process, user, group (unix(7), SO_PEERCRED)."""

_DESCRIPTORS = "/proc/self/fd"
"""Where Linux shows a process its own open files, directories among them."""


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """What to `bind` or `connect` to for the socket at `path`; it holds until the context is left.

    Raises:
        OSError: its directory is not there, or its file name is longer than LONGEST_NAME_BYTES.
    """
    if b"\0" in os.fsencode(path):
        raise OSError(errno.EINVAL, "a path has no zero bytes", str(path))
    if len(os.fsencode(path)) <= LONGEST_DIRECT_BYTES:
        yield str(path)
        return
    if not name_fits(path):
        raise OSError(errno.ENAMETOOLONG, f"its file name has more than {LONGEST_NAME_BYTES} bytes", str(path))
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{directory}/{path.name}"
    finally:
        os.close(directory)


def name_fits(path: Path) -> bool:
    """Whether a socket of this file name can be reached wherever it lies."""
    return len(os.fsencode(path.name)) <= LONGEST_NAME_BYTES


def peer_user(connection: socket.socket) -> int:
    """The user at the other end, who connected or listened: the kernel's word, not theirs.

    Raises:
        OSError: it is no connection, or the kernel does not say.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def has_hung_up(connection: socket.socket) -> bool:
    """Whether the other end is closed, or this one, or says no more; also where what it sent has not been read yet."""
    if connection.fileno() < 0:
        return True
    poll = select.poll()
    # the kernel tells of POLLHUP unasked, but over TCP only when this end is closed as well
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def has_unread(connection: socket.socket) -> bool:
    """Whether the other end has still to read something that was sent to it."""
    unread = bytearray(_COUNT.size)
    try:
        # SIOCOUTQ of Linux: on unix sockets, what lies in the queue of the other end (unix(7))
        fcntl.ioctl(connection, termios.TIOCOUTQ, unread)
    except (OSError, ValueError):
        # it is closed, or the kernel does not say
        return False
    return any(unread)


def receive_with_descriptors(
    connection: socket.socket, length: int, most_descriptors: int, deadline: float | None = None
) -> tuple[bytes, list[int]]:
    """Exactly so many bytes of a stream, and the descriptors that came with them; whoever asked closes those.

    Args:
        connection: one that waits for what it reads.
        length: bytes.
        most_descriptors: more are dropped by the kernel, as are those for which this process has no room.
        deadline: by time.monotonic; None: the connection's own time-out, for each piece.

    Raises:
        EOFError: the other end closed it before.
        OSError: it broke; TimeoutError after the deadline. No descriptor is left open.
    """
    received, descriptors = bytearray(), list[int]()
    try:
        while len(received) < length:
            if deadline is not None:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
            wanted = length - len(received)
            piece, came, _, _ = socket.recv_fds(connection, wanted, most_descriptors, socket.MSG_CMSG_CLOEXEC)
            descriptors += came
            if not piece:
                raise EOFError("the other end closed the connection")
            received += piece
    except BaseException:
        close_all(descriptors)
        raise
    return bytes(received), descriptors


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that came and are not wanted."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
