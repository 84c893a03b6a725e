"""A pair of UDP sockets on loopback: batches of datagrams out, one slice copy a datagram in, and simple flow control.

What transport `udp` is beside: the kernel's work and the least of Python's, without a header, a seal or a rate.
Loopback loses nothing while the receiver's buffer has room, and the sender keeps to that: what is measured came whole.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedrdma_fate.bench.baselines.interface import RowError, Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec
from fedrdma_fate.transport.udp.socket_options import UDP_GRO, UDP_SEGMENT, ask_for_buffer

DATAGRAM_BYTES = 1448
"""With the headers of IP and UDP no longer than what every path of an MTU of 1,500 carries."""

_BATCH_BYTES = 44 * DATAGRAM_BYTES
"""In one call: `UDP_SEGMENT` takes 64 datagrams, and 64 KiB, at most (linux/udp.h)."""

_BUFFER_BYTES = 16 * 1024 * 1024
"""Asked for at the receiver: 10 ms at 10 Gbit/s, in which a busy machine may do something else."""

_WINDOW_FRACTION = 4
"""Of the buffer on its way: the kernel counts what datagrams take in memory, which is twice their bytes and less."""

_LEAST_BUFFER_BYTES = 2 * _WINDOW_FRACTION * _BATCH_BYTES
"""Two batches in a window, so that one is under way while the other is answered."""

_ANSWERS = 8
"""In a window, so that the sender need not stand still for one."""

_RECEIVED = struct.Struct("!Q")
_SILENCE_SECONDS = 10.0
"""Without a datagram: one was lost, which flow control should have kept from happening."""


class RawUdpSender:
    """Sends the payload's one buffer in batches, a window ahead of what has been received."""

    def __init__(self, port: int, window_bytes: int) -> None:
        self._window = window_bytes
        self._socket = _socket()
        self._socket.connect(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, DATAGRAM_BYTES)
        # so that the receiver knows whom to answer
        self._socket.send(b"")

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Returns when the kernel has taken the last byte.

        Raises:
            RowError: a datagram was lost.
        """
        del iteration
        data = payload.flat.data.cast("B")
        sent = received = 0
        while sent < len(data):
            while sent - received > self._window - _BATCH_BYTES:
                received = max(received, self._received())
            sent += self._socket.send(data[sent : sent + _BATCH_BYTES])
        while received < len(data):
            # nothing of this one is left for the next
            received = max(received, self._received())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _received(self) -> int:
        try:
            return int(_RECEIVED.unpack(self._socket.recv(_RECEIVED.size))[0])
        except TimeoutError as error:
            raise _lost() from error


class RawUdpReceiver:
    """Receives into one buffer, again and again: each datagram is copied to its place."""

    def __init__(self, receiving: socket.socket, largest_bytes: int, window_bytes: int) -> None:
        self._window = window_bytes
        # filled, not just allocated: otherwise receiving would pay for the page faults
        self._buffer = np.full(largest_bytes, 0xFF, np.uint8)
        self._socket = receiving
        self._batch = bytearray(64 * 1024)
        # which does not come along into this process
        receiving.settimeout(_SILENCE_SECONDS)
        sender = receiving.recvfrom(1)[1]
        receiving.connect(sender)

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """Read until everything is there.

        Raises:
            RowError: a datagram was lost.
        """
        del iteration
        target, batch = self._buffer.data.cast("B"), memoryview(self._batch)
        at = told = 0
        while at < spec.total_bytes:
            try:
                length = self._socket.recvmsg_into([batch], socket.CMSG_SPACE(4))[0]
            except TimeoutError as error:
                raise _lost() from error
            for start in range(0, length, DATAGRAM_BYTES):
                part = min(DATAGRAM_BYTES, length - start)
                target[at : at + part] = batch[start : start + part]
                at += part
            if at - told >= self._window // _ANSWERS or at == spec.total_bytes:
                self._socket.send(_RECEIVED.pack(at))
                told = at
        return spec.arrays_in(self._buffer)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class RawUdp:
    """See the module."""

    name = "raw-udp"
    schedule = Schedule()

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`.

        Raises:
            RowError: the kernel gives no buffer that holds the window, or does not take batches.
        """
        del workspace
        with _socket() as receiving:
            receiving.bind(("127.0.0.1", 0))
            try:
                receiving.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            except OSError as error:
                raise RowError(f"the kernel takes no batches of datagrams (UDP_GRO): {error.strerror}") from error
            given = receiving.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            if given < _LEAST_BUFFER_BYTES:
                raise RowError(
                    f"the kernel gives a buffer of {given} bytes: sysctl -w net.core.rmem_max={_BUFFER_BYTES}"
                )
            window = given // _WINDOW_FRACTION
            yield Service(
                functools.partial(RawUdpSender, receiving.getsockname()[1], window),
                functools.partial(RawUdpReceiver, receiving, largest_bytes, window),
            )


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(_SILENCE_SECONDS)
    ask_for_buffer(made, socket.SO_RCVBUF, _BUFFER_BYTES)
    return made


def _lost() -> RowError:
    return RowError(f"nothing came for {_SILENCE_SECONDS:g} s: a datagram was lost")
