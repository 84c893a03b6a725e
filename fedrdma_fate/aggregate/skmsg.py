"""Notices by SKMSG: a program in the kernel puts what the gateway writes into the socket of the worker it is for.

Each run of a worker has a connection of its own on loopback, both ends of which this process has made. Which of the
workers' ends a route leads to stands in a map, and so does how many notices went there.

SKMSG is for TCP: what is written to a unix socket does not pass through such a program. Two things about it are not as
of other sockets. What it drops, it tells the writer as "permission denied", and of that socket it drops everything from
then on; `RecordLine` gives a line up at the first error. And what waits for a reader has no bound; there is one notice
at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import socket
import struct
import time

from fedrdma_fate.aggregate.bpf import MAP_TYPE_ARRAY, MAP_TYPE_SOCKMAP, Kernel, routing_program
from fedrdma_fate.aggregate.notices import (
    NOTICE_BYTES,
    Line,
    Notices,
    OnTaken,
    RecordLine,
    SocketLine,
    SocketNotices,
)

logger = logging.getLogger(__name__)

ROUTES = 64
"""Workers at a time: as many as `aggregate.workers` may be."""

_SENDERS_AT = ROUTES
"""In the map of sockets, the first of those that write: no notice can be for them, for no counter has such a number."""

_SOCKET, _COUNTER = struct.Struct("=I"), struct.Struct("=Q")
"""What the two maps have for a route."""

_CONNECT_SECONDS = 0.5
"""For a connection on loopback, during which nothing else is done."""

_ACCEPT_BACKLOG = 16
"""Connections that may come to the port in between and are not ours."""

_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER = 47, 3
"""prctl(2): a capability that programs which are started from here on do not get."""

_CAPABILITIES = (12, 39)
"""CAP_NET_ADMIN and CAP_BPF (capabilities(7))."""

_TRIAL_SECONDS = 2.0
"""For a record to pass in a trial."""


class SkMsgNotices:
    """Belongs to the event loop's thread; others may ask how many have passed."""

    way = "skmsg"
    reason = ""

    def __init__(self, on_taken: OnTaken = lambda _way, _seconds: None, kernel: Kernel | None = None) -> None:
        """Make maps and program.

        Args:
            on_taken: see `OnTaken`.
            kernel: the calls of bpf(2).

        Raises:
            OSError: the kernel does not let this user, or does not know these things.
        """
        self._on_taken = on_taken
        self._kernel = Kernel() if kernel is None else kernel
        self._free = list(reversed(range(ROUTES)))
        self._descriptors: list[int] = []
        try:
            self._sockets = self._keep(self._kernel.make_map(MAP_TYPE_SOCKMAP, 4, 2 * ROUTES, "fedrdma_routes"))
            self._counters = self._keep(self._kernel.make_map(MAP_TYPE_ARRAY, 8, ROUTES, "fedrdma_counts"))
            program = self._keep(self._kernel.load(routing_program(self._sockets, self._counters)))
            self._kernel.attach(self._sockets, program)
        except OSError:
            self.close()
            raise

    def open(self) -> Line:
        """See `Notices`."""
        try:
            return self._open()
        except OSError as error:
            logger.warning("a worker is told of updates over its socket, not by SKMSG: %s", error)
            return SocketLine()

    def _open(self) -> Line:
        if not self._free:
            raise OSError(errno.ENOSPC, f"all {ROUTES} routes are taken")
        ours, its = _connection()
        route = self._free[-1]
        try:
            self._join(route, ours, its)
        except OSError:
            self._forget(route)
            ours.close()
            its.close()
            raise
        self._free.pop()
        return RecordLine(self.way, ours, its, route, lambda: self._give_back(route))

    def _join(self, route: int, ours: socket.socket, its: socket.socket) -> None:
        # a notice passes through the program only when both are in
        self._kernel.put(self._sockets, route, _SOCKET.pack(its.fileno()))
        self._kernel.put(self._sockets, _SENDERS_AT + route, _SOCKET.pack(ours.fileno()))

    def _give_back(self, route: int) -> None:
        self._forget(route)
        self._free.append(route)

    def _forget(self, route: int) -> None:
        # sockets that were closed have left the map by themselves
        for key in (route, _SENDERS_AT + route):
            with contextlib.suppress(OSError):
                if self._descriptors:
                    self._kernel.drop(self._sockets, key)

    def taken(self, way: str, seconds: float) -> None:
        """See `Notices`."""
        self._on_taken(way, seconds)

    def passed(self) -> int:
        """See `Notices`."""
        with contextlib.suppress(OSError):
            if self._descriptors:
                counts = (self._kernel.get(self._counters, route, _COUNTER.size) for route in range(ROUTES))
                return sum(int(_COUNTER.unpack(count)[0]) for count in counts)
        return 0

    def close(self) -> None:
        """See `Notices`."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor


def make_notices(wish: str, on_taken: OnTaken = lambda _way, _seconds: None) -> Notices:
    """The way for notices that was asked for, or the socket, and then `reason` says why.

    Args:
        wish: `auto`, `socket` or `skmsg`, as `aggregate.notices`.
        on_taken: see `OnTaken`.
    """
    if wish != "skmsg":
        return SocketNotices(on_taken)
    try:
        return SkMsgNotices(on_taken)
    except OSError as error:
        reason = why_not(error)
        logger.warning("workers are told of updates over their sockets, not by SKMSG: %s", reason)
        return SocketNotices(on_taken, reason)
    finally:
        _keep_capabilities_here()


def _keep_capabilities_here() -> None:
    """What a unit gives the gateway for this is not for its workers, which need nothing of it."""
    prctl = ctypes.CDLL(None).prctl
    for capability in _CAPABILITIES:
        # an error: it has none to lower
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, capability, 0, 0)


def why_not(error: OSError) -> str:
    """Why there is no SKMSG, for people."""
    match error.errno:
        case errno.EPERM:
            return f"{error.strerror}: it takes CAP_BPF and CAP_NET_ADMIN"
        case errno.ENOSYS:
            return f"{error.strerror}: this kernel has no bpf(2), or this processor is not known"
        case errno.EINVAL:
            return f"{error.strerror}: this kernel is too old for it, or made without it"
        case _:
            return str(error.strerror or error)


def try_skmsg() -> str:
    """Have one record passed on by the kernel; why it cannot be, or an empty text. Nothing is left of it."""
    try:
        notices = SkMsgNotices()
    except OSError as error:
        return why_not(error)
    try:
        return _trial(notices)
    except OSError as error:
        return why_not(error)
    finally:
        notices.close()


def _trial(notices: SkMsgNotices) -> str:
    ours, its = _connection()
    with ours, its:
        notices._join(0, ours, its)
        ours.send(bytes(NOTICE_BYTES))
        its.settimeout(_TRIAL_SECONDS)
        its.recv(NOTICE_BYTES)
        return "" if notices.passed() == 1 else "a record has not passed through the program"


def _connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection on loopback; whoever else connects meanwhile is not taken for ours.

    Raises:
        OSError: there is none.
    """
    deadline = time.monotonic() + _CONNECT_SECONDS
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(_ACCEPT_BACKLOG)
        ours = socket.create_connection(listener.getsockname(), _CONNECT_SECONDS)
        try:
            # who connects all the time would be asked for their addresses all the time
            while (left := deadline - time.monotonic()) > 0:
                listener.settimeout(left)
                its, address = listener.accept()
                if address == ours.getsockname():
                    its.setblocking(True)
                    return ours, its
                its.close()
            raise TimeoutError(errno.ETIMEDOUT, "others connect to the port in its stead")
        except BaseException:
            ours.close()
            raise
