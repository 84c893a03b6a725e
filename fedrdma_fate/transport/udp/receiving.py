"""Takes datagrams from a UDP socket, many at a time where the kernel has put them together."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from fedrdma_fate.transport.udp.socket_options import UDP_GRO

_BATCH_BYTES = 65536
"""Most that one `recvmsg` returns: the kernel puts no more together than fits an IP packet."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(4)
"""Room for the length of the datagrams of a batch."""
_SEGMENT = struct.Struct("=i")


class DatagramReceiver:
    """Reads into one buffer over and over."""

    def __init__(self, udp: socket.socket) -> None:
        self._udp = udp
        self._buffer = memoryview(bytearray(_BATCH_BYTES))
        self._into = (self._buffer,)

    def batch(self) -> Iterator[memoryview]:
        """The datagrams of one batch, each good until the next is asked for.

        Raises:
            BlockingIOError: there are none now.
            OSError: the socket is broken, or the peer's host says that nobody listens.
        """
        view, size = self.read()
        for start in range(0, len(view), size):
            yield view[start : start + size]

    def read(self) -> tuple[memoryview, int]:
        """One batch, good until the next is asked for, and the bytes of each datagram in it, but for the last.

        Raises:
            BlockingIOError: there are none now.
            OSError: the socket is broken, or the peer's host says that nobody listens.
        """
        received, ancillary, _, _ = self._udp.recvmsg_into(self._into, _ANCILLARY_BYTES)
        size = received
        for level, kind, data in ancillary:
            if level == socket.IPPROTO_UDP and kind == UDP_GRO and len(data) >= _SEGMENT.size:
                size = _SEGMENT.unpack_from(data)[0]
        return self._buffer[:received], size or 1
