"""Plain sockets: as FedComm serves its silos, one after the other; and all at once, read as it comes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from deploy.softroce.programs.exchange.interface import (
    Exchanged,
    Host,
    Options,
    PlainSilo,
    Received,
    ResentByKernel,
    Server,
    Silo,
    models_of,
)
from deploy.softroce.programs.meeting import Chair, Seat

_MOST_AT_ONCE_BYTES = 2**20
"""That one call of recv takes."""
NEVER_SECONDS = 600.0
"""A peer that says nothing for so long has died."""


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """So many bytes of a connection.

    Raises:
        SystemExit: it ended before.
    """
    got = bytearray(size)
    view = memoryview(got)
    while view:
        # at the end of a connection recv returns at once, for ever, and time stands still
        taken = connection.recv_into(view, min(len(view), _MOST_AT_ONCE_BYTES))
        if not taken:
            raise SystemExit(f"the other host hung up, {len(view)} bytes too early")
        view = view[taken:]
    return got


@contextlib.contextmanager
def accepted(host: Host, chair: Chair, congestion: str | None = None) -> Iterator[list[socket.socket]]:
    """The server's connections, one to each silo, in their order."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        # connections that it accepts have it too
        _choose(server, congestion)
        server.bind((host.address, 0))
        server.listen(host.silos)
        chair.tell(server.getsockname()[1])
        connections: dict[int, socket.socket] = {}
        while len(connections) < host.silos:
            connection = stack.enter_context(server.accept()[0])
            connection.settimeout(NEVER_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections[receive_exactly(connection, 1)[0]] = connection
        yield [connections[number] for number in sorted(connections)]


@contextlib.contextmanager
def connected(host: Host, seat: Seat, congestion: str | None = None) -> Iterator[socket.socket]:
    """A silo's connection to the server."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        _choose(connection, congestion)
        connection.settimeout(NEVER_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect((host.addresses[0], int(seat.hear())))
        connection.sendall(bytes([host.number]))
        yield connection


def _choose(connection: socket.socket, congestion: str | None) -> None:
    if congestion is not None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        except PermissionError as error:
            there = "net.ipv4.tcp_allowed_congestion_control"
            raise SystemExit(f"only root may use TCP {congestion} here: add it to {there}") from error
        except OSError as error:
            raise SystemExit(f"the kernel has no TCP {congestion}") from error


class SerialServer(ResentByKernel):
    """FedComm's: `sendall` to one silo after the other, then read one after the other."""

    def __init__(self, connections: Sequence[socket.socket], options: Options) -> None:
        self._connections, self._models = connections, models_of(0, options)

    def exchange(self, number: int) -> Exchanged:
        model = self._models.own(number)
        for connection in self._connections:
            connection.sendall(model)
        sent = time.monotonic()
        received = []
        for silo, connection in enumerate(self._connections, start=1):
            got, moment = receive_exactly(connection, self._models.size), time.monotonic()
            self._models.take(got, silo, number)
            received.append(Received(moment))
        return Exchanged(sent, tuple(received))


class ConcurrentServer(ResentByKernel):
    """All silos at once, a thread for each."""

    def __init__(self, connections: Sequence[socket.socket], options: Options, pool: ThreadPoolExecutor) -> None:
        self._connections, self._models, self._pool = connections, models_of(0, options), pool

    def exchange(self, number: int) -> Exchanged:
        model = self._models.own(number)

        def serve(connection: socket.socket) -> tuple[float, float, bytearray]:
            connection.sendall(model)
            sent = time.monotonic()
            got = receive_exactly(connection, self._models.size)
            return sent, time.monotonic(), got

        served = list(self._pool.map(serve, self._connections))
        for silo, (_, _, got) in enumerate(served, start=1):
            self._models.take(got, silo, number)
        return Exchanged(max(sent for sent, _, _ in served), tuple(Received(moment) for _, moment, _ in served))


class TcpSilo(PlainSilo):
    """One connection to the server."""

    def __init__(self, connection: socket.socket, host: Host, options: Options) -> None:
        self._connection, self._models = connection, models_of(host.number, options)

    def receive(self, number: int) -> Received:
        got, moment = receive_exactly(self._connection, self._models.size), time.monotonic()
        self._models.take(got, 0, number)
        return Received(moment)

    def send(self, number: int) -> None:
        self._connection.sendall(self._models.own(number))


@contextlib.contextmanager
def serial_server(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
    """Of `tcp-serial`."""
    with accepted(host, chair) as connections:
        yield SerialServer(connections, options)


def concurrent_server(congestion: str) -> Callable[[Host, Chair, Options], contextlib.AbstractContextManager[Server]]:
    """Of `tcp-` and a congestion control."""

    @contextlib.contextmanager
    def opened(host: Host, chair: Chair, options: Options) -> Iterator[Server]:
        with accepted(host, chair, congestion) as connections, ThreadPoolExecutor(len(connections)) as pool:
            yield ConcurrentServer(connections, options, pool)

    return opened


def tcp_silo(congestion: str | None) -> Callable[[Host, Seat, Options], contextlib.AbstractContextManager[Silo]]:
    """A silo of either."""

    @contextlib.contextmanager
    def opened(host: Host, seat: Seat, options: Options) -> Iterator[Silo]:
        with connected(host, seat, congestion) as connection:
            yield TcpSilo(connection, host, options)

    return opened
