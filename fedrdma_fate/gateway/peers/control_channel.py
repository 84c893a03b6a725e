"""Control channels: accepts those of other gateways, and dials them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from fedrdma_fate.gateway.accepting import Acceptor, listen_at
from fedrdma_fate.gateway.config.schema import split_address
from fedrdma_fate.gateway.peers.arrivals import Arrival, Arrivals, DataConnections
from fedrdma_fate.gateway.peers.control_connection import LAST_WORDS_SECONDS, ChannelSecurity, ControlConnection
from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.newcomers import Newcomer, Newcomers
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, TransportError

logger = logging.getLogger(__name__)

GREETING_SECONDS = 5.0
"""From a connection to its greeting, TLS included: five round trips at most, on the longest paths of one second."""

_BACKLOG = 128
"""Connections that the kernel completes ahead of us: twice as many as may wait to be known."""

StreamHandler = Callable[[ControlStream], Awaitable[None]]


class Refused(Protocol):
    """Told of each connection that is refused before its peer is known."""

    def __call__(self, host: str, error: FedRDMAError, why: str = "") -> object:
        """From which host, the error, and why in a word where that does not follow from the error."""
        ...


def tell_nobody(host: str, error: FedRDMAError, why: str = "") -> None:
    """For who is not interested. See `Refused`."""
    del host, error, why


class ControlServer:
    """Accepts control channels from other gateways. Belongs to the event loop's thread."""

    def __init__(
        self,
        address: str,
        security: Callable[[], ChannelSecurity | None],
        handler: StreamHandler,
        refused: Refused = tell_nobody,
        complaints: Complaints | None = None,
        data: DataConnections | None = None,
    ) -> None:
        """
        Args:
            address: host:port to listen on; port 0 takes a free one.
            security: makes the next connection one of TLS; None does without.
            handler: serves a stream until it ends; admits it once its peer is known.
            refused: told who was refused before that.
            complaints: about connections that cannot be accepted.
            data: gets connections of data paths, which come to the same port; None where they have one of their own.
        """
        self._address = address
        self._security = security
        self._handler = handler
        self._refused = refused
        self._complaints = complaints or Complaints()
        self._data = data
        self._arrivals: Arrivals | None = None
        self._acceptor: Acceptor | None = None
        self._newcomers: Newcomers | None = None
        self._connections: dict[ControlConnection, _Place] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> None:
        """Listen.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        self._newcomers = Newcomers(loop.time)
        host, port = split_address("listen.control", self._address)
        listening = await listen_at(host, port, _BACKLOG, key="listen.control", address=self._address)
        serve = None
        if self._data is not None:
            self._arrivals = Arrivals(self._newcomers, self._data, self._begin, self._refuse)
            serve = self._meet
        self._acceptor = Acceptor(listening, self._make, "listen.control", self._complaints, serve)
        self.port = self._acceptor.port
        if self._data is not None:
            self._data.listening(self.port)

    async def stop(self) -> None:
        """Stop listening and end all streams."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        self._acceptor = None
        if self._arrivals is not None:
            self._arrivals.close()
        connections = list(self._connections)
        for connection in connections:
            connection.stream.close()
        await asyncio.gather(*(_end(connection) for connection in connections))
        for task in list(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(list(self._serving))

    @property
    def unknown(self) -> int:
        """Connections whose peers are not known yet."""
        return 0 if self._newcomers is None else len(self._newcomers)

    # -- connections ----------------------------------------------------------------------------------------------

    async def _meet(self, connection: socket.socket) -> None:
        if self._arrivals is None or self._acceptor is None:
            connection.close()
        else:
            self._arrivals.add(connection, GREETING_SECONDS)

    def _begin(self, arrival: Arrival) -> None:
        """It is a control channel: nothing of it was read."""
        self._keep(asyncio.get_running_loop().create_task(self._connect(arrival)))

    async def _connect(self, arrival: Arrival) -> None:
        make = functools.partial(self._make, arrival)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(make, arrival.connection)
        except OSError as error:
            arrival.connection.close()
            assert arrival.newcomer is not None
            assert self._newcomers is not None
            self._newcomers.leave(arrival.newcomer)
            logger.debug("a connection ended as it was accepted: %s", error)

    def _make(self, arrival: Arrival | None = None) -> ControlConnection:
        return ControlConnection(
            self._security(),
            server_side=True,
            on_made=functools.partial(self._admit, arrival=arrival),
            on_ready=self._serve,
            on_ended=self._forget,
        )

    def _admit(self, connection: ControlConnection, arrival: Arrival | None) -> bool:
        host = connection.stream.remote_host or "unknown"
        loop = asyncio.get_running_loop()
        assert self._newcomers is not None

        def drop() -> None:
            self._drop(connection, "crowded-out", "others came")

        if arrival is not None:
            # it has its place since it was accepted, unless others have it now
            newcomer, deadline = arrival.newcomer, arrival.deadline
            if arrival.dropped or newcomer is None or self._acceptor is None:
                return False
            newcomer.drop = drop
        else:
            newcomer, deadline = self._newcomers.admit(host, drop), loop.time() + GREETING_SECONDS
        if newcomer is None or self._acceptor is None:
            self._refuse(host, "it dials too often", "too-often")
            return False
        timer = loop.call_at(deadline, self._too_slow, connection)
        self._connections[connection] = _Place(host, newcomer, timer)
        lift = connection.stream.on_known

        def known() -> None:
            self._settle(connection)
            lift()

        connection.stream.on_known = known
        return True

    def _serve(self, connection: ControlConnection) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._handle(connection.stream)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _handle(self, stream: ControlStream) -> None:
        try:
            await self._handler(stream)
        except Exception:
            logger.exception("a control channel died")
        finally:
            stream.close()

    def _too_slow(self, connection: ControlConnection) -> None:
        if connection.ready.is_set():
            # whoever reads it says so, to the other side as well
            connection.stream.stop_reading(f" within {GREETING_SECONDS:g} s")
        else:
            self._drop(connection, "too-slow", f"it was not done with TLS within {GREETING_SECONDS:g} s")

    def _drop(self, connection: ControlConnection, why: str, what: str) -> None:
        place = self._connections[connection]
        place.told = True
        self._refuse(place.host, what, why)
        connection.stream.close()
        connection.abort()

    def _settle(self, connection: ControlConnection) -> None:
        """It is no newcomer any more."""
        place = self._connections[connection]
        place.timer.cancel()
        assert self._newcomers is not None
        self._newcomers.leave(place.newcomer)

    def _forget(self, connection: ControlConnection) -> None:
        if connection not in self._connections:
            return
        self._settle(connection)
        place = self._connections.pop(connection)
        if connection.ready.is_set() or place.told or self._acceptor is None:
            return
        if (failure := connection.stream.failure) is not None:
            self._refused(place.host, failure)
        else:
            self._refuse(place.host, "it ended before TLS was done", "cut")

    def _refuse(self, host: str, what: str, why: str) -> None:
        self._refused(host, _unanswered(host, what), why)


class _Place:
    """What is kept of an accepted connection; `told` where it was already said that it is refused."""

    def __init__(self, host: str, newcomer: Newcomer, timer: asyncio.TimerHandle) -> None:
        self.host = host
        self.newcomer = newcomer
        self.timer = timer
        self.told = False


@contextlib.asynccontextmanager
async def dial(address: str, security: ChannelSecurity | None, timeout: float) -> AsyncIterator[ControlStream]:
    """A control stream to the gateway at host:port; ends when the context is left.

    Args:
        address: host:port.
        security: makes it one of TLS; None does without.
        timeout: seconds to connect, TLS included.

    Raises:
        TransportError: PEER_UNREACHABLE when nobody answers there; or what `security` says of who does.
    """
    loop = asyncio.get_running_loop()
    host, port = split_address("peers.address", address)
    connection = ControlConnection(security, server_side=False)
    ready = asyncio.create_task(_connected(connection, host, port, loop))
    try:
        await asyncio.wait([ready], timeout=timeout)
        if not ready.done():
            raise _unreachable(address, f" within {timeout:g} s")
        try:
            await ready
        except OSError as error:
            raise _unreachable(address, f": {error.strerror or error}") from error
        if connection.stream.failure is not None:
            raise connection.stream.failure
        if not connection.ready.is_set():
            raise _unreachable(address, f": it ended the connection{connection.stream.end_reason}")
        yield connection.stream
    finally:
        ready.cancel()
        connection.stream.close()
        await _end(connection)


async def _end(connection: ControlConnection) -> None:
    """Let what was queued last (a Goodbye) get out before the connection is torn down."""
    try:
        if connection.made:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.ended.wait(), LAST_WORDS_SECONDS)
    finally:
        connection.abort()


async def _connected(connection: ControlConnection, host: str, port: int, loop: asyncio.AbstractEventLoop) -> None:
    """Connect, and shake hands where there is TLS; returns too when that fails.

    Raises:
        OSError: nobody listens there, or nobody knows where that is.
    """
    await loop.create_connection(lambda: connection, host, port)
    waits = [asyncio.ensure_future(event.wait()) for event in (connection.ready, connection.ended)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _unanswered(host: str, what: str) -> TransportError:
    return TransportError(ErrorCode.PEER_UNREACHABLE, f"dropped a connection of {host}: {what}.")


def _unreachable(address: str, what: str) -> TransportError:
    return TransportError(
        ErrorCode.PEER_UNREACHABLE, f"{address} does not answer{what}.", "It is tried again; messages for it wait."
    )
