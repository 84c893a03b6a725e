"""Netlink messages about the queue at the root of an interface, or the one inside it (rtnetlink(7), struct tcmsg)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

NLMSG_ERROR = 2
_ROOT = 0xFFFFFFFF
_HANDLE = 0x10000
"""Of a root queue that has another one inside: `1:` to tc."""
_FIRST_CLASS = _HANDLE | 1
_RTM_NEWQDISC = 36
_REQUEST_ACK_CREATE_REPLACE = 0x1 | 0x4 | 0x100 | 0x400
_TCA_KIND, _TCA_OPTIONS = 1, 2
_ANSWER_BYTES = 4096
"""Of an acknowledgement, which holds the request when that failed."""


def root_queue_request(
    kind: int, flags: int, ifindex: int, attributes: bytes = b"", *, handle: int = 0, parent: int = _ROOT
) -> bytes:
    """A request about the queue at the root of an interface.

    Args:
        kind: of the message, such as RTM_NEWQDISC.
        flags: of the request.
        ifindex: of the interface.
        attributes: encoded, behind the message's own fields.
        handle: that the queue has or gets; 0: the kernel chooses.
        parent: the queue's place, where it is not the root.
    """
    body = struct.pack("=BxxxiIII", socket.AF_UNSPEC, ifindex, handle, parent, 0) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def error_of(answer: bytes) -> int | None:
    """The error number in the kernel's answer, 0 for success; None when it is an answer of another kind."""
    (kind,) = struct.unpack_from("=H", answer, 4)
    return -int(struct.unpack_from("=i", answer, 16)[0]) if kind == NLMSG_ERROR else None


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute of a message (struct nlattr), padded."""
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def queue_request(ifindex: int, kind: str, options: bytes, *, holds_another: bool = False) -> bytes:
    """A request that makes the queue at the root of an interface one of this kind; one that is of it keeps its packets.

    Args:
        ifindex: of the interface.
        kind: such as `tbf`.
        options: encoded, as the kind has them.
        holds_another: it can be found by `inner_queue_request`.
    """
    handle = _HANDLE if holds_another else 0
    return root_queue_request(
        _RTM_NEWQDISC, _REQUEST_ACK_CREATE_REPLACE, ifindex, _attributes(kind, options), handle=handle
    )


def inner_queue_request(ifindex: int, kind: str, options: bytes) -> bytes:
    """The same for the queue inside one that holds another."""
    return root_queue_request(
        _RTM_NEWQDISC, _REQUEST_ACK_CREATE_REPLACE, ifindex, _attributes(kind, options), parent=_FIRST_CLASS
    )


def _attributes(kind: str, options: bytes) -> bytes:
    return attribute(_TCA_KIND, kind.encode() + b"\0") + attribute(_TCA_OPTIONS, options)


def set_root_queue(netdev: str, request: Callable[[int], bytes]) -> None:
    """Send the request for an interface of this network namespace, given its index.

    Raises:
        OSError: the kernel refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(request(socket.if_nametoindex(netdev)))
        answer = netlink.recv(_ANSWER_BYTES)
    if error := error_of(answer):
        raise OSError(error, f"the queue on {netdev}: {os.strerror(error)}")
