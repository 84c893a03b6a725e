"""The `udp` transport: TCP streams as `tcp` has them, on the same port, and a UDP socket beside them."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import socket
import time

from fedrdma_fate.ports import Endpoint, EndpointAddress, Role
from fedrdma_fate.transport.endpoint_base import address_number, address_text, unavailable
from fedrdma_fate.transport.listener import ConnectError, UdpBlockedError
from fedrdma_fate.transport.tcp import ActiveDraft, PassiveDraft, TcpEndpoint, TcpSettings, TcpTransport
from fedrdma_fate.transport.udp.endpoint import NAME, UdpEndpoint
from fedrdma_fate.transport.udp.listening import UdpListener
from fedrdma_fate.transport.udp.meeting import LATEST_SECONDS, Meeting, lengths_to_try, say_that_nothing_came
from fedrdma_fate.transport.udp.path_validation import PATH_KEY_BYTES, PathTags
from fedrdma_fate.transport.udp.socket_options import (
    IPV4_HEADERS,
    IPV6_HEADERS,
    is_ipv6,
    prepare,
    route_datagram_bytes,
)
from fedrdma_fate.wire.errors import ErrorCode, TransportError

STREAMS = 1
"""Of TCP beside the socket: what is no chunk is short, or of a mode that is not made for long ways."""


@dataclasses.dataclass(frozen=True, slots=True)
class UdpSettings:
    """Parameters of the `udp` transport.

    Attributes:
        host: address to listen on.
        port: UDP port to listen on; 0 lets the kernel choose.
        segments: have the kernel cut batches into datagrams, where it can.
        longest_datagram: no longer ones are tried; None: as long as the route allows.
    """

    host: str = "127.0.0.1"
    port: int = 0
    segments: bool = True
    longest_datagram: int | None = None


class UdpTransport:
    """Listens on one UDP port for every link of this gateway."""

    def __init__(self, settings: UdpSettings, streams: TcpTransport, stream_settings: TcpSettings) -> None:
        """Start to listen.

        Args:
            settings: parameters.
            streams: makes the streams; its owner closes it.
            stream_settings: of those.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the port cannot be had.
        """
        self._settings = settings
        self._streams = streams
        self._stream_settings = dataclasses.replace(stream_settings, streams=STREAMS)
        try:
            self._listener = UdpListener(settings.host, settings.port)
        except OSError as error:
            place = f"{settings.host}:{settings.port}"
            raise unavailable(
                NAME,
                f"cannot listen on {place}: {error.strerror}",
                "Set listen.data to a free address; without, it is that of listen.control.",
            ) from error

    @property
    def name(self) -> str:
        return NAME

    @property
    def port(self) -> int:
        """The UDP port."""
        return self._listener.port

    @property
    def strays(self) -> int:
        """Datagrams that came to the port for no link, or found no room there, so far. Safe to use from any thread."""
        return self._listener.dropped

    def open(self, role: Role) -> UdpDraft:
        """Start one data path.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the transport is closed.
        """
        streams = self._streams.open(role)
        try:
            token = self._listener.expect() if role == "passive" else None
        except ConnectError as error:
            streams.close()
            raise unavailable(NAME, str(error)) from error
        return UdpDraft(self._settings, self._stream_settings, self._listener, streams, token)

    def close(self) -> None:
        """Stop listening; links that are connected live on."""
        self._listener.close()


class UdpDraft:
    """This side's half of a link."""

    def __init__(
        self,
        settings: UdpSettings,
        stream_settings: TcpSettings,
        listener: UdpListener,
        streams: PassiveDraft | ActiveDraft,
        token: bytes | None,
    ) -> None:
        """
        Args:
            settings: parameters.
            stream_settings: of the streams.
            listener: where the peer's probes come.
            streams: the streams' half.
            token: of the passive side's.
        """
        self._settings = settings
        self._stream_settings = stream_settings
        self._listener = listener
        self._streams = streams
        self._token = token
        self._path_key = secrets.token_bytes(PATH_KEY_BYTES)

    @property
    def address(self) -> EndpointAddress:
        """As that of `tcp`, and on the passive side UDP port, token, and the key of the tags."""
        own = {**self._streams.address, "streams": STREAMS}
        if self._token is not None:
            own |= {
                "udp_port": self._listener.port,
                "udp_token": self._token.hex(),
                "udp_path_key": self._path_key.hex(),
            }
        return own

    def connect(self, peer: EndpointAddress, timeout: float) -> Endpoint:
        """Meet the other half.

        Raises:
            TransportError: TRANSPORT_UNAVAILABLE when the streams cannot be made, UDP_BLOCKED when UDP does not pass.
        """
        deadline = time.monotonic() + timeout
        tags = PathTags(self._path_key if self._token is not None else _path_key(peer))
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            connections = self._streams.meet({**peer, "streams": STREAMS}, timeout)
            for connection in connections:
                undo.callback(connection.close)
            try:
                udp, token, received_bytes = self._meeting_socket(connections[0], peer, deadline)
                undo.callback(udp.close)
                prepare(udp)
                own = secrets.randbits(64)
                meeting = Meeting(token, own, self._lengths(udp), received_bytes)
                length, named = meeting.run(udp, connections[0], deadline)
            except UdpBlockedError as error:
                remedy = "Does a firewall drop UDP on the data port?"
                raise TransportError(ErrorCode.UDP_BLOCKED, f"no {NAME} data path: {error}.", remedy) from error
            except (ConnectError, OSError) as error:
                raise unavailable(NAME, str(error)) from error
            undo.pop_all()
        self.close()
        streams = TcpEndpoint(connections, self._stream_settings, NAME)
        followed = None if self._token is None else self._listener.follow(own)
        return UdpEndpoint(
            streams,
            udp,
            length,
            lambda: self._lengths(udp),
            own,
            named,
            tags,
            followed,
            segments=self._settings.segments,
        )

    def abandon(self) -> None:
        """See `ports.Draft`; once the first probe has come, what is left is over within a second."""
        self._streams.abandon()
        if self._token is not None:
            self._listener.forget(self._token)

    def close(self) -> None:
        """Drop the draft."""
        self._streams.close()
        if self._token is not None:
            self._listener.forget(self._token)

    def _meeting_socket(
        self, connection: socket.socket, peer: EndpointAddress, deadline: float
    ) -> tuple[socket.socket, bytes, int | None]:
        """Where probes go, their token, and how many bytes have come from there where it is not known who is there."""
        if self._token is not None:
            try:
                udp, received = self._listener.accept(self._token, min(deadline, time.monotonic() + LATEST_SECONDS))
                return udp, self._token, received
            except ConnectError:
                say_that_nothing_came(connection)
                raise
        text = address_text(NAME, peer, "udp_token")
        port = address_number(NAME, peer, "udp_port", 65535)
        udp = socket.socket(connection.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # to where the streams have found the peer
            udp.connect((connection.getpeername()[0], port))
            return udp, bytes.fromhex(text), None
        except (OSError, ValueError) as error:
            udp.close()
            raise ConnectError(str(error)) from error

    def _lengths(self, udp: socket.socket) -> list[int]:
        headers = IPV6_HEADERS if is_ipv6(udp) else IPV4_HEADERS
        longest = route_datagram_bytes(udp)
        if self._settings.longest_datagram is not None:
            longest = min(longest, self._settings.longest_datagram)
        return lengths_to_try(longest, headers)


def _path_key(peer: EndpointAddress) -> bytes:
    text = address_text(NAME, peer, "udp_path_key")
    with contextlib.suppress(ValueError):
        key = bytes.fromhex(text)
        if len(key) == PATH_KEY_BYTES:
            return key
    raise unavailable(NAME, "the peer's address has a key of another length")
