"""A connection between the programs of two hosts, beside the RDMA that they are about."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

CONTROL_PORT = 7481
PATIENCE_SECONDS = 60.0

_LENGTH = struct.Struct("!I")


class Control:
    """A TCP connection to the other host, for messages. One thread at a time may hear; any may speak."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send a message."""
        with self._lock:
            self._connection.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes:
        """The next message; empty when the other host has hung up."""
        head = self._heard.read(_LENGTH.size)
        return self._heard.read(*_LENGTH.unpack(head)) if head else b""

    def say(self, what: object) -> None:
        """Send what JSON can express."""
        self.send(json.dumps(what).encode())

    def hear(self) -> Any:
        """What the other host says next.

        Raises:
            SystemExit: it has hung up.
        """
        message = self.receive()
        if not message:
            raise SystemExit("the other host is gone")
        return json.loads(message)

    def exchange(self, what: object) -> Any:
        """Say it, and hear what the other host says."""
        self.say(what)
        return self.hear()

    def hang_up(self) -> None:
        """End the connection; who hears learns of it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give it back."""
        self.hang_up()
        self._heard.close()
        self._connection.close()


def this_host() -> int:
    """The number of this host."""
    return int(os.environ["TESTBED_HOST"])


@contextlib.contextmanager
def control_connection() -> Iterator[Control]:
    """Meet the other host: host 1 waits, host 0 dials."""
    connection = _wait() if this_host() else _dial()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.closing(Control(connection)) as control:
        yield control


def _address() -> tuple[str, int]:
    return os.environ["TESTBED_HOSTS"].split(",")[1], CONTROL_PORT


def _wait() -> socket.socket:
    with socket.create_server(_address()) as server:
        return server.accept()[0]


def _dial() -> socket.socket:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection = socket.create_connection(_address(), timeout=PATIENCE_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            connection.settimeout(None)
            return connection
