"""Netlink messages about the queue at the root of an interface (rtnetlink(7), struct tcmsg)."""

from __future__ import annotations

import socket
import struct

NLMSG_ERROR = 2
_ROOT = 0xFFFFFFFF


def root_queue_request(kind: int, flags: int, ifindex: int, attributes: bytes = b"") -> bytes:
    """A request about the queue at the root of an interface.

    Args:
        kind: of the message, such as RTM_NEWQDISC.
        flags: of the request.
        ifindex: of the interface.
        attributes: encoded, behind the message's own fields.
    """
    body = struct.pack("=BxxxiIII", socket.AF_UNSPEC, ifindex, 0, _ROOT, 0) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def error_of(answer: bytes) -> int | None:
    """The error number in the kernel's answer, 0 for success; None when it is an answer of another kind."""
    (kind,) = struct.unpack_from("=H", answer, 4)
    return -int(struct.unpack_from("=i", answer, 16)[0]) if kind == NLMSG_ERROR else None
