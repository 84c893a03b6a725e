"""UDP sockets as transport `udp` uses them: room for bursts, and whether the kernel cuts and joins datagrams."""

from __future__ import annotations

import contextlib
import dataclasses
import socket

from fedrdma_fate.doctor.findings import Finding, fine
from fedrdma_fate.doctor.host import size_text
from fedrdma_fate.transport.udp.socket_options import (
    BUFFER_BYTES,
    UDP_GRO,
    UDP_SEGMENT,
    given_buffer_bytes,
    prepare,
)

_TRIAL_BYTES = 1252
"""Any length that a datagram may have."""


@dataclasses.dataclass(frozen=True, slots=True)
class UdpSockets:
    """What this user's UDP sockets get.

    Attributes:
        receive_bytes: of the receive buffer that was asked for.
        send_bytes: of the send buffer.
        cuts: whether the kernel cuts what is sent into datagrams (UDP_SEGMENT, Linux 4.18).
        joins: whether it joins those that come (UDP_GRO, Linux 5.0).
    """

    receive_bytes: int
    send_bytes: int
    cuts: bool
    joins: bool


def look_at_udp() -> UdpSockets:
    """Make a socket as the transport does; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        prepare(udp)
        received, sent = (given_buffer_bytes(udp, option) for option in (socket.SO_RCVBUF, socket.SO_SNDBUF))
        return UdpSockets(received, sent, _takes(udp, UDP_SEGMENT, _TRIAL_BYTES), _takes(udp, UDP_GRO, 1))


def check_udp(sockets: UdpSockets, *, used: bool) -> Finding:
    """Whether bursts fit the buffers, and datagrams go many at a time.

    Args:
        sockets: what this user gets.
        used: whether the configuration has transport `udp`.
    """
    check = "udp"
    found = f"buffers: {size_text(sockets.receive_bytes)} to receive, {size_text(sockets.send_bytes)} to send"
    if not used:
        return fine(check, f"{found}; transport udp is not used here")
    short = {
        "net.core.rmem_max": sockets.receive_bytes < BUFFER_BYTES,
        "net.core.wmem_max": sockets.send_bytes < BUFFER_BYTES,
    }
    if any(short.values()):
        settings = " ".join(f"{name}={BUFFER_BYTES}" for name, is_short in short.items() if is_short)
        found += f", of {size_text(BUFFER_BYTES)}: on fast links bursts are lost"
        return Finding(check, "warning", found, f"As root: sysctl -w {settings}, and the same in /etc/sysctl.d.")
    if not (sockets.cuts and sockets.joins):
        found += "; the kernel takes datagrams one by one, which is slower"
        return Finding(check, "warning", found, "Take Linux 5.0 or newer, for UDP_SEGMENT and UDP_GRO.")
    return fine(check, f"{found}; datagrams go many at a time")


def _takes(udp: socket.socket, option: int, value: int) -> bool:
    with contextlib.suppress(OSError):
        udp.setsockopt(socket.IPPROTO_UDP, option, value)
        return True
    return False
