"""Models over QUIC by aioquic's asyncio: each is a stream of one direction, and whole where the stream ends.

Whoever imports this has called `prefer_aioquic` before. The event loop has a thread of its own: acknowledgements and
timers go on while the program does something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import hmac
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset
from aioquic.quic.packet_builder import QuicDeliveryState
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedrdma_fate.transport.udp.socket_options import IPV4_HEADERS, ask_for_buffer

NEVER_SECONDS = 600.0
"""A peer that says nothing for so long has died."""
_WINDOW_BYTES = 2**30
"""Of a stream, and of a connection: no model waits for flow control; aioquic doubles it as it is used up."""
_PROTOCOL = "fedrdma-bench"
_SERVER = "server"
_SILO_BYTES = 2
"""Of a silo's number, behind the token."""
_YEARS = 2000, 2100
"""In which the certificate is valid: clocks of a testbed's guests may be anywhere."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Ticket:
    """What a silo has to know, and nobody else.

    Attributes:
        address: of the server.
        port: of the server.
        certificate: of the server, as PEM.
        token: in hexadecimal digits; who has it is one of the silos.
    """

    address: str
    port: int
    certificate: str
    token: str


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Of both ends alike.

    Attributes:
        mtu: of the path, bytes of an IPv4 packet.
        most_bytes: of a model.
        congestion: by aioquic's name.
    """

    mtu: int
    most_bytes: int
    congestion: str = "reno"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A model, as it came.

    Attributes:
        moment: when the last of it was there, by `time.monotonic`.
        body: of it.
    """

    moment: float
    body: bytearray


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have it done there, and wait; however long that takes, as long as the peer answers.

        Raises:
            ConnectionError: the peer has left, or said what it must not.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Peer(QuicConnectionProtocol):  # type: ignore[misc]
    """One connection; by the event loop's thread alone.

    Attributes:
        most_bytes: of a message.
        resent_bytes: of messages that were declared lost, and so sent again.
        why_gone: why nothing comes any more; None: the peer is there.
    """

    def __init__(self, quic: Any, most_bytes: int, stream_handler: object = None) -> None:
        """
        Args:
            quic: aioquic's connection.
            most_bytes: of a message.
            stream_handler: which aioquic's server gives; nobody is called, what comes is taken here.
        """
        super().__init__(quic, stream_handler)
        self.most_bytes = most_bytes
        self.resent_bytes = 0
        self.why_gone: str | None = None
        self._connection = quic
        self._body = bytearray()
        self._taken = 0
        self._whole: dict[int, asyncio.Future[Message]] = {}
        self._sender: Any = None
        self._delivered = asyncio.Event()

    def send(self, body: bytes | bytearray | memoryview) -> None:
        """Hand over a message; returns at once."""
        stream = self._connection.get_next_available_stream_id(is_unidirectional=True)
        self._connection.send_stream_data(stream, bytes(body), end_stream=True)
        self._delivered.clear()
        # aioquic counts nothing, but it calls this of each frame that was acknowledged or declared lost
        sender = self._sender = self._connection._streams[stream].sender
        sender.on_data_delivery = functools.partial(self._count, sender, sender.on_data_delivery)
        self.transmit()

    async def delivered(self) -> None:
        """Wait until the peer has acknowledged all that was sent.

        Raises:
            ConnectionError: it has left.
        """
        await self._delivered.wait()
        if self.why_gone is not None:
            raise ConnectionError(self.why_gone)

    async def message(self, number: int) -> Message:
        """The peer's message of this number, the first is 0; each is asked for once.

        Raises:
            ConnectionError: it has left, or broken the rules.
        """
        got = await self._place(number)
        del self._whole[number]
        return got

    def quic_event_received(self, event: object) -> None:
        """Of aioquic: something has come."""
        if isinstance(event, StreamDataReceived):
            self._take(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, StreamReset):
            self.refuse("the peer broke a message off")
        elif isinstance(event, ConnectionTerminated):
            self._gone(event.reason_phrase or "the other host hung up")

    def refuse(self, why: str) -> None:
        """End the connection for what the peer did."""
        self._gone(why)
        self.close(reason_phrase=why)

    def _take(self, stream: int, data: bytes, ends: bool) -> None:
        if self.why_gone is not None:
            return
        # the two lowest bits say who opened it and whether it has a way back (RFC 9000, section 2.1)
        if stream != 4 * self._taken + (2 if not self._connection._is_client else 3):
            self.refuse(f"a message on stream {stream}, where the one before is not whole")
        elif len(self._body) + len(data) > self.most_bytes:
            self.refuse(f"a message of more than {self.most_bytes} bytes")
        elif len(self._whole) > 1:
            self.refuse("messages that nobody waits for")
        else:
            self._body += data
            if ends:
                self._place(self._taken).set_result(Message(time.monotonic(), self._body))
                self._body, self._taken = bytearray(), self._taken + 1

    def _place(self, number: int) -> asyncio.Future[Message]:
        if number not in self._whole:
            self._whole[number] = self._loop.create_future()
            if self.why_gone is not None:
                self._whole[number].set_exception(ConnectionError(self.why_gone))
        return self._whole[number]

    def _gone(self, why: str) -> None:
        if self.why_gone is None:
            self.why_gone = why
            self._delivered.set()
            for place in self._whole.values():
                if not place.done():
                    place.set_exception(ConnectionError(why))

    def _count(
        self, sender: Any, told: Callable[..., None], state: object, start: int, stop: int, *others: object
    ) -> None:
        told(state, start, stop, *others)
        if state is QuicDeliveryState.LOST:
            self.resent_bytes += stop - start
        if sender is self._sender and sender.is_finished:
            self._delivered.set()


class Listener:
    """The server's end: takes a connection of each silo that has the token."""

    def __init__(self, loop: Loop, address: str, silos: int, settings: Settings, token: str) -> None:
        """
        Args:
            loop: that serves it.
            address: to listen on, at a port of the kernel's choice.
            silos: how many there will be, from 1 on.
            settings: of all connections.
            token: in hexadecimal digits, that a silo has.
        """
        self._loop, self._silos, self._settings, self._token = loop, silos, settings, bytes.fromhex(token)
        self._peers: dict[int, Peer] = {}
        self._udp = _udp_socket(address)
        self._configuration, certificate = _server_configuration(settings)
        self.ticket = Ticket(address, self._udp.getsockname()[1], certificate, token)
        self._server: Any = None

    def __enter__(self) -> Listener:
        self._loop.run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._close())

    def peers(self) -> list[Peer]:
        """Of all silos, in the order of their numbers, once they are there."""
        return self._loop.run(self._all())

    async def _listen(self) -> None:
        self._everyone = asyncio.Event()
        self._admitting: set[asyncio.Task[None]] = set()
        make = asyncio.get_running_loop().create_datagram_endpoint
        server = QuicServer(configuration=self._configuration, create_protocol=self._made)
        self._transport, self._server = await make(lambda: server, sock=self._udp)

    async def _close(self) -> None:
        self._server.close()
        # so that what says so is sent
        await asyncio.sleep(0)

    def _made(self, quic: Any, stream_handler: object = None) -> Peer:
        peer = Peer(quic, len(self._token) + _SILO_BYTES, stream_handler)
        task = asyncio.ensure_future(self._admit(peer))
        self._admitting.add(task)
        task.add_done_callback(self._admitting.discard)
        return peer

    async def _admit(self, peer: Peer) -> None:
        with contextlib.suppress(ConnectionError):
            said = bytes((await peer.message(0)).body)
            silo = int.from_bytes(said[len(self._token) :], "big")
            if not hmac.compare_digest(said[: len(self._token)], self._token) or not 1 <= silo <= self._silos:
                peer.refuse("this is no silo")
            elif silo in self._peers:
                peer.refuse("this silo is there already")
            else:
                peer.most_bytes = self._settings.most_bytes
                self._peers[silo] = peer
                if len(self._peers) == self._silos:
                    self._everyone.set()

    async def _all(self) -> list[Peer]:
        await self._everyone.wait()
        return [self._peers[silo] for silo in sorted(self._peers)]


@contextlib.contextmanager
def dialled(loop: Loop, address: str, silo: int, settings: Settings, ticket: Ticket) -> Iterator[Peer]:
    """A silo's connection to the server whose certificate it was given.

    Raises:
        ConnectionError: somebody else is there.
    """

    async def connect() -> Peer:
        configuration = _configuration(settings, is_client=True)
        configuration.server_name = _SERVER
        configuration.load_verify_locations(cadata=ticket.certificate.encode())
        peer = Peer(QuicConnection(configuration=configuration), settings.most_bytes)
        make = asyncio.get_running_loop().create_datagram_endpoint
        await make(lambda: peer, sock=_udp_socket(address))
        peer.connect((ticket.address, ticket.port))
        try:
            await peer.wait_connected()
        except ConnectionError as error:
            await close(peer)
            raise ConnectionError(f"no connection to the server: {peer.why_gone}") from error
        peer.send(bytes.fromhex(ticket.token) + silo.to_bytes(_SILO_BYTES, "big"))
        return peer

    async def close(peer: Peer) -> None:
        peer.close()
        peer._transport.close()
        await asyncio.sleep(0)

    peer = loop.run(connect())
    try:
        yield peer
    finally:
        loop.run(close(peer))


def _configuration(settings: Settings, *, is_client: bool) -> Any:
    return QuicConfiguration(
        alpn_protocols=[_PROTOCOL],
        congestion_control_algorithm=settings.congestion,
        idle_timeout=NEVER_SECONDS,
        is_client=is_client,
        max_data=_WINDOW_BYTES,
        max_datagram_size=settings.mtu - IPV4_HEADERS,
        max_stream_data=_WINDOW_BYTES,
    )


def _server_configuration(settings: Settings) -> tuple[Any, str]:
    """With a key of this process; and the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _SERVER)])
    first, last = (datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc) for year in _YEARS)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), first, last)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_SERVER)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    configuration = _configuration(settings, is_client=False)
    with tempfile.TemporaryDirectory(prefix="fedrdma-quic-") as directory:
        file = Path(directory, "certificate")
        file.touch(mode=0o600)
        file.write_bytes(certificate + secret)
        configuration.load_cert_chain(file)
    return configuration, certificate.decode()


def _udp_socket(address: str) -> socket.socket:
    """Of an address, with room for what comes while the event loop is elsewhere, as transport `udp` has it."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ask_for_buffer(made, socket.SO_RCVBUF)
    made.setblocking(False)
    made.bind((address, 0))
    return made
