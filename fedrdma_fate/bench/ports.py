"""Ports for servers on loopback."""

from __future__ import annotations

import contextlib
import random
import socket

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
