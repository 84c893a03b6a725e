"""Targets: what comes by a control connection before and after its greeting, with TLS and without, and by whom."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrdma_fate.gateway.peers.channel_security import TlsChannel
from fedrdma_fate.gateway.peers.control_connection import LENGTH_BYTES, MOST_FRAME_BYTES, ControlConnection
from fedrdma_fate.gateway.peers.control_stream import MOST_UNREAD_BYTES, ControlStream
from fedrdma_fate.gateway.peers.dialling import Dialler
from fedrdma_fate.gateway.peers.newcomers import MOST_ADDRESSES, MOST_NEWCOMERS, Newcomers
from fedrdma_fate.security.credentials import CredentialFiles
from fedrdma_fate.security.reloading import SiteCredentials
from fedrdma_fate.wire.errors import WireError
from fedrdma_fate.wire.frames import Goodbye, Hello, Ping, decode_frame, encode_frame
from fedrdma_fate.wire.header import PROTOCOL_VERSION
from tests.fuzz.target import Finding, Target, require
from tests.fuzz.wire import frames
from tests.support.certificates import TestAuthority

MOST_TURNS = 2_000
"""Of the event loop for one connection: a frame of one byte takes some, an input has fewer than these."""

HELLO = Hello("b", "1", PROTOCOL_VERSION, "1", "host", ("host:2",), ("tcp",), 1 << 30)


class _Transport(asyncio.Transport):
    """Takes what is written to nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: ControlConnection | None = None
        self.paused = self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # there is no socket
        return ("192.0.2.1", 5) if name == "peername" else default

    def is_closing(self) -> bool:
        return self.closed

    def write(self, _data: Any) -> None:
        require(not self.closed, "something is written to a connection that is closed")

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed and self.protocol is not None:
            self.closed = True
            self.protocol.connection_lost(None)


class _Keys:
    def check(self, _hello: Hello) -> None:
        pass


class _Peer:
    """Reads frames until one is none."""

    shut_out = False
    keys = _Keys()

    def own_hello(self) -> Hello:
        return HELLO

    async def run(self, stream: ControlStream, _hello: Hello, _dialler: str) -> None:
        try:
            while (raw := await stream.read()) is not None:
                decode_frame(raw)
        except WireError as error:
            stream.write(encode_frame(Goodbye(str(error))))
        stream.close()


async def _play(data: bytes, security: TlsChannel | None) -> bool:
    """One connection, from its first byte to its end; whether its greeting was taken."""
    peers: Any = {"b": _Peer()}
    connection, transport = ControlConnection(security, server_side=True), _Transport()
    transport.protocol = connection
    stream = connection.stream
    connection.connection_made(transport)
    serving = asyncio.ensure_future(Dialler("a", peers, 5.0).accept(stream))
    at = turns = 0
    while at < len(data) and not transport.closed:
        if not transport.paused:
            buffer = connection.get_buffer(-1)
            # in pieces of any length, which the input itself decides
            piece = data[at : at + min(len(buffer), 1 + data[at] * 8)]
            buffer[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            at += len(piece)
            require(stream.unread_bytes <= MOST_UNREAD_BYTES + MOST_FRAME_BYTES, "more is queued than may be")
        elif serving.done():
            break
        await asyncio.sleep(0)
        turns += 1
        require(turns < len(data) + MOST_TURNS, "a connection takes more turns of the loop than it may")
    if not transport.closed:
        connection.eof_received()
    for _ in range(MOST_TURNS):
        if serving.done():
            break
        await asyncio.sleep(0)
    require(serving.done(), "a connection that has ended is still served")
    serving.result()
    transport.abort()
    # what it cancelled ends
    await asyncio.sleep(0)
    return stream.known


def _connections(name: str, seeds: list[bytes], security: TlsChannel | None, close: Callable[[], None]) -> Target:
    loop = asyncio.new_event_loop()
    failures: list[str] = []
    loop.set_exception_handler(lambda _loop, context: failures.append(f"{context.get('exception')!r}"))

    def read(data: bytes) -> bool:
        known = loop.run_until_complete(_play(data, security))
        if failures:
            raise Finding(f"a task of a connection failed: {failures.pop()}")
        return known or security is not None

    def end() -> None:
        loop.close()
        close()

    return Target(name, seeds, read, (), close=end)


def _framed(*raw: bytes) -> bytes:
    return b"".join(len(each).to_bytes(LENGTH_BYTES, "big") + each for each in raw)


def greetings() -> Target:
    """A connection without TLS: a greeting, and frames behind it."""
    hello = encode_frame(HELLO)
    seeds = [_framed(hello), _framed(hello, *frames().seeds), _framed(hello, *[encode_frame(Ping(0.5))] * 20)]
    return _connections("greetings", seeds, None, lambda: None)


def tls() -> Target:
    """What a stranger sends before it is known who it is."""
    folder = Path(tempfile.mkdtemp())
    authority = TestAuthority(folder)
    authority.issue("a")
    files = CredentialFiles(folder / "a.pem", folder / "a.key", (authority.path,))
    channel = TlsChannel(SiteCredentials(files, "a"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = channel.wrap(incoming, outgoing, server_side=False)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        first = outgoing.read()
    # an alert, and data that nobody can read yet
    others = [b"\x15\x03\x03\x00\x02\x02\x28", b"\x17\x03\x03\x00\x04data", b"\x14\x03\x03\x00\x01\x01"]
    return _connections("tls", [first, *(first + each for each in others)], channel, lambda: shutil.rmtree(folder))


def newcomers() -> Target:
    """Addresses of those who come, one a line."""
    seeds = [
        b"192.0.2.1\n" * 100,
        b"\n".join(b"2001:db8::%x:1" % n for n in range(200)),
        b"::ffff:1.2.3.4\nfe80::1%eth0",
    ]

    def read(data: bytes) -> bool:
        now = 0.0
        admits = Newcomers(lambda: now)
        taken = False
        for host in data.decode("latin-1").split("\n")[:500]:
            now += 0.01
            taken |= admits.admit(host, lambda: None) is not None
            require(len(admits) <= MOST_NEWCOMERS, "more newcomers are kept than may be")
            require(len(admits._buckets) <= MOST_ADDRESSES, "more addresses are remembered than may be")
        return taken

    return Target("newcomers", seeds, read, ())
