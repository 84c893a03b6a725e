"""How the two halves of a `shm` link meet: at a socket that only one user's processes on one host can reach.

That both can reach it is the proof that they are on one host, and the kernel says which user is at the other end. Over
it each side passes descriptors of what the other may use; what a peer says elsewhere never names a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedrdma_fate import memory_files
from fedrdma_fate.ports import Region
from fedrdma_fate.transport.listener import ConnectError
from fedrdma_fate.transport.shm_keys import KeyTable
from fedrdma_fate.unix_sockets import address_of, close_all, peer_user, receive_with_descriptors

_PRESENT = struct.Struct("<8sQQ")
"""Magic, length of the receive region, and of the send region or 0 where nothing is to be lent; descriptors with it."""
_MAGIC = b"FRDMfd\x00\x01"

_MOST_DESCRIPTORS = 3
"""Key table, receive region, send region."""

_MEETING_ID = re.compile(r"[0-9a-f]{16}")
"""What a peer may say of where its socket is."""


class MeetingPlace:
    """The name of a gateway's socket, in its own directory beside those of the other gateways of the host."""

    def __init__(self, directory: Path) -> None:
        """
        Args:
            directory: of this gateway alone, in the one that all gateways of the host see.
        """
        self.id = secrets.token_hex(8)
        self.path = directory.resolve() / _socket_name(self.id)

    def find(self, meeting: str) -> Path:
        """Where a peer listens that named this meeting.

        Raises:
            ConnectError: it is no name of one, or no gateway of this user listens there.
        """
        if not _MEETING_ID.fullmatch(meeting):
            raise ConnectError(f"the peer named {meeting[:64]!r}, which is no place to meet")
        for path in self.path.parent.parent.glob(f"fedrdma-*/{_socket_name(meeting)}"):
            with contextlib.suppress(OSError):
                if path.parent.lstat().st_uid == os.geteuid():
                    return path
        raise ConnectError(f"no gateway of this user listens in {self.path.parent.parent} for it")


def _socket_name(meeting: str) -> str:
    return f"shm-{meeting}.sock"


def reach(path: Path, seconds: float) -> socket.socket:
    """Connect to a gateway's socket.

    Raises:
        OSError: that is not possible.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        with address_of(path) as address:
            connection.connect(address)
        _check_user(connection)
    except BaseException:
        connection.close()
        raise
    return connection


class Presented:
    """What the peer has passed, until somebody takes it over, who then checks and closes it.

    Attributes:
        region_bytes: length of its receive region, as it says.
        lent_bytes: of its send region, 0 where it lends nothing.
    """

    def __init__(self, keys: int, region: int, region_bytes: int, lent: int | None, lent_bytes: int) -> None:
        self.region_bytes = region_bytes
        self.lent_bytes = lent_bytes
        self._open = {"keys": keys, "region": region}
        if lent is not None:
            self._open["lent"] = lent

    def take_keys(self) -> int:
        """Descriptor of its key table."""
        return self._open.pop("keys")

    def take_region(self) -> int:
        """Of its receive region, to write into."""
        return self._open.pop("region")

    def take_lent(self) -> int | None:
        """Of its send region, to read; None where it lends nothing."""
        return self._open.pop("lent", None)

    def close(self) -> None:
        """Drop what nobody took."""
        close_all(list(self._open.values()))
        self._open.clear()


def present(
    connection: socket.socket, keys: KeyTable, receive: Region, send: Region | None, timeout: float
) -> Presented:
    """Pass the peer descriptors of ours, and take its own.

    Args:
        connection: to a peer that is welcome.
        keys: our key table, for reading.
        receive: our receive region, which the peer may map for writing.
        send: our send region, to read; None lends nothing.
        timeout: seconds.

    Raises:
        ConnectError: the peer is of another user, did not do its part in time, or passed something else.
        OSError: we have no descriptor left.
    """
    deadline = time.monotonic() + timeout
    try:
        _check_user(connection)
        connection.settimeout(timeout)
        with _descriptors_of(keys, receive, send) as ours:
            lengths = receive.length, 0 if send is None else send.length
            message = _PRESENT.pack(_MAGIC, *lengths)
            # so few bytes into an empty socket go at once or not at all
            socket.send_fds(connection, [message], ours)
        raw, theirs = receive_with_descriptors(connection, _PRESENT.size, _MOST_DESCRIPTORS, deadline)
    except TimeoutError as late:
        raise ConnectError(f"the peer presented nothing within {timeout:g} s") from late
    except (EOFError, ConnectionError) as ended:
        raise ConnectError(f"the peer went away: {ended}") from ended
    return _understand(raw, theirs)


@contextlib.contextmanager
def _descriptors_of(keys: KeyTable, receive: Region, send: Region | None) -> Iterator[Sequence[int]]:
    """Ours, as the peer shall have them; the copies are closed again."""
    reading: list[int] = []
    try:
        reading.append(keys.open_for_reading())
        if send is not None:
            reading.append(memory_files.open_for_reading(send.fileno))
        yield [reading[0], receive.fileno, *reading[1:]]
    finally:
        close_all(reading)


def _understand(raw: bytes, descriptors: list[int]) -> Presented:
    magic, region_bytes, lent_bytes = _PRESENT.unpack(raw)
    expected = _MOST_DESCRIPTORS if lent_bytes else _MOST_DESCRIPTORS - 1
    if magic != _MAGIC or len(descriptors) != expected:
        close_all(descriptors)
        raise ConnectError(
            f"the peer passed {len(descriptors)} descriptors, not {expected}"
            if magic == _MAGIC
            else "the peer is not a fedrdma-fate gateway of this version"
        )
    keys, region, *lent = descriptors
    return Presented(keys, region, region_bytes, lent[0] if lent else None, lent_bytes)


def _check_user(connection: socket.socket) -> None:
    user = peer_user(connection)
    if user != os.geteuid():
        raise ConnectError(f"the other end belongs to user {user}, we are user {os.geteuid()}")
