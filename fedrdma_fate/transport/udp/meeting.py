"""Two sockets find out whether UDP passes between them, and how long its datagrams may be.

Each side sends probes of several lengths and says in them what the longest was that it has got of the other. A length
is good when it came through both ways, as in RFC 8899, which searches for it while data flows; here all lengths are
tried at once, before. What was found is told over the link's first TCP connection, so that both use the same.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import time
from typing import NamedTuple

from fedrdma_fate.transport.endpoint_base import TOKEN_BYTES
from fedrdma_fate.transport.listener import ConnectError, UdpBlockedError
from fedrdma_fate.transport.udp.packets import COOKIE_BYTES, PROBE, PROBE_HEAD, VERSION
from fedrdma_fate.transport.udp.receiving import DatagramReceiver

PATH_MTUS = (9000, 4200, 1500, 1492, 1450, 1420, 1380, 1280)
"""Of Ethernet with jumbo frames, InfiniBand's 4096 and its headers, Ethernet, PPPoE, VXLAN, WireGuard, IPsec, and what
IPv6 asks of every link (RFC 8200, section 5)."""

ROUND_SECONDS = 0.05
"""Between two rounds of probes."""

SILENCE_SECONDS = 1.5
"""After which UDP does not pass: 30 rounds, all of which a path does not lose by chance."""

LATEST_SECONDS = SILENCE_SECONDS + 3.0
"""The same for the side that waits to be probed. The other begins when it is told that it is welcome, by a packet that
may be lost: it goes again a second later, or 3 s where the connection had no round trip to go by (RFC 6298, sections
2.1, 5.7)."""

SETTLE_SECONDS = 0.4
"""From the first probe that came, for the longer ones: 8 rounds."""

BATCHES_AT_ONCE = 64
"""Read before it is looked at the time again, 4 MiB: what the socket's buffer holds, however fast more comes."""

_FOUND = struct.Struct("<HQ")
"""Longest datagram that came, 0: none; and the name of our end of the connection."""


NO_COOKIE = bytes(COOKIE_BYTES)
"""Of a peer of which nothing has come."""


class Probe(NamedTuple):
    """What a probe says.

    Attributes:
        token: of the draft.
        length: that it has.
        seen: longest that has come of the peer.
        cookie: of who sends it.
        echo: the peer's, or NO_COOKIE.
    """

    token: bytes
    length: int
    seen: int
    cookie: bytes = NO_COOKIE
    echo: bytes = NO_COOKIE


def probe(token: bytes, length: int, seen: int, cookie: bytes = NO_COOKIE, echo: bytes = NO_COOKIE) -> bytes:
    """One probe of this length."""
    return PROBE_HEAD.pack(PROBE, VERSION, token, length, seen, cookie, echo).ljust(length, b"\0")


def read_probe(data: bytes) -> Probe | None:
    """What a probe says; None when it is none, or was cut."""
    if len(data) < PROBE_HEAD.size:
        return None
    kind, version, *said = PROBE_HEAD.unpack_from(data)
    found = Probe(*said)
    return found if kind == PROBE and version == VERSION and found.length == len(data) else None


def lengths_to_try(longest: int, headers: int) -> list[int]:
    """Lengths of datagrams, the longest first, for a route that takes `longest`."""
    known = [mtu - headers for mtu in PATH_MTUS]
    return [longest, *(length for length in known if length < longest)]


def say_that_nothing_came(stream: socket.socket) -> None:
    """Tell the other side, which may wait for it, that no probe has got here."""
    with contextlib.suppress(OSError):
        stream.sendall(_FOUND.pack(0, 0))


class Meeting:
    """One side of it. Lengths are those of datagrams, without the headers of IP and UDP."""

    def __init__(
        self, token: bytes, own_connection: int, lengths: list[int], received_bytes: int | None = None
    ) -> None:
        """
        Args:
            token: of the draft; probes with another are somebody else's.
            own_connection: what the peer shall call this connection.
            lengths: to try, the longest first.
            received_bytes: that have come from the peer's address, which is all that is known of it: no more is sent
                there before it has sent a cookie back (RFC 9000, section 8.1, which lets send three times as much).
                None: it is where the streams have found the peer.
        """
        assert len(token) == TOKEN_BYTES
        self._token = token
        self._connection = own_connection
        self._lengths = lengths
        self._received = 0
        self._peer_received = 0
        self._first_at: float | None = None
        self._cookie = secrets.token_bytes(COOKIE_BYTES)
        self._echo = NO_COOKIE
        self._may_send = received_bytes

    def on_datagram(self, data: bytes, now: float) -> None:
        """Something came."""
        found = read_probe(data)
        if found is None or found.token != self._token:
            return
        self._received = max(self._received, found.length)
        self._peer_received = max(self._peer_received, found.seen)
        self._echo = found.cookie
        if found.echo == self._cookie:
            self._may_send = None
        elif self._may_send is not None:
            self._may_send += found.length
        if self._first_at is None:
            self._first_at = now

    def run(self, udp: socket.socket, stream: socket.socket, deadline: float) -> tuple[int, int]:
        """Meet the other side: the longest datagram both ways, and what it calls the connection.

        Args:
            udp: connected, non-blocking.
            stream: the link's first TCP connection, on which nothing else is under way.
            deadline: by the monotonic clock.

        Raises:
            UdpBlockedError: UDP does not pass.
            ConnectError: the other side is gone, or tells of what cannot be.
        """
        began = time.monotonic()
        receiver = DatagramReceiver(udp)
        poller = select.poll()
        poller.register(udp, select.POLLIN)
        poller.register(stream, select.POLLIN)
        told, answer, next_round = False, b"", began
        while True:
            now = time.monotonic()
            if now >= deadline:
                raise ConnectError("the peer did not say in time what it has got by UDP")
            if now >= next_round:
                next_round = now + ROUND_SECONDS
                self._send_round(udp)
            if not told and self._is_settled(now, began):
                stream.sendall(_FOUND.pack(self._received, self._connection))
                told = True
                if not self._received:
                    # whatever the other side has got, and when it says so
                    raise _blocked()
            if told and len(answer) == _FOUND.size:
                return self._agreed(answer)
            poller.poll(max(0.0, min(next_round, deadline) - time.monotonic()) * 1000 + 1)
            self._receive(receiver)
            answer += _read(stream, _FOUND.size - len(answer))

    def _agreed(self, answer: bytes) -> tuple[int, int]:
        received, connection = _FOUND.unpack(answer)
        # what either side got of the other is what the other can send
        length = min(received, self._received)
        if not length:
            raise _blocked()
        if length < min(self._lengths):
            # as the peer, or who can change the stream, may say: chunks would be cut into any number of them
            raise ConnectError(f"the peer says that it got datagrams of {length} bytes, which were not sent")
        return length, connection

    def _is_settled(self, now: float, began: float) -> bool:
        if self._first_at is None:
            return now - began >= SILENCE_SECONDS
        everything = self._received >= self._lengths[0] and self._peer_received >= self._lengths[0]
        return everything or now - self._first_at >= SETTLE_SECONDS

    def _send_round(self, udp: socket.socket) -> None:
        # the shortest first, of which the most can be sent to who has sent little
        for length in reversed(self._lengths):
            if self._may_send is not None:
                if self._may_send < length:
                    return
                self._may_send -= length
            # too long for the route; refused by a host that does not listen yet; no room just now
            with contextlib.suppress(OSError):
                udp.send(probe(self._token, length, self._received, self._cookie, self._echo))

    def _receive(self, receiver: DatagramReceiver) -> None:
        # what the host of a peer that does not listen yet has to say comes up here, too
        with contextlib.suppress(OSError):
            for _ in range(BATCHES_AT_ONCE):
                for datagram in receiver.batch():
                    self.on_datagram(bytes(datagram), time.monotonic())


def _blocked() -> UdpBlockedError:
    return UdpBlockedError(f"UDP does not pass: nothing came for {SILENCE_SECONDS:g} s")


def _read(stream: socket.socket, most: int) -> bytes:
    if not most:
        return b""
    try:
        data = stream.recv(most)
    except BlockingIOError:
        return b""
    except OSError as error:
        raise ConnectError(str(error)) from error
    if not data:
        raise ConnectError("the peer closed the connection")
    return data
