"""Ports for servers on loopback."""

from __future__ import annotations

import contextlib
import random
import socket

import psutil

PORTS_TRIED = 3
"""Times that a server starts again at other ports: nobody is so unlucky four times."""
_BELOW_EPHEMERAL = range(20_000, 32_000)
"""The kernel gives none of these to an outgoing connection, which could take one between our look and its use."""


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on now."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().choice(_BELOW_EPHEMERAL)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


def is_taken(address: str, port: int) -> bool:
    """Whether somebody listens there, or has just stopped."""
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return True
    return False


def listens(pid: int, port: int) -> bool:
    """Whether it is this process that listens there; nobody who does is bothered with a connection."""
    return any(
        one.pid == pid and one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
        for one in psutil.net_connections("tcp")
    )
