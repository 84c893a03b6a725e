"""How full queues get: asked of the kernel again and again while programs run, for it keeps no peak itself."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from deploy.softroce.netlink import error_of, root_queue_request

SHARE_OF_BUFFER = 0.1
SHORTEST_SECONDS = 0.000_1
LONGEST_SECONDS = 0.002
IDLE_SAMPLES = 200
"""Looks without a backlog after which only a packet starts the next: looking costs time where time is virtual."""
IDLE_SECONDS = 0.1
"""How late the end is noticed while no packet comes."""
WINDOW_SECONDS = 0.05

_ETH_P_ALL = 3
"""Packets of all protocols, those that leave, too."""
_RTM_GETQDISC = 38
_REQUEST_ECHO = 0x1 | 0x8
"""Without the second flag the kernel tells it to those who listen to all changes, and not to us."""
_ATTRIBUTES_AT = 16 + 20
_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3
_MESSAGE_BYTES = 8192
_ATTRIBUTE = struct.Struct("=HH")
_QUEUE_LENGTH_AND_BACKLOG = struct.Struct("=II")


def sampling_seconds(rate_bps: int, buffer_bytes: int) -> float:
    """How often to look at a queue that drains at this rate.

    Between two looks a queue falls by no more than its rate allows, so the highest backlog seen is below the true one
    by less than that: here a tenth of the buffer, within bounds.
    """
    seconds = SHARE_OF_BUFFER * buffer_bytes * 8 / rate_bps
    return min(max(seconds, SHORTEST_SECONDS), LONGEST_SECONDS)


def backlog_request(ifindex: int) -> bytes:
    """The netlink message that asks for the queue at the root of an interface, with its counters."""
    return root_queue_request(_RTM_GETQDISC, _REQUEST_ECHO, ifindex)


def backlog_of(answer: bytes) -> int:
    """Bytes in the queue, by the kernel's answer.

    Raises:
        OSError: the kernel refused, or says nothing of a backlog.
    """
    if (error := error_of(answer)) is not None:
        raise OSError(error, "the kernel does not tell a queue's backlog")
    for attribute, at, end in _attributes(answer, _ATTRIBUTES_AT, len(answer)):
        if attribute == _TCA_STATS2:
            for part, begin, _ in _attributes(answer, at, end):
                if part == _TCA_STATS_QUEUE:
                    return int(_QUEUE_LENGTH_AND_BACKLOG.unpack_from(answer, begin)[1])
    raise OSError("the kernel's answer holds no backlog")


def _attributes(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    while at + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        yield kind & 0x3FFF, at + _ATTRIBUTE.size, at + length
        at += max(_ATTRIBUTE.size, length + 3 & ~3)


Peaks = list[tuple[float, int]]
"""When a window of time ended, by the monotonic clock, and the highest backlog seen in it; windows without one are left
out."""


class QueueWatch:
    """The highest backlogs seen at the root queues of some interfaces of this network namespace."""

    def __init__(self, netdevs: Sequence[str], seconds: float) -> None:
        """Watch these, looking every so many seconds."""
        self._requests = {netdev: backlog_request(socket.if_nametoindex(netdev)) for netdev in netdevs}
        self._peaks: dict[str, dict[int, int]] = {netdev: {} for netdev in netdevs}
        self._seconds = seconds
        self._over = threading.Event()

    @property
    def peaks(self) -> Mapping[str, Peaks]:
        """By interface."""
        return {
            netdev: [((window + 1) * WINDOW_SECONDS, size) for window, size in sorted(seen.items())]
            for netdev, seen in self._peaks.items()
        }

    def run(self) -> None:
        """Look until stopped; not while nothing has been queued for some time and no packet comes.

        Raises:
            OSError: the kernel refused.
        """
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
            while not self._over.is_set():
                self._look_until_idle(netlink)
                self._wait_for_packet()

    def stop(self) -> None:
        """End `run`."""
        self._over.set()

    def _look_until_idle(self, netlink: socket.socket) -> None:
        idle = 0
        while idle < IDLE_SAMPLES and not self._over.wait(self._seconds):
            idle = 0 if self._look(netlink) else idle + 1

    def _wait_for_packet(self) -> None:
        """Until any interface of the namespace has sent or received one; what is queued is sent, so none is missed."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as packets:
            while not self._over.is_set() and not select.select([packets], [], [], IDLE_SECONDS)[0]:
                pass

    def _look(self, netlink: socket.socket) -> bool:
        """Whether anything is queued now."""
        queued, window = False, int(time.monotonic() / WINDOW_SECONDS)
        for netdev, request in self._requests.items():
            netlink.send(request)
            # the answer is there when the question has been taken; one that is not would never come
            backlog = backlog_of(netlink.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT))
            if backlog:
                queued, seen = True, self._peaks[netdev]
                seen[window] = max(seen.get(window, 0), backlog)
        return queued


@contextlib.contextmanager
def watched(netdevs: Sequence[str], seconds: float | None) -> Iterator[QueueWatch | None]:
    """Watch queues meanwhile; what was seen is to be read afterwards.

    Args:
        seconds: between two looks; None: nothing is watched.

    Raises:
        OSError: the kernel refused.
    """
    if seconds is None:
        yield None
        return
    watch = QueueWatch(netdevs, seconds)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch.run)
        try:
            yield watch
        finally:
            watch.stop()
    watching.result()
