"""One UDP port for all links of a gateway: who waits for a peer's first probe, and the sockets that carry on."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import threading
import time
from collections import deque
from typing import NamedTuple

from fedrdma_fate.transport.endpoint_base import TOKEN_BYTES
from fedrdma_fate.transport.listener import ConnectError, UdpBlockedError
from fedrdma_fate.transport.udp.meeting import read_probe
from fedrdma_fate.transport.udp.packets import CONNECTION_HEAD, PATH_RESPONSE, PING, PROBE, VERSION
from fedrdma_fate.transport.udp.path_validation import Address
from fedrdma_fate.transport.udp.port_filter import dropped_by_kernel, keep_only

LOOK_SECONDS = 0.02
"""How long whoever waits leaves it to others to read for it."""

DATAGRAMS_AT_ONCE = 256
"""Read before somebody looks at the time and lets others to the lock: whoever floods the port must not keep them."""

DATAGRAMS_A_LOOK = 64
"""Read for links that are connected, each time one of them looks (`UdpEndpoint`): so what a flood costs is bounded also
where the kernel cannot tell it from ours."""

MOST_WAITING = 16
"""Datagrams of a connected link that wait for it to look: pings of 2 s. The newest count."""

_FROM_ELSEWHERE = (PING, PATH_RESPONSE)
"""What moves a link to another address; before that, nothing else is taken from there."""

_LONGEST_PROBE = 65536
"""No datagram is longer."""


class Elsewhere(NamedTuple):
    """A datagram that names a connected link, from another address than the peer's."""

    data: bytes
    address: Address


class _Met(NamedTuple):
    """Where the first probe came from, and how many bytes have come from there."""

    address: Address
    received: int


class UdpListener:
    """Waits for probes with the tokens that it gave out. Safe to use from several threads.

    Each link has a socket of its own, bound to the same port and connected to its peer: the kernel gives what comes
    from there to that one, and everything else to this listener, which reads it when somebody waits or looks. But for
    probes that have a token, pings and answers to challenges that name a link, the kernel drops it, where it can
    (`port_filter.py`), and nobody reads it.
    """

    def __init__(self, host: str, port: int) -> None:
        """Bind the port.

        Raises:
            OSError: it cannot be had.
        """
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = self._bound((host, port))
        self._address: Address = self._socket.getsockname()
        self._lock = threading.Lock()
        self._expected: dict[bytes, _Met | None] = {}
        self._followed: dict[bytes, deque[Elsewhere]] = {}
        self._strays = 0
        self._closed = False
        self._filter()

    @property
    def port(self) -> int:
        """The port."""
        return int(self._address[1])

    @property
    def dropped(self) -> int:
        """Datagrams that came for nobody, or found no room, so far; those that the kernel dropped included."""
        with self._lock:
            return self._strays + (0 if self._closed else dropped_by_kernel(self._socket))

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
            self._filter()
        return token

    def forget(self, token: bytes) -> None:
        """A link did not come about; may be repeated."""
        with self._lock:
            if token in self._expected:
                del self._expected[token]
                self._filter()

    def accept(self, token: bytes, deadline: float) -> tuple[socket.socket, int]:
        """A socket connected to where the first probe with this token came from, and how many bytes came from there.

        Raises:
            UdpBlockedError: none has come by then, by the monotonic clock.
            ConnectError: nobody waits for it any more.
        """
        poller = select.poll()
        with self._lock:
            if not self._closed:
                poller.register(self._socket, select.POLLIN)
        while True:
            with self._lock:
                if self._closed or token not in self._expected:
                    raise ConnectError("the listener was closed while waiting for the peer")
                self._read(DATAGRAMS_AT_ONCE)
                met = self._expected[token]
            if met is not None:
                break
            if time.monotonic() >= deadline:
                raise UdpBlockedError("UDP does not pass: no probe of the peer has come")
            poller.poll(LOOK_SECONDS * 1000)
        connected = self._bound(self._address)
        try:
            connected.connect(met.address)
        except OSError as error:
            connected.close()
            raise ConnectError(str(error)) from error
        return connected, met.received

    def follow(self, connection: int) -> Followed:
        """Keep what names a connected link and comes from another address than its peer's, until that is closed."""
        name = connection.to_bytes(8, "little")
        inbox: deque[Elsewhere] = deque(maxlen=MOST_WAITING)
        with self._lock:
            self._followed[name] = inbox
            self._filter()
        return Followed(self, name, inbox)

    def look(self) -> bool:
        """Read a little, for whom it is for; whether there is no more."""
        with self._lock:
            return self._closed or self._read(DATAGRAMS_A_LOOK)

    def fileno(self) -> int:
        """Readable when there may be something for somebody; negative once it is closed."""
        return self._socket.fileno()

    def leave(self, name: bytes) -> None:
        """A link is closed; may be repeated."""
        with self._lock:
            if self._followed.pop(name, None) is not None:
                self._filter()

    def close(self) -> None:
        """Give the port back, as soon as no link uses it any more; may be repeated."""
        with self._lock:
            self._closed = True
            self._expected.clear()
            self._socket.close()

    def _read(self, most: int) -> bool:
        """Whether there is no more."""
        with contextlib.suppress(OSError):
            for _ in range(most):
                data, address = self._socket.recvfrom(_LONGEST_PROBE)
                if not self._sort(data, address):
                    self._strays += 1
            return False
        return True

    def _sort(self, data: bytes, address: Address) -> bool:
        """Whether somebody has a use for it."""
        found = read_probe(data)
        if found is not None and found.token in self._expected:
            met = self._expected[found.token] or _Met(address, 0)
            if met.address == address:
                self._expected[found.token] = _Met(address, met.received + len(data))
            return True
        inbox = self._followed.get(data[2 : CONNECTION_HEAD.size])
        if inbox is None or data[1] != VERSION or data[0] not in _FROM_ELSEWHERE:
            return False
        inbox.append(Elsewhere(data, address))
        return True

    def _filter(self) -> None:
        """Both a token and the name of a connection come behind kind and version."""
        if not self._closed:
            names = [*(token[:8] for token in self._expected), *self._followed]
            keep_only(self._socket, (PROBE, *_FROM_ELSEWHERE), names)

    def _bound(self, address: Address) -> socket.socket:
        made = socket.socket(self._family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # of one user alone, which SO_REUSEADDR would not ask for
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
        return made


class Followed:
    """What comes for one connected link from another address than its peer's. Belongs to the link's thread."""

    def __init__(self, listener: UdpListener, name: bytes, inbox: deque[Elsewhere]) -> None:
        self._listener = listener
        self._name = name
        self._inbox = inbox
        self._drained = True

    @property
    def fileno(self) -> int:
        """To wait on for more; negative when no more comes, or so much that it has to wait for the next look."""
        return self._listener.fileno() if self._drained else -1

    def take(self) -> list[Elsewhere]:
        """What has come since."""
        self._drained = self._listener.look()
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._inbox.popleft())
        return taken

    def close(self) -> None:
        """Nothing more is kept; may be repeated."""
        self._listener.leave(self._name)
