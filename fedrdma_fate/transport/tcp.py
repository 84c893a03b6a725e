"""One-sided writes over plain TCP: N parallel streams, received straight into the granted slot.

What an RDMA card does in hardware is done here in `progress`: the receiver looks up the key, checks the range, reads
the bytes from the socket to their final address and acknowledges the write when it is whole. There is no thread and
no intermediate buffer; towards another host the kernel sends straight from the pages of the sender's region.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
import struct
from collections.abc import Callable, Sequence

from fedrdma_fate.ports import (
    ChunkService,
    Completion,
    CompletionKind,
    Endpoint,
    EndpointAddress,
    Opener,
    RemoteSlot,
    Role,
    Slot,
)
from fedrdma_fate.transport.endpoint_base import (
    EndpointHealth,
    ReliableEndpoint,
    address_number,
    address_text,
    address_token,
    unavailable,
)
from fedrdma_fate.transport.exposure import ExposureTable, ProtocolViolation
from fedrdma_fate.transport.inbound import Inbound, PeerClosed, PeerReportsViolation
from fedrdma_fate.transport.listener import MOST_CONNECTIONS, ConnectError, Listener, dial
from fedrdma_fate.transport.outbound import LARGEST_LOCAL_PIECE, LARGEST_PIECE, Outbound
from fedrdma_fate.transport.stream_frames import Head
from fedrdma_fate.transport.tcp_streams import StreamReader, StreamWriter

NAME = "tcp"

PIECES_PER_TURN = 2
"""Pieces a stream sends in one `progress`."""

_IN = select.POLLIN
_OUT = select.POLLOUT
_HANGUP = select.POLLHUP
_ABORT_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class TcpSettings:
    """Parameters of the `tcp` transport.

    Attributes:
        host: address to listen on.
        port: port to listen on, shared by all links; 0 lets the kernel choose.
        advertised_host: address that peers are told to dial; `host` when None.
        streams: connections of a link; the smaller of both sides' numbers is used.
        buffer_bytes: SO_SNDBUF and SO_RCVBUF of each; None leaves their size to the kernel, which follows the path.
        zero_copy: send with `sendfile`; None does so towards other hosts only. Between two sockets of one host it saves
            nothing: the receiver's core then copies from cold memory what both cores would have shared.
        keepalive_seconds: a silent peer is probed after so long, and given up after about three times as long.
        on_control_port: the port is that of the control channel, whose connections are accepted by who listens there.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str | None = None
    streams: int = 2
    buffer_bytes: int | None = None
    zero_copy: bool | None = None
    keepalive_seconds: int = 10
    on_control_port: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= MOST_CONNECTIONS:
            raise ValueError(f"a link has 1 to {MOST_CONNECTIONS} streams, not {self.streams}")


class TcpTransport:
    """Has one port for every link of this gateway."""

    def __init__(self, settings: TcpSettings) -> None:
        """Start to listen, unless the control channel's port is used.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the port cannot be had.
        """
        self._settings = settings
        if settings.on_control_port:
            self._port = settings.port
            self._listener = Listener(None)
            return
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            listening = socket.create_server((settings.host, settings.port), family=family, backlog=128)
        except OSError as error:
            place = f"{settings.host}:{settings.port}"
            raise unavailable(
                NAME, f"cannot listen on {place}: {error.strerror}", "Set listen.data to a free address."
            ) from error
        self._port = listening.getsockname()[1]
        self._listener = Listener(listening)

    @property
    def name(self) -> str:
        return NAME

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._port

    def listening(self, port: int) -> None:
        """Who has the control channel's port listens there; links are only made from now on."""
        self._port = port

    def take(self, connection: socket.socket, hello: bytes) -> bool:
        """A connection to the control channel's port that began as one of a link; see `Listener.take`."""
        return self._listener.take(connection, hello)

    def open(self, role: Role) -> PassiveDraft | ActiveDraft:
        """Start one data path.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the transport is closed.
        """
        if role == "active":
            return ActiveDraft(self._settings)
        try:
            return PassiveDraft(self._settings, self._listener, self._port)
        except ConnectError as error:
            raise unavailable(NAME, str(error)) from error

    def close(self) -> None:
        """Stop listening; links that are connected live on."""
        self._listener.close()


class PassiveDraft:
    """Waits for the peer to dial."""

    def __init__(self, settings: TcpSettings, listener: Listener, port: int) -> None:
        self._settings = settings
        self._listener = listener
        self._token = listener.expect()
        self._port = port

    @property
    def address(self) -> EndpointAddress:
        settings = self._settings
        host = settings.advertised_host or settings.host
        own: EndpointAddress = {
            "host": host,
            "port": self._port,
            "token": self._token.hex(),
            "streams": settings.streams,
        }
        return {**own, "control": 1} if settings.on_control_port and settings.advertised_host is None else own

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Wait for the peer to dial; see `meet`."""
        return TcpEndpoint(self.meet(peer, timeout), self._settings)

    def meet(self, peer: EndpointAddress, timeout: float) -> list[socket.socket]:
        """The streams, once the peer has dialled all of them; non-blocking.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it has not come in time.
        """
        try:
            streams = min(address_number(NAME, peer, "streams", MOST_CONNECTIONS), self._settings.streams)
            return self._listener.wait(self._token, streams, timeout)
        except ConnectError as error:
            raise unavailable(NAME, str(error), "Can the peer reach the advertised data address?") from error
        finally:
            self.close()

    def abandon(self) -> None:
        """See `ports.Draft`."""
        self._listener.forget(self._token)

    def close(self) -> None:
        """Drop the draft, and connections that came for it."""
        self._listener.forget(self._token)


class ActiveDraft:
    """Dials the peer."""

    def __init__(self, settings: TcpSettings) -> None:
        self._settings = settings

    @property
    def address(self) -> EndpointAddress:
        return {"streams": self._settings.streams}

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Dial the peer; see `meet`."""
        return TcpEndpoint(self.meet(peer, timeout), self._settings)

    def meet(self, peer: EndpointAddress, timeout: float) -> list[socket.socket]:
        """The streams; non-blocking.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when it does not answer in time, or not as it should.
        """
        host, port = address_text(NAME, peer, "host"), address_number(NAME, peer, "port", 65535)
        streams = min(address_number(NAME, peer, "streams", MOST_CONNECTIONS), self._settings.streams)
        token = address_token(NAME, peer)

        def connect(seconds: float) -> socket.socket:
            return socket.create_connection((host, port), seconds)

        try:
            return dial(connect, token, streams, timeout)
        except ConnectError as error:
            raise unavailable(NAME, f"{host}:{port}: {error}") from error

    def abandon(self) -> None:
        """It dials, and waits no longer than that takes."""

    def close(self) -> None:
        """Nothing is held before `connect`."""


class TcpEndpoint(ReliableEndpoint):
    """One end of a link of N streams. See `ports.Endpoint`."""

    def __init__(self, connections: Sequence[socket.socket], settings: TcpSettings, name: str = NAME) -> None:
        self._name = name
        self._health = EndpointHealth(name)
        self._exposures = ExposureTable()
        self._completions: list[Completion] = []
        local = _on_this_host(connections[0])
        self._outbound = Outbound(len(connections), LARGEST_LOCAL_PIECE if local else LARGEST_PIECE)
        inbound = Inbound(self._exposures, self._complete, self._outbound.acknowledge, self._on_acknowledged)
        self._inbound = inbound
        self._connections = list(connections)
        for connection in connections:
            _tune(connection, settings)
        self._readers = [StreamReader(connection, inbound) for connection in connections]
        zero_copy = not local if settings.zero_copy is None else settings.zero_copy
        self._writers = [StreamWriter(connection, self._outbound, zero_copy=zero_copy) for connection in connections]
        self._first = 0

    @property
    def transport(self) -> str:
        return self._name

    @property
    def moved_bytes(self) -> int:
        """What the peer's kernel has acknowledged, by all streams, with all that goes around the writes."""
        return sum(writer.moved_bytes for writer in self._writers)

    @property
    def readiness_shows_all(self) -> bool:
        """A socket stays ready for as long as there is anything to read, or room for what waits; one that is closed, as
        all are once the link is lost, does not."""
        return not self._health.lost

    def open_with(self, opener: Opener) -> bool:
        """Seal each block as it is sent, and open it as it comes."""
        self._inbound.opener = opener
        return True

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """Let the peer write into the slot; its addresses count from 0."""
        self._health.check()
        return self._exposures.expose(grant, slot)

    def withdraw(self, grant: int) -> None:
        """Close the slot to the peer. If it is still writing there, that breaks the link, and writes nothing."""
        self._health.check()
        self._exposures.withdraw(grant)

    def drain(self, grant: int) -> None:
        """Close the slot to the peer, and read what it still writes there to where nobody looks."""
        self._health.check()
        self._exposures.drain(grant)

    @property
    def chunk_service(self) -> ChunkService:
        """Chunks go as all writes do."""
        return ChunkService(drains=True)

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Queue the write, and let the kernel begin with it."""
        self._health.check()
        self._inbound.require_sealer(target)
        self._outbound.post_write(work_request, source, target, target_offset)
        self._guarded(self._send)

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """Queue the fenced write, and let the kernel begin with it; at most `frames.INLINE_BYTES` bytes."""
        self._health.check()
        self._inbound.require_sealer(target)
        self._outbound.post_bytes(work_request, data, target, target_offset, immediate)
        self._guarded(self._send)

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """Queue the write, and let the kernel begin with it; its pieces go by all streams."""
        del queue_pair
        self._health.check()
        self._inbound.require_sealer(target)
        self._outbound.post_chunk(work_request, source, target, target_offset, immediate)
        self._guarded(self._send)

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """The streams: for reading unless parked, for writing where something waits."""
        self._health.check()
        return [
            (connection.fileno(), (_HANGUP if reader.parked else _IN) | (_OUT if writer.wants_to_send else 0))
            for connection, reader, writer in zip(self._connections, self._readers, self._writers, strict=True)
        ]

    def progress(self) -> Sequence[Completion]:
        """Read and send what the sockets allow."""
        if not self._health.lost:
            self._guarded(self._receive_and_send)
        completions, self._completions = self._completions, []
        if not completions:
            self._health.check()
        return completions

    @property
    def lost(self) -> bool:
        """Whether the link is gone."""
        return self._health.lost

    def check(self) -> None:
        """Do nothing while the link lives.

        Raises:
            TransportError: LINK_LOST, with the reason.
        """
        self._health.check()

    def lose(self, reason: str) -> None:
        """What belongs to it is gone: so is the link."""
        self._drop(reason)

    def close(self) -> None:
        """Close the streams."""
        self._drop("it was closed here")
        self._completions.clear()
        # with their buffers, which would else wait for the garbage collector: who gives this up may keep it for a while
        self._connections, self._readers, self._writers = [], [], []

    def _receive_and_send(self) -> None:
        self._receive()
        self._send()

    def _receive(self) -> None:
        for reader in self._readers:
            reader.receive()
        # what a fence waited for may have come on a stream that was read later, or be behind another fence
        while any(reader.release() for reader in self._readers):
            pass
        if all(reader.parked for reader in self._readers):
            # what a fence waits for was sent before all that they are parked at: somebody has left it out
            raise ProtocolViolation("every stream waits for a write that none of them can bring any more")

    def _send(self) -> None:
        for _ in range(PIECES_PER_TURN):
            busy = False
            for writer in self._writers[self._first :] + self._writers[: self._first]:
                busy = writer.send() or busy
            if not busy:
                return
            self._first = (self._first + 1) % len(self._writers)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run it; whatever shows the link to be broken is remembered for the next call."""
        try:
            action()
        except ProtocolViolation as violation:
            self._report_violation(str(violation))
            self._drop(f"the peer broke the protocol: {violation}")
        except PeerReportsViolation as reported:
            self._drop(str(reported))
        except (PeerClosed, OSError) as error:
            self._drop(self._close_reason() or str(error))

    def _close_reason(self) -> str:
        """Take in what had come on every stream before the link broke; the violation that the peer reports, if any."""
        reason = ""
        for reader in self._readers:
            try:
                reader.receive()
            except PeerReportsViolation as reported:
                reason = str(reported)
            except (PeerClosed, OSError, ProtocolViolation):
                continue
        return reason

    def _report_violation(self, reason: str) -> None:
        any(writer.report_violation(reason) for writer in self._writers)

    def _drop(self, reason: str) -> None:
        if self._health.lost:
            return
        self._health.lose(reason)
        self._exposures.clear()
        for connection in self._connections:
            if self._outbound.unacknowledged:
                # the kernel must not go on to send pages of sources that their owner may now change
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_ON_CLOSE)
            connection.close()

    def _complete(self, completion: Completion) -> None:
        self._completions.append(completion)

    def _on_acknowledged(self, ack: Head) -> None:
        self._complete(Completion(CompletionKind.WRITE_DONE, self._outbound.acknowledged(ack)))


def _on_this_host(connection: socket.socket) -> bool:
    try:
        return bool(connection.getsockname()[0] == connection.getpeername()[0])
    except OSError:
        # gone again already; the first read will say so
        return False


def _tune(connection: socket.socket, settings: TcpSettings) -> None:
    seconds = settings.keepalive_seconds
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, seconds)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, max(1, seconds // 2))
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, seconds * 3000)
    if settings.buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.buffer_bytes)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.buffer_bytes)
