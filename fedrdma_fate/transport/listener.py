"""Where dialled connections meet the drafts that wait for them: one listening socket, many links, no thread.

The socket may also be somebody else's, who accepts for others as well and hands over what begins as a hello does.

A connection opens with a hello: magic, the token of a waiting draft, its number among the link's connections and how
many there will be. When all of a draft's connections have come, each is answered with a welcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from fedrdma_fate.descriptors import RETRY_SECONDS, is_exhausted
from fedrdma_fate.transport.endpoint_base import TOKEN_BYTES

_HELLO = struct.Struct("<8s16sHH")
_HELLO_MAGIC = b"FRDMhi\x00\x01"
_WELCOME = b"FRDMok\x00\x01"

HELLO_BYTES = _HELLO.size
"""Of a hello; whoever dials says no more before it is welcome."""

HANDSHAKE_SECONDS = 10.0
"""A connection that has not said hello by then is closed: as long as a draft waits by default. Where the first packets
of a TCP connection are lost, its next go after 3 s, and 6 s later (RFC 6298, section 5.7)."""

MOST_PENDING = 64
"""Connections that have not said hello yet; beyond, the oldest is closed."""

MOST_CONNECTIONS = 64
"""Connections of one link."""

_POLL_IN = select.POLLIN


class ConnectError(Exception):
    """The two halves did not meet, and why."""


class UdpBlockedError(ConnectError):
    """They met, and no datagram came."""


def may_be_hello(first: bytes) -> bool:
    """Whether a connection that begins so may be one of a link, by as much as has come."""
    return first[: len(_HELLO_MAGIC)] == _HELLO_MAGIC[: len(first)]


@dataclasses.dataclass(slots=True)
class _Pending:
    connection: socket.socket
    deadline: float
    received: bytearray = dataclasses.field(default_factory=bytearray)


class Listener:
    """Serves one listening socket for whoever waits: the first waiter accepts for all, then hands on.

    Safe to use from several threads.
    """

    def __init__(self, listening: socket.socket | None) -> None:
        """
        Args:
            listening: accepts connections; None where `take` brings them.
        """
        if listening is not None:
            listening.setblocking(False)
        self._socket = listening
        self._turn = threading.Condition()
        self._serving = False
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._expected: dict[bytes, dict[int, socket.socket]] = {}
        self._pending: dict[int, _Pending] = {}
        self._paused_until = 0.0
        self._trouble = ""

    def expect(self) -> bytes:
        """Register a link; its connections may come from now on.

        Raises:
            ConnectError: it is closed.
        """
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._turn:
            if self._closed:
                raise ConnectError("the listener is closed")
            self._expected[token] = {}
        return token

    def forget(self, token: bytes) -> None:
        """Drop a link that did not come about, and the connections that had come for it; may be repeated."""
        with self._turn:
            for connection in self._expected.pop(token, {}).values():
                connection.close()
            self._turn.notify_all()
            self._wake_server()

    def wait(self, token: bytes, count: int, timeout: float) -> list[socket.socket]:
        """Wait for all `count` connections of the link, welcome them, and return them in order of their number.

        Raises:
            ConnectError: they have not all come within `timeout` seconds, or the link was forgotten meanwhile.
        """
        deadline = time.monotonic() + timeout
        with self._turn:
            while True:
                arrived = self._expected.get(token)
                if self._closed or arrived is None:
                    raise ConnectError("the listener was closed while waiting for the peer")
                if len(arrived) == count and max(arrived) < count:
                    break
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise ConnectError(
                        f"{len(arrived)} of the peer's {count} connections came within {timeout:g} s{self._trouble}"
                    )
                if self._serving:
                    self._turn.wait(remaining)
                else:
                    self._serve(remaining)
            del self._expected[token]
        return _welcome([arrived[number] for number in range(count)])

    def take(self, connection: socket.socket, hello: bytes) -> bool:
        """A connection that somebody else has accepted; closed where nobody waits for it.

        Args:
            connection: non-blocking, with nothing read behind its hello.
            hello: what it began with, `HELLO_BYTES`.

        Returns:
            Whether a link waits for it.
        """
        with self._turn:
            if self._closed:
                connection.close()
                return False
            taken = self._admit(connection, hello)
            self._turn.notify_all()
            self._wake_server()
            return taken

    def close(self) -> None:
        """Stop listening; those who wait get ConnectError. May be repeated."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._wake_server()
            while self._serving:
                self._turn.wait()
            for links in self._expected.values():
                for connection in links.values():
                    connection.close()
            self._expected.clear()
            for pending in self._pending.values():
                pending.connection.close()
            self._pending.clear()
            if self._socket is not None:
                self._socket.close()
            os.close(self._wake)
            self._turn.notify_all()

    def _wake_server(self) -> None:
        if self._serving:
            os.eventfd_write(self._wake, 1)

    def _serve(self, timeout: float) -> None:
        """Wait, without the lock, for something to happen on any socket; then handle it, with the lock."""
        poller = select.poll()
        poller.register(self._wake, _POLL_IN)
        paused = max(0.0, self._paused_until - time.monotonic())
        if paused:
            timeout = min(timeout, paused)
        elif self._socket is not None:
            poller.register(self._socket, _POLL_IN)
        for pending in self._pending.values():
            poller.register(pending.connection, _POLL_IN)
            timeout = min(timeout, max(0.0, pending.deadline - time.monotonic()))
        self._serving = True
        self._turn.release()
        try:
            ready = {descriptor for descriptor, _ in poller.poll(timeout * 1000)}
        finally:
            self._turn.acquire()
            self._serving = False
            self._turn.notify_all()
        if self._closed:
            return
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for descriptor in ready & self._pending.keys():
            self._hear(descriptor)
        self._drop_silent()
        if self._socket is not None and self._socket.fileno() in ready:
            self._accept(self._socket)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError as error:
            # else it was reset before we took it: the peer's dial fails on its own
            if is_exhausted(error):
                self._paused_until = time.monotonic() + RETRY_SECONDS
                self._trouble = f"; they cannot be accepted: {error.strerror}"
            return
        self._trouble = ""
        connection.setblocking(False)
        if len(self._pending) >= MOST_PENDING:
            self._close_pending(next(iter(self._pending)))
        self._pending[connection.fileno()] = _Pending(connection, time.monotonic() + HANDSHAKE_SECONDS)

    def _hear(self, descriptor: int) -> None:
        pending = self._pending[descriptor]
        try:
            received = pending.connection.recv(_HELLO.size - len(pending.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        pending.received += received
        if not received:
            self._close_pending(descriptor)
        elif len(pending.received) == _HELLO.size:
            del self._pending[descriptor]
            self._admit(pending.connection, pending.received)

    def _admit(self, connection: socket.socket, hello: bytes | bytearray) -> bool:
        magic, token, number, count = _HELLO.unpack(hello)
        arrived = self._expected.get(token)
        known = magic == _HELLO_MAGIC and arrived is not None
        if not known or arrived is None or number in arrived or not number < count <= MOST_CONNECTIONS:
            connection.close()
            return False
        arrived[number] = connection
        return True

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for descriptor in [known for known, pending in self._pending.items() if pending.deadline <= now]:
            self._close_pending(descriptor)

    def _close_pending(self, descriptor: int) -> None:
        self._pending.pop(descriptor).connection.close()


def dial(connect: Callable[[float], socket.socket], token: bytes, count: int, timeout: float) -> list[socket.socket]:
    """Open `count` connections, present the token on each, and wait until all are welcome.

    Args:
        connect: opens one connection, given the seconds it may take.
        token: of the draft that waits at the other side.
        count: connections of the link.
        timeout: seconds for all of it.

    Raises:
        ConnectError: the peer cannot be reached, does not know the token, or did not answer in time.
    """
    deadline = time.monotonic() + timeout
    connections: list[socket.socket] = []
    try:
        for number in range(count):
            connection = connect(_remaining(deadline))
            connections.append(connection)
            connection.settimeout(_remaining(deadline))
            connection.sendall(_HELLO.pack(_HELLO_MAGIC, token, number, count))
        for connection in connections:
            _await_welcome(connection, deadline)
            connection.setblocking(False)
    except (OSError, ConnectError) as error:
        for connection in connections:
            connection.close()
        reason = f"the peer did not answer within {timeout:g} s" if isinstance(error, TimeoutError) else str(error)
        raise ConnectError(reason) from error
    return connections


def _await_welcome(connection: socket.socket, deadline: float) -> None:
    received = b""
    while len(received) < len(_WELCOME):
        connection.settimeout(_remaining(deadline))
        more = connection.recv(len(_WELCOME) - len(received))
        if not more:
            raise ConnectError("the peer closed the connection; it does not wait for this link (any more)")
        received += more
    if received != _WELCOME:
        raise ConnectError(f"the peer answered {received!r}; it is not a fedrdma-fate gateway of this version")


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _welcome(connections: list[socket.socket]) -> list[socket.socket]:
    try:
        for connection in connections:
            connection.send(_WELCOME)
    except OSError as error:
        for connection in connections:
            connection.close()
        raise ConnectError(f"the peer went away again: {error.strerror}") from error
    return connections
