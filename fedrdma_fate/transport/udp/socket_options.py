"""What Linux offers UDP sockets beyond Python's `socket` module, by the numbers of its headers."""

from __future__ import annotations

import contextlib
import socket

UDP_SEGMENT = 103
"""linux/udp.h: one `sendmsg` is cut into datagrams of so many bytes."""

UDP_GRO = 104
"""linux/udp.h: one `recvmsg` returns several datagrams of equal length, and says which."""

_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE, _IP_MTU = 10, 3, 14
_IPV6_MTU_DISCOVER, _IPV6_PMTUDISC_PROBE, _IPV6_MTU = 23, 3, 24
_FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}
"""asm-generic/socket.h: SO_RCVBUFFORCE, SO_SNDBUFFORCE."""

BUFFER_BYTES = 4 * 1024 * 1024
"""Asked for on each side of a socket: what arrives at 10 Gbit/s in 3 ms, in which a link's thread may be elsewhere."""

IPV4_HEADERS, IPV6_HEADERS = 28, 48
"""Of IP, without options, and UDP."""

LARGEST_DATAGRAM = 65507
"""Bytes that IPv4 and UDP can carry in one."""


def is_ipv6(udp: socket.socket) -> bool:
    """Whether it speaks IPv6."""
    return udp.family == socket.AF_INET6


def prepare(udp: socket.socket) -> None:
    """No fragments, large buffers, datagrams taken in batches where the kernel can; nothing blocks."""
    udp.setblocking(False)
    if is_ipv6(udp):
        udp.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _IPV6_PMTUDISC_PROBE)
    else:
        udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
    with contextlib.suppress(OSError):
        udp.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        ask_for_buffer(udp, option)


def ask_for_buffer(udp: socket.socket, option: int, size: int = BUFFER_BYTES) -> None:
    """Of so many bytes, for SO_RCVBUF or SO_SNDBUF: beyond what net.core.[rw]mem_max allows, for who may."""
    try:
        udp.setsockopt(socket.SOL_SOCKET, _FORCED[option], size)
    except OSError:
        udp.setsockopt(socket.SOL_SOCKET, option, size)


def given_buffer_bytes(udp: socket.socket, option: int) -> int:
    """What the kernel gave of BUFFER_BYTES, for SO_RCVBUF or SO_SNDBUF.

    It keeps twice of what it lets one ask for, for its own bookkeeping (socket(7)).
    """
    return udp.getsockopt(socket.SOL_SOCKET, option) // 2


def route_datagram_bytes(udp: socket.socket) -> int:
    """Longest datagram by the MTU of the route of a connected socket, or what each path carries where it is unknown."""
    headers = IPV6_HEADERS if is_ipv6(udp) else IPV4_HEADERS
    try:
        if is_ipv6(udp):
            mtu = udp.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
        else:
            mtu = udp.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        mtu = 1280
    return min(mtu - headers, LARGEST_DATAGRAM)
