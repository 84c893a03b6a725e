"""A control channel as gateways use it: frames in order, both ways, whatever carries them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from fedrdma_fate.gateway.peers.outgoing_frames import OutgoingFrames
from fedrdma_fate.security.identity import PeerIdentity
from fedrdma_fate.wire.errors import FedRDMAError

MOST_UNREAD_BYTES = 1024 * 1024
"""Of frames that have come and wait to be read; then no more is read from the connection: TCP holds the peer."""


class ControlStream:
    """Frames in order, both ways. Writing never waits; frames are queued until the connection takes them.

    Attributes:
        end_reason: why nothing more comes, where that is known, to follow what is said of the peer; else an empty
            string.
        failure: the error that ended it, where there was one.
        remote_host: address of the other end, where that is known.
        identity: who is there by its certificate, and both certificates; None without TLS.
        unread_bytes: of frames that have come and were not read yet.
        unsent_bytes: of frames that the connection has not taken yet.
        followed: whether a frame that is lost may be found out by what follows it (`follow_up.py`).
        known: whether the other end has greeted as a peer; before, it may send little and has little time.
    """

    def __init__(self) -> None:
        self.remote_host: str | None = None
        self.end_reason = ""
        self.failure: FedRDMAError | None = None
        self.identity: PeerIdentity | None = None
        self.known = self.followed = False
        self.on_known: Callable[[], None] = lambda: None
        self.on_room: Callable[[], None] = lambda: None
        self.on_closed: Callable[[], None] = lambda: None
        self.unread_bytes = self.unsent_bytes = 0
        self._full = False
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outgoing = OutgoingFrames()
        self._begun = False
        self._closed = False

    def write(self, frame: bytes) -> None:
        """Queue a frame; silently dropped once the stream is closed, as it would be on a broken one."""
        if not self._closed:
            self.unsent_bytes += len(frame)
            self._outgoing.put_nowait(frame)

    def write_first(self, frame: bytes) -> None:
        """As `write`, ahead of what waits, for what keeps no order with it; the greeting stays the first."""
        if not self._begun:
            self.write(frame)
        elif not self._closed:
            self.unsent_bytes += len(frame)
            self._outgoing.put_first(frame)

    def write_latest(self, frame: bytes) -> None:
        """As `write`, of a frame that says anew all that the one before it said: of those behind one that has not gone
        the latest is kept, so that they do not pile up for a peer that takes them more slowly than they are made."""
        if not self._closed:
            self.unsent_bytes += len(frame) - self._outgoing.put_latest(frame)

    async def read(self) -> bytes | None:
        """The next frame, or None when the stream has ended."""
        if self._closed and self._incoming.empty():
            return None
        frame = await self._incoming.get()
        if frame is not None:
            self.unread_bytes = max(0, self.unread_bytes - len(frame))
            if self._full and self.unread_bytes <= MOST_UNREAD_BYTES // 2:
                self._full = False
                self.on_room()
        return frame

    @property
    def full(self) -> bool:
        """Whether so much has come that is not read yet that nothing more is to be taken in until `on_room`."""
        return self._full

    def admit(self) -> None:
        """The other end has greeted as a peer: lift the limits of strangers, and take what it says next."""
        if not self.known:
            self.known = True
            self.on_known()

    def stop_reading(self, reason: str) -> None:
        """Let `read` say that the stream has ended, for a reason; what is queued for the peer still goes."""
        self.end_reason = reason
        self._incoming.put_nowait(None)

    def close(self) -> None:
        """Send what is queued, then end the stream. May be repeated."""
        if not self._closed:
            self._closed = True
            self._outgoing.put_nowait(None)
            self._incoming.put_nowait(None)
            self.on_closed()

    # -- for what carries the frames ------------------------------------------------------------------------------

    def take_in(self, frame: bytes) -> None:
        """A frame has come; dropped once the stream is closed."""
        if not self._closed:
            self.unread_bytes += len(frame)
            self._full = self.unread_bytes > MOST_UNREAD_BYTES
            self._incoming.put_nowait(frame)

    def fail(self, error: FedRDMAError) -> None:
        """Nothing more comes, because of this error; the first one counts."""
        if self.failure is None and not self._closed:
            self.failure = error
            self.stop_reading(f": {error}")

    async def outgoing(self) -> AsyncIterator[bytes]:
        """What is to be sent, until the stream is closed."""
        while (frame := await self._outgoing.get()) is not None:
            self.unsent_bytes -= len(frame)
            self._begun = True
            yield frame
