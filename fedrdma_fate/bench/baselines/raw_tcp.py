"""One TCP connection on loopback: sendall from the payload, recv_into a warm buffer, socket options as they come."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedrdma_fate.bench.baselines.interface import Schedule, Service
from fedrdma_fate.bench.payload import Array, PayloadArrays, PayloadSpec


class RawTcpSender:
    """Sends the payload's one buffer with one `sendall`."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))

    def put(self, iteration: int, payload: PayloadArrays) -> None:
        """Returns when the kernel has taken the last byte."""
        del iteration
        self._connection.sendall(payload.flat.data)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class RawTcpReceiver:
    """Receives into one buffer, again and again."""

    def __init__(self, listener: socket.socket, largest_bytes: int) -> None:
        # filled, not just allocated: otherwise receiving would pay for the page faults
        self._buffer = np.full(largest_bytes, 0xFF, np.uint8)
        self._connection, _ = listener.accept()
        listener.close()

    def get(self, iteration: int, spec: PayloadSpec) -> Sequence[Array]:
        """Read until everything is there.

        Raises:
            EOFError: the sender closed the connection before.
        """
        del iteration
        rest = self._buffer.data[: spec.total_bytes]
        while rest:
            received = self._connection.recv_into(rest)
            if not received:
                raise EOFError(f"the connection ended {len(rest)} bytes early")
            rest = rest[received:]
        return spec.arrays_in(self._buffer)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class RawTcp:
    """See the module."""

    name = "raw-tcp"
    schedule = Schedule()

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        """See `Baseline.start`."""
        del workspace
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            yield Service(
                functools.partial(RawTcpSender, port),
                functools.partial(RawTcpReceiver, listener, largest_bytes),
            )
