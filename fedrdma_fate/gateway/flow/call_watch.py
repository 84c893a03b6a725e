"""Watches calls of gRPC without a turn of the event loop for each: those that take too long end, and so do connections
without a call where there are too many, for grpcio has no limit of its own for them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import resource
import socket
import stat
import threading
from collections.abc import Callable, Iterator

import grpc

from fedrdma_fate.obs.complaints import Complaints

logger = logging.getLogger(__name__)

CALL_LOOK_SECONDS = 1.0
"""By so much later a call may end, where limits are a minute and more; as long too many connections may live."""

MOST_CONNECTIONS = 2048
"""Twice the calls at once: FATE makes a connection for each call, and some wait for theirs. A quarter of the
descriptors that the gateway may have, where that is less."""

_DESCRIPTORS = "/proc/self/fd"


class CallWatch:
    """`began` and `within` are for threads of grpcio's; the rest belongs to the event loop's."""

    def __init__(self, complaints: Complaints, key: str = "listen.osx") -> None:
        """In the event loop's thread.

        Args:
            complaints: about connections that are ended.
            key: of the configuration, where the port is from.
        """
        self._key = key
        self._complaints = complaints
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._ends: dict[grpc.ServicerContext, float] = {}
        self._callers: collections.Counter[int] = collections.Counter()
        self._port = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None

    def start(self, port: int) -> None:
        """Watch, from now on, what comes to this port."""
        self._port = port
        self._timer = self._loop.call_later(CALL_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """There are no calls any more; may be repeated."""
        if self._timer is not None:
            self._timer.cancel()

    def began(self, context: grpc.ServicerContext) -> bool:
        """A call has begun: its connection is not ended. False where it is over already."""
        caller = _port_of(context.peer())
        with self._lock:
            self._callers[caller] += 1

        def over() -> None:
            with self._lock:
                self._callers[caller] -= 1
                if not self._callers[caller]:
                    del self._callers[caller]

        if is_there := context.add_callback(over):
            return is_there
        over()
        return False

    @contextlib.contextmanager
    def within(self, context: grpc.ServicerContext, seconds: float) -> Iterator[Callable[[], bool]]:
        """The call ends when this takes longer, and what comes back says so. One call has one such limit at a time."""
        end = self._loop.time() + seconds
        with self._lock:
            self._ends[context] = end
        try:
            yield lambda: self._loop.time() >= end
        finally:
            with self._lock:
                del self._ends[context]

    def _look(self) -> None:
        self._timer = self._loop.call_later(CALL_LOOK_SECONDS, self._look)
        now = self._loop.time()
        with self._lock:
            over = [context for context, end in self._ends.items() if end <= now]
        for context in over:
            context.cancel()
        if self._ending is None or self._ending.done():
            # a look at thousands of descriptors takes some 30 ms
            self._ending = self._loop.run_in_executor(None, self._end_connections)

    def _end_connections(self) -> None:
        """In a thread: those without a call, beyond the limit."""
        most = min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        try:
            descriptors = os.listdir(_DESCRIPTORS)
        except OSError:
            # there is none left to look with: the next look may have one
            return
        if len(descriptors) <= most:
            return
        with self._lock:
            callers = set(self._callers)
        connections, ended = 0, 0
        for descriptor in descriptors:
            with _connection(int(descriptor), self._port) as connection:
                connections += connection is not None
                if connection is None or connections <= most or _peer_port(connection) in callers:
                    continue
                with contextlib.suppress(OSError):
                    # grpcio, whose it is, finds it at its end
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        if ended:
            told = "ended %s connections to %s that had no call: %s is the limit"
            self._complaints.add(logger, "too many connections", self._key, told, ended, self._key, most)


@contextlib.contextmanager
def _connection(descriptor: int, port: int) -> Iterator[socket.socket | None]:
    """A copy of a descriptor that is a connection accepted at this port; None of another, or one that is closed now."""
    with contextlib.ExitStack() as stack:
        try:
            copy = os.dup(descriptor)
            stack.callback(os.close, copy)
            found = socket.socket(fileno=copy) if stat.S_ISSOCK(os.fstat(copy).st_mode) else None
            if found is not None:
                # it is closed by its number
                stack.callback(found.detach)
                is_there = found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port
                found = found if is_there and found.getpeername() else None
        except OSError:
            found = None
        yield found


def _port_of(peer: str) -> int:
    """Of a name as grpcio has it, as `ipv4:127.0.0.1:40000`."""
    number = peer.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def _peer_port(connection: socket.socket) -> int:
    """0 where it is gone."""
    try:
        return int(connection.getpeername()[1])
    except OSError:
        return 0
