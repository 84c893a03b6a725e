"""Sets a netem queue by netlink, with the seed of its losses.

`tc` knows netem's seed only from iproute2 6.6 on; the kernel has had it since 6.6 as well.
"""

from __future__ import annotations

import os
import socket
import struct

from deploy.softroce.netlink import error_of, root_queue_request

_RTM_NEWQDISC = 36
_REQUEST_ACK_CREATE_REPLACE = 0x1 | 0x4 | 0x100 | 0x400
_TCA_KIND, _TCA_OPTIONS = 1, 2
_NETEM_LATENCY64, _NETEM_PRNG_SEED = 10, 14
ENDLESS_PACKETS = 10_000_000
"""So long that it never drops: what is dropped for want of room is the bottleneck's affair."""


def qdisc_request(ifindex: int, delay_ns: int, loss: float, seed: int, packets: int = ENDLESS_PACKETS) -> bytes:
    """The netlink message that puts a netem queue, of at most so many packets, at the root of an interface."""
    loss_in_kernel_units = min(round(loss * 2**32), 2**32 - 1)
    # struct tc_netem_qopt: latency (superseded by the 64-bit attribute), limit, loss, gap, duplicate, jitter
    options = struct.pack("=6I", 0, packets, loss_in_kernel_units, 0, 0, 0)
    options += _attribute(_NETEM_LATENCY64, struct.pack("=q", delay_ns))
    options += _attribute(_NETEM_PRNG_SEED, struct.pack("=Q", seed))
    attributes = _attribute(_TCA_KIND, b"netem\0") + _attribute(_TCA_OPTIONS, options)
    return root_queue_request(_RTM_NEWQDISC, _REQUEST_ACK_CREATE_REPLACE, ifindex, attributes)


def set_netem(netdev: str, delay_ns: int, loss: float, seed: int, packets: int = ENDLESS_PACKETS) -> None:
    """Put a netem queue, of at most so many packets, at the root of an interface of this network namespace.

    Raises:
        OSError: the kernel refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.send(qdisc_request(socket.if_nametoindex(netdev), delay_ns, loss, seed, packets))
        answer = netlink.recv(4096)
    if error := error_of(answer):
        raise OSError(error, f"netem on {netdev}: {os.strerror(error)}")


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)
