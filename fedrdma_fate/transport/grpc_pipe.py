"""A stream of messages between a `grpc` endpoint's thread, which never blocks, and grpcio's threads, which do."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import grpc

QUEUED_MESSAGES = 4
"""Messages that may wait in each direction: all the memory a link takes, beside grpcio's own."""


class MessagePipe:
    """Two bounded queues and a descriptor that is readable when the endpoint has something to do."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outgoing: deque[bytes] = deque()
        self._incoming: deque[bytes] = deque()
        self._finished = False
        self._ended: str | None = None
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._cancel: Callable[[], object] = lambda: None
        self._reader: threading.Thread | None = None

    # -- the endpoint's thread ------------------------------------------------------------------------------------

    def start(self, incoming: Iterable[bytes], cancel: Callable[[], object]) -> None:
        """Begin to read the call's messages; `cancel` ends the call."""
        self._cancel = cancel
        self._reader = threading.Thread(target=self._read, args=(incoming,), name="grpc-data-reader", daemon=True)
        self._reader.start()

    def fileno(self) -> int:
        """Readable when messages came, when there is room again, and when the call has ended."""
        return self._signal

    def has_room(self) -> bool:
        """Whether `put` would take a message."""
        return len(self._outgoing) < QUEUED_MESSAGES

    def put(self, message: bytes) -> None:
        """Queue a message to be sent."""
        with self._changed:
            self._outgoing.append(message)
            self._changed.notify_all()

    def take(self) -> bytes | None:
        """The next message that came, if there is one."""
        with self._changed:
            if not self._incoming:
                return None
            message = self._incoming.popleft()
            self._changed.notify_all()
            return message

    def wait(self, timeout: float) -> bytes | None:
        """The next message, or None when none comes in time or the call ends."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._incoming) or self._ended is not None, timeout)
        return self.take()

    def clear_signal(self) -> None:
        """Make the descriptor unreadable until something happens again."""
        try:
            os.eventfd_read(self._signal)
        except BlockingIOError:
            return

    @property
    def ended(self) -> str | None:
        """Why the call is over, or None; messages that came before may still be there to take."""
        return self._ended

    def finish(self) -> None:
        """Send what is queued, and then end our half of the call."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def close(self, linger: float) -> None:
        """Finish, give the peer `linger` seconds to do so too, end the call, and wait for the reader."""
        self.finish()
        reader = self._reader
        if reader is not None:
            reader.join(linger)
            self._cancel()
            self.end("it was closed here")
            reader.join()
        # they hold the call, and so its sockets, which must not stay open until a cycle is collected
        self._cancel, self._reader = lambda: None, None
        with self._changed:
            os.close(self._signal)
            self._signal = -1

    # -- grpcio's threads -----------------------------------------------------------------------------------------

    def outgoing(self) -> Iterator[bytes]:
        """The messages to send, as the call wants them: waits for each, ends with the pipe."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outgoing or self._finished or self._ended is not None)
                if not self._outgoing:
                    return
                message = self._outgoing.popleft()
                self._notify_endpoint()
            yield message

    def end(self, reason: str) -> None:
        """Nothing more comes; the first reason stands."""
        with self._changed:
            if self._ended is None:
                self._ended = reason
            # the peer may have said its last word while ours, such as why the link is lost, still waits to be sent
            if not self._finished:
                self._outgoing.clear()
            self._notify_endpoint()
            self._changed.notify_all()

    def _read(self, incoming: Iterable[bytes]) -> None:
        reason = "the peer closed the connection"
        try:
            for message in incoming:
                if not self._deliver(message):
                    break
        except grpc.RpcError as error:
            # on the client side the error is the call, and has details
            details = getattr(error, "details", None)
            reason = (details() if callable(details) else None) or "the peer is gone"
            # grpcio's call keeps the error, and the error these frames, which hold the call, and so its socket
            error.__traceback__ = None
        self.end(reason)

    def _deliver(self, message: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._incoming) < QUEUED_MESSAGES or self._finished or self._ended is not None
            )
            if self._ended is not None:
                return False
            # once finished, the rest is read only so that the call can end in order
            if not self._finished:
                self._incoming.append(message)
                self._notify_endpoint()
                self._changed.notify_all()
            return True

    def _notify_endpoint(self) -> None:
        if self._signal >= 0:
            os.eventfd_write(self._signal, 1)
