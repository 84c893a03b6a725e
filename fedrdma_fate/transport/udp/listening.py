"""One UDP port for all links of a gateway: who waits for a peer's first probe, and the sockets that carry on."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import threading
import time
from typing import Any

from fedrdma_fate.transport.endpoint_base import TOKEN_BYTES
from fedrdma_fate.transport.listener import ConnectError
from fedrdma_fate.transport.udp.meeting import read_probe

LOOK_SECONDS = 0.02
"""How long whoever waits leaves it to others to read for it."""

DATAGRAMS_AT_ONCE = 256
"""Read before somebody looks at the time and lets others to the lock: whoever floods the port must not keep them."""

_LONGEST_PROBE = 65536
"""No datagram is longer."""


class UdpListener:
    """Waits for probes with the tokens that it gave out. Safe to use from several threads.

    Each link has a socket of its own, bound to the same port and connected to its peer: the kernel gives what comes
    from there to that one, and everything else to this listener, which reads it when somebody waits.
    """

    def __init__(self, host: str, port: int) -> None:
        """Bind the port.

        Raises:
            OSError: it cannot be had.
        """
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = self._bound((host, port))
        self._address: tuple[Any, ...] = self._socket.getsockname()
        self._lock = threading.Lock()
        self._expected: dict[bytes, tuple[Any, ...] | None] = {}
        self._closed = False

    @property
    def port(self) -> int:
        """The port."""
        return int(self._address[1])

    def expect(self) -> bytes:
        """The token for a link whose probes may come from now on.

        Raises:
            ConnectError: it is closed.
        """
        token = secrets.token_bytes(TOKEN_BYTES)
        with self._lock:
            if self._closed:
                raise ConnectError("the listener is closed")
            self._expected[token] = None
        return token

    def forget(self, token: bytes) -> None:
        """A link did not come about; may be repeated."""
        with self._lock:
            self._expected.pop(token, None)

    def accept(self, token: bytes, deadline: float) -> socket.socket:
        """A socket connected to where the first probe with this token came from.

        Raises:
            ConnectError: none has come by then, by the monotonic clock.
        """
        poller = select.poll()
        with self._lock:
            if not self._closed:
                poller.register(self._socket, select.POLLIN)
        while True:
            with self._lock:
                if self._closed or token not in self._expected:
                    raise ConnectError("the listener was closed while waiting for the peer")
                self._read()
                address = self._expected[token]
            if address is not None:
                break
            if time.monotonic() >= deadline:
                raise ConnectError("UDP does not pass: no probe of the peer has come")
            poller.poll(LOOK_SECONDS * 1000)
        connected = self._bound(self._address)
        try:
            connected.connect(address)
        except OSError as error:
            connected.close()
            raise ConnectError(str(error)) from error
        return connected

    def close(self) -> None:
        """Give the port back, as soon as no link uses it any more; may be repeated."""
        with self._lock:
            self._closed = True
            self._expected.clear()
            self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            for _ in range(DATAGRAMS_AT_ONCE):
                data, address = self._socket.recvfrom(_LONGEST_PROBE)
                found = read_probe(data)
                if found is not None and self._expected.get(found[0], address) is None:
                    self._expected[found[0]] = address

    def _bound(self, address: tuple[Any, ...]) -> socket.socket:
        made = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # of one user alone, which SO_REUSEADDR would not ask for
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
        return made
