"""Control channels: accepts those of other gateways, and dials them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from fedrdma_fate.gateway.accepting import Acceptor, listen_at
from fedrdma_fate.gateway.config.schema import split_address
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
    ) -> None:
        """
        Args:
            address: host:port to listen on; port 0 takes a free one.
            security: makes the next connection one of TLS; None does without.
            handler: serves a stream until it ends; admits it once its peer is known.
            refused: told who was refused before that.
            complaints: about connections that cannot be accepted.
        """
        self._address = address
        self._security = security
        self._handler = handler
        self._refused = refused
        self._complaints = complaints or Complaints()
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
        self._acceptor = Acceptor(listening, self._make, "listen.control", self._complaints)
        self.port = self._acceptor.port

    async def stop(self) -> None:
        """Stop listening and end all streams."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        self._acceptor = None
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

    def _make(self) -> ControlConnection:
        return ControlConnection(
            self._security(),
            server_side=True,
            on_made=self._admit,
            on_ready=self._serve,
            on_ended=self._forget,
        )

    def _admit(self, connection: ControlConnection) -> bool:
        host = connection.stream.remote_host or "unknown"
        assert self._newcomers is not None
        newcomer = self._newcomers.admit(host, lambda: self._drop(connection, "crowded-out", "others came"))
        if newcomer is None or self._acceptor is None:
            self._refused(host, _unanswered(host, "it dials too often"), "too-often")
            return False
        timer = asyncio.get_running_loop().call_later(GREETING_SECONDS, self._too_slow, connection)
        self._connections[connection] = _Place(host, newcomer, timer)
        lift = connection.stream.on_known

        def known() -> None:
            self._settle(connection)
            lift()

        connection.stream.on_known = known
        return True

    def _serve(self, connection: ControlConnection) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(connection.stream))
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
        self._refused(place.host, _unanswered(place.host, what), why)
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
            self._refused(place.host, _unanswered(place.host, "it ended before TLS was done"), "cut")


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
