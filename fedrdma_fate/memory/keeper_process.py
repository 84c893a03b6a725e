"""The program of a keeper: it holds descriptors of a gateway's memory while no gateway runs. See `keeper.py`.

It imports nothing of the project, so that it is small, starts soon, and cannot fail for what a gateway fails for.

Arguments: descriptor of the connection to its gateway; of the socket that the next gateway connects to; seconds to wait
for one; then `label=descriptor` for each that it holds.
"""

import json
import os
import select
import socket
import struct
import sys
import time

VERSION = 1
CREDENTIALS = struct.Struct("3i")
"""struct ucred of Linux: process, user, group (unix(7), SO_PEERCRED)."""

MOST_COMMAND_BYTES = 64
"""Of what a gateway says: a word."""


def main(arguments: "list[str]") -> None:
    gateway: socket.socket | None = socket.socket(fileno=int(arguments[0]))
    listener = socket.socket(fileno=int(arguments[1]))
    seconds = float(arguments[2])
    held = {label: int(descriptor) for label, _, descriptor in (each.partition("=") for each in arguments[3:])}
    os.chdir("/")
    alone_since = 0.0
    while True:
        left = None if gateway is not None else alone_since + seconds - time.monotonic()
        if left is not None and left <= 0:
            return
        # a gateway with many connections has descriptors that select() does not know
        poll = select.poll()
        poll.register(listener if gateway is None else gateway, select.POLLIN)
        if not poll.poll(None if left is None else left * 1000):
            continue
        if gateway is None:
            gateway = _take_over(listener, held)
            continue
        try:
            said = gateway.recv(MOST_COMMAND_BYTES)
        except OSError:
            said = b""
        if said == b"end":
            return
        if not said:
            gateway.close()
            gateway, alone_since = None, time.monotonic()


def _take_over(listener: socket.socket, held: "dict[str, int]") -> "socket.socket | None":
    """Hand everything to the gateway that has connected, if it is of our user."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    user = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[1]
    if user != os.geteuid():
        connection.close()
        return None
    greeting = json.dumps({"version": VERSION, "held": list(held)}).encode()
    try:
        socket.send_fds(connection, [greeting], list(held.values()))
    except OSError:
        connection.close()
        return None
    return connection


if __name__ == "__main__":
    main(sys.argv[1:])
