"""What carries a control channel: a TCP connection, with TLS or without, and frames with their lengths on it.

TLS runs in memory (`ssl.MemoryBIO`), so that the bytes of a stranger are counted before any of them is believed, and a
handshake that fails is seen with its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from fedrdma_fate.gateway.peers.control_stream import ControlStream
from fedrdma_fate.gateway.peers.follow_up import FollowUp, unacked_packets
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, WireError

LENGTH_BYTES = 4
"""Before each frame: its length, big-endian, as the `len` of TLS itself."""

MOST_FRAME_BYTES = 4 * 1024 * 1024
"""Of a frame of a peer that is known: 64 times the payload of an Inline frame."""

GREETING_BYTES = 16 * 1024
"""All that a stranger may send, TLS included: two certificates with RSA keys take 4 KiB, a greeting less than one."""

_READ_BYTES = 16 * 1024
"""At once: a record of TLS (RFC 8446, section 5.1), so that no connection holds up the others."""

KERNEL_BYTES = 64 * 1024
"""Of frames that the kernel takes ahead of what is on its way: else megabytes lie there, ahead of what goes first."""

_TLS_HANDSHAKE = 22
"""First byte of a connection of TLS (RFC 8446, section 5.1); none of a frame that a stranger may send."""

_SETTINGS = b"\x04\x00\x00\x00\x00\x00"
"""What a connection of HTTP/2 begins with behind a length of three bytes (RFC 9113, sections 3.4 and 6.5): no greeting,
which has something in its first five bytes."""

FAREWELL_SECONDS = 10.0
"""For what was queued when the stream was closed to be sent: what matters of it is said again on the next channel."""

LAST_WORDS_SECONDS = 0.5
"""For what was sent last, the reason for the end, to be read before the connection is torn down."""


class ChannelSecurity(Protocol):
    """Makes a connection one of TLS."""

    def wrap(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_side: bool) -> ssl.SSLObject:
        """TLS on two buffers."""
        ...

    def check(self, tls: ssl.SSLObject, stream: ControlStream) -> None:
        """The handshake is done: note on the stream who is at the other end.

        Raises:
            FedRDMAError: nobody who may be there.
        """
        ...

    def refusal(self, error: ssl.SSLError) -> FedRDMAError:
        """What an error of TLS means."""
        ...


class ControlConnection(asyncio.BufferedProtocol):
    """Belongs to the event loop's thread. See `asyncio.BufferedProtocol`.

    Attributes:
        stream: what it carries.
        ready: frames can be sent; with TLS, the handshake is done. On the side that dialled, the other side may
            still refuse the certificate of ours (RFC 8446, section 4.4.2.4).
        ended: the connection is gone.
    """

    def __init__(
        self,
        security: ChannelSecurity | None,
        *,
        server_side: bool,
        on_made: Callable[[ControlConnection], bool] = lambda _connection: True,
        on_ready: Callable[[ControlConnection], None] = lambda _connection: None,
        on_ended: Callable[[ControlConnection], None] = lambda _connection: None,
    ) -> None:
        """
        Args:
            security: makes it one of TLS; None does without.
            server_side: whether the other side dialled.
            on_made: called first; False drops the connection at once.
            on_ready: called when frames can be sent.
            on_ended: called last.
        """
        self.stream = ControlStream()
        self.stream.on_known = self.stream.on_room = self._on_known
        self.stream.on_closed = self._limit_farewell
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self._security = security
        self._server_side = server_side
        self._on_made, self._on_ready, self._on_ended = on_made, on_ready, on_ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._received = 0
        self._unparsed = bytearray()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._shaking_hands = False
        self._held = False
        self._discards = False
        self._broken = False
        self._other_side_ended = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._sending: asyncio.Task[None] | None = None
        self._follow_up = FollowUp(self._write_frame, self._has_unacked)
        self._tear_down: asyncio.TimerHandle | None = None
        self._farewell: asyncio.TimerHandle | None = None

    # -- what the event loop calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.stream.remote_host = None if name is None else str(name[0])
        if (connection := transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, KERNEL_BYTES)
        if not self._on_made(self):
            self.abort()
            return
        if self._security is None:
            self._become_ready()
            return
        try:
            self._tls = self._security.wrap(self._incoming, self._outgoing, server_side=self._server_side)
            self._shaking_hands = True
            self._advance()
        except ssl.SSLError as error:
            self._refuse(error)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's wish is not ours
        if self.stream.known or self._discards:
            return self._buffer
        return self._buffer[: max(1, GREETING_BYTES - self._received)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._discards:
            return
        self._received += nbytes
        try:
            if self._tls is None:
                self._take(bytes(self._buffer[:nbytes]))
            else:
                self._incoming.write(self._buffer[:nbytes])
                self._advance()
            if not self.stream.known and not self._held and self._received >= GREETING_BYTES:
                raise _too_long(GREETING_BYTES)
        except ssl.SSLError as error:
            self._refuse(error)
        except FedRDMAError as error:
            self._stop_reading(error)

    def eof_received(self) -> bool:
        self._other_side_ended = True
        self._end("")
        # what we have to say may still be heard
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("" if exc is None else f": {exc}")
        self._writable.set()
        self._follow_up.close()
        if self._sending is not None:
            self._sending.cancel()
        for timer in (self._tear_down, self._farewell):
            if timer is not None:
                timer.cancel()
        # which takes most of it: who is still told of the end may keep this for a while
        self._tls = None
        self.ended.set()
        self._on_ended(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- for who holds it -----------------------------------------------------------------------------------------

    @property
    def made(self) -> bool:
        """Whether there ever was a connection."""
        return self._transport is not None

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- reading --------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Let TLS work on what has come.

        Raises:
            ssl.SSLError: it does not like that.
            FedRDMAError: nor do we.
        """
        assert self._tls is not None
        assert self._security is not None
        try:
            if self._shaking_hands:
                self._tls.do_handshake()
                self._shaking_hands = False
                self._flush()
                try:
                    self._security.check(self._tls, self.stream)
                except FedRDMAError as error:
                    self._stop_reading(error)
                self._become_ready()
            while chunk := self._tls.read(_READ_BYTES):
                self._take(chunk)
            self._end("")
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end("")
        finally:
            self._flush()

    def _take(self, chunk: bytes) -> None:
        if not self._discards:
            self._unparsed += chunk
            self._parse()

    def _parse(self) -> None:
        """Hand over the frames that are whole: to a stranger's first one, somebody has to answer before the next.

        Raises:
            WireError: MALFORMED_FRAME when one is too long.
        """
        while not self._held and len(self._unparsed) >= LENGTH_BYTES:
            if not self.stream.known and self._unparsed[0] == _TLS_HANDSHAKE:
                raise WireError(
                    ErrorCode.MALFORMED_FRAME,
                    "the other side speaks TLS; here `security` is `off`.",
                    "Set `security` alike at both sites.",
                )
            if not self.stream.known and self._unparsed[3:9] == _SETTINGS:
                raise WireError(
                    ErrorCode.MALFORMED_FRAME,
                    "the other side speaks HTTP/2, as brokers of OSX do, and no gateway.",
                    "If it is a broker, say `kind: osx` of this peer.",
                )
            length = int.from_bytes(self._unparsed[:LENGTH_BYTES], "big")
            most = MOST_FRAME_BYTES if self.stream.known else GREETING_BYTES
            if length > most:
                raise _too_long(most, length)
            end = LENGTH_BYTES + length
            if len(self._unparsed) < end:
                return
            frame = bytes(self._unparsed[LENGTH_BYTES:end])
            del self._unparsed[:end]
            if not self.stream.known:
                self._hold()
            self.stream.take_in(frame)
            if self.stream.full:
                self._hold()

    def _hold(self) -> None:
        self._held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _on_known(self) -> None:
        if not self._held:
            return
        self._held = False
        try:
            self._parse()
        except FedRDMAError as error:
            self._stop_reading(error)
        if not self._held:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _stop_reading(self, error: FedRDMAError) -> None:
        """Nothing more is believed; who reads the stream says why, and closes it."""
        self._discards = True
        self.stream.fail(error)
        if self._shaking_hands:
            # nobody reads it yet
            self._broken = True
            self.stream.close()
            self._finish()

    def _refuse(self, error: ssl.SSLError) -> None:
        """TLS has failed, and has told the other side by an alert of its own, where there is one."""
        assert self._security is not None
        self._discards = self._broken = True
        self.stream.fail(self._security.refusal(error))
        self.stream.close()
        self._finish()

    def _end(self, reason: str) -> None:
        if self.stream.failure is None and not self.stream.end_reason:
            self.stream.end_reason = reason
        self.stream.close()
        if self._sending is None:
            self._finish()

    # -- writing --------------------------------------------------------------------------------------------------

    def _become_ready(self) -> None:
        self._sending = self._loop.create_task(self._send())
        self.ready.set()
        self._on_ready(self)

    def _limit_farewell(self) -> None:
        """The stream is closed: who does not read what is still for it has the connection no longer for that."""
        self._farewell = self._loop.call_later(FAREWELL_SECONDS, self.abort)

    async def _send(self) -> None:
        async for frame in self.stream.outgoing():
            if len(frame) > MOST_FRAME_BYTES:
                self.stream.fail(_too_long(MOST_FRAME_BYTES, len(frame)))
                break
            self._write_frame(frame)
            if self.stream.followed:
                self._follow_up.note_sent()
            await self._writable.wait()
        self._finish()

    def _write_frame(self, frame: bytes) -> None:
        self._write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)

    def _has_unacked(self) -> bool:
        assert self._transport is not None
        with contextlib.suppress(OSError):
            return unacked_packets(self._transport.get_extra_info("socket")) > 0
        return False

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if self._broken or self._transport.is_closing():
            return
        if self._tls is None:
            self._transport.write(data)
        else:
            self._tls.write(data)
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    def _finish(self) -> None:
        """Say the end, and wait a little for the other side to read what came before: closing at once, with anything
        of its still unread, would take that from it (RFC 1122, section 4.2.2.13)."""
        self._discards = True
        self._follow_up.close()
        if self._transport is None or self._transport.is_closing() or self._tear_down is not None:
            return
        if self._tls is not None and not self._broken and not self._shaking_hands:
            with contextlib.suppress(ssl.SSLError):
                # which wants the other side's farewell, too; nobody waits for that
                self._tls.unwrap()
            self._flush()
        self._tear_down = self._loop.call_later(LAST_WORDS_SECONDS, self.abort)
        if self._other_side_ended:
            self._transport.close()
            return
        self._resume_reading()
        with contextlib.suppress(OSError):
            self._transport.write_eof()


def _too_long(most: int, length: int | None = None) -> WireError:
    what = "more came" if length is None else f"a frame of {length} bytes came"
    return WireError(
        ErrorCode.MALFORMED_FRAME,
        f"{what} than the {most} bytes that may come.",
        "Run the same fedrdma-fate version on both sides.",
    )
