"""Payloads from host 0 to host 1 over parallel TCP connections, by plain sockets. Prints JSON.

    scripts/testbed run --virtual-time --rate 1gbit --rtt 20ms -- \
        .venv/bin/python -m deploy.softroce.programs.tcp_streams cubic 8 64000000 3
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.softroce.programs.control import Control, control_connection, this_host
from deploy.softroce.programs.counters import read_counters
from deploy.softroce.programs.pauses import pause_before

PORT = 7482
BLOCK_BYTES = 2**20
LEAST_BUFFER_BYTES = 16 * 2**20
DEFAULT_RATE_BPS = 10e9
WHOLE = b"!"


def enlarge_buffers() -> None:
    """Let a connection of this host have four bandwidth-delay products under way: the link is the limit, not Linux."""
    rate = float(os.environ["TESTBED_RATE"] or DEFAULT_RATE_BPS)
    most = max(LEAST_BUFFER_BYTES, int(4 * rate / 8 * float(os.environ["TESTBED_RTT"])))
    for name in ("tcp_rmem", "tcp_wmem"):
        Path("/proc/sys/net/ipv4", name).write_text(f"4096 131072 {most}")


def choose(connection: socket.socket, congestion: str) -> None:
    """Set the congestion control.

    Raises:
        SystemExit: the kernel has none of this name.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
    except OSError as error:
        there = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().strip()
        raise SystemExit(f"the guest's kernel has no TCP {congestion}, only: {there}") from error


def shares(size: int, streams: int) -> list[int]:
    """What each connection carries."""
    return [size // streams + (number < size % streams) for number in range(streams)]


def send(connection: socket.socket, size: int) -> None:
    """Send so many bytes, and wait until host 1 has them.

    Raises:
        SystemExit: the connection broke.
    """
    block = memoryview(bytes(BLOCK_BYTES))
    for at in range(0, size, BLOCK_BYTES):
        connection.sendall(block[: size - at])
    if connection.recv(1) != WHOLE:
        raise SystemExit("host 1 hung up")


def receive(connection: socket.socket, size: int) -> None:
    """Take so many bytes, and say so.

    Raises:
        SystemExit: the connection broke.
    """
    block = memoryview(bytearray(BLOCK_BYTES))
    left = size
    while left:
        taken = connection.recv_into(block[:left])
        # at the end of a connection recv returns at once, for ever, and time stands still
        if not taken:
            raise SystemExit("host 0 hung up")
        left -= taken
    connection.sendall(WHOLE)


def run(connections: Sequence[socket.socket], size: int, count: int) -> list[dict[str, object]]:
    """Both hosts' parts."""
    step = receive if this_host() else send
    taken: list[dict[str, object]] = []
    with ThreadPoolExecutor(len(connections)) as pool:
        for number in range(count):
            if this_host() == 0:
                pause_before(number)
            before, begun = read_counters(), time.monotonic()
            list(pool.map(step, connections, shares(size, len(connections))))
            seconds = time.monotonic() - begun
            taken.append({"begun": begun, "seconds": seconds, **dataclasses.asdict(read_counters().since(before))})
    return taken


def connect(control: Control, congestion: str, streams: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """The connections, one of host 0's to one of host 1's."""
    address = os.environ["TESTBED_HOSTS"].split(",")[1], PORT
    if this_host():
        server = stack.enter_context(socket.create_server(address, backlog=streams))
        control.exchange("listening")
        return [stack.enter_context(server.accept()[0]) for _ in range(streams)]
    control.exchange("listening")
    connections = []
    for _ in range(streams):
        connection = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        choose(connection, congestion)
        connection.connect(address)
        connections.append(connection)
    return connections


def main() -> None:
    """Run this host's part."""
    congestion, streams, size, count = sys.argv[1], *map(int, sys.argv[2:5])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        choose(trial, congestion)
    enlarge_buffers()
    with control_connection() as control, contextlib.ExitStack() as stack:
        connections = connect(control, congestion, streams, stack)
        taken = run(connections, size, count)
        control.exchange("done")
    if this_host() == 0:
        print(json.dumps(taken))


if __name__ == "__main__":
    main()
