"""TCP flows that come and go: a host beside those of the programs sends to host 1. Runs for as long as they do.

    cross_traffic.py take ADDRESS BUFFER
    cross_traffic.py send ADDRESS FLOWS ON OFF BUFFER

Each flow is a CUBIC connection that is opened anew, sends for ON seconds what it can, and is reset; OFF seconds later
the next one follows. A flow begins a share of ON, one of as many as there are flows, after the one before it. Buffers
of the sockets are set one by one: what the programs' own connections of host 1 may take is left as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
import sys
import threading
import time

from deploy.softroce.programs.tcp_streams import choose

PORT = 7483
BLOCK_BYTES = 2**18
LARGEST_BUFFER_BYTES = 2**30 - 1
"""Of a socket: the kernel doubles it, and counts in 31 bits."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
"""Beyond the host's own limits, as its administrator may (socket(7)); Python has no names for them."""
_RESET_AT_ONCE = struct.pack("ii", 1, 0)
_BACKLOG = 64


def elapsed() -> float:
    """Seconds since the programs were started."""
    return time.monotonic() - float(os.environ["TESTBED_BEGAN"])


def take(address: str, buffer_bytes: int) -> None:
    """Receive whatever flows bring."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # before it listens, for the window's scale is told with the first packet
        server.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, PORT))
        server.listen(_BACKLOG)
        while True:
            threading.Thread(target=_take_one, args=(server.accept()[0],), daemon=True).start()


def _take_one(connection: socket.socket) -> None:
    block = bytearray(BLOCK_BYTES)
    # it ends with a reset
    with connection, contextlib.suppress(OSError):
        while connection.recv_into(block):
            pass


def send(peer: str, start: float, on_seconds: float, off_seconds: float, buffer_bytes: int) -> None:
    """One flow, from its start on, connection by connection."""
    for number in itertools.count():
        begin = start + number * (on_seconds + off_seconds)
        time.sleep(max(0.0, begin - elapsed()))
        # what cannot connect, or is not taken in time, is over with its time
        with contextlib.suppress(OSError):
            _send_one(peer, begin + on_seconds, buffer_bytes)


def _send_one(peer: str, until: float, buffer_bytes: int) -> None:
    block = bytes(BLOCK_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        choose(connection, "cubic")
        connection.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, buffer_bytes)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
        connection.settimeout(max(0.001, until - elapsed()))
        connection.connect((peer, PORT))
        while (left := until - elapsed()) > 0:
            connection.settimeout(left)
            connection.send(block)


def main() -> None:
    """Run this end's part, until it is killed."""
    part, address, *numbers = sys.argv[1:]
    buffer_bytes = min(int(numbers[-1]), LARGEST_BUFFER_BYTES)
    if part == "take":
        take(address, buffer_bytes)
    flows, on_seconds, off_seconds = int(numbers[0]), float(numbers[1]), float(numbers[2])
    threads = [
        threading.Thread(
            target=send, args=(address, number * on_seconds / flows, on_seconds, off_seconds, buffer_bytes)
        )
        for number in range(flows)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
