"""Options of a tbf queue in netlink messages. Attributes and structures are those of linux/pkt_sched.h."""

from __future__ import annotations

import struct

from deploy.softroce.netlink import attribute

KIND = "tbf"
_PARAMETERS, _RATE64, _BURST = 1, 4, 6
_LINK_LAYER_ETHERNET = 1
_RATE_IN_64_BITS = 2**32 - 1


def tbf_options(rate_bps: int, burst_bytes: int, limit_bytes: int) -> bytes:
    """Encoded options of a tbf.

    Args:
        rate_bps: bit/s.
        burst_bytes: that may pass at once.
        limit_bytes: that it holds before it drops.
    """
    bytes_per_second = rate_bps // 8
    # struct tc_tbf_qopt: rate and peak rate (struct tc_ratespec, superseded but for the link layer), limit, burst in
    # ticks (superseded), MTU of the peak rate
    rate = struct.pack("=BBHhHI", 0, _LINK_LAYER_ETHERNET, 0, 0, 0, min(bytes_per_second, _RATE_IN_64_BITS))
    options = attribute(_PARAMETERS, rate + bytes(12) + struct.pack("=III", limit_bytes, 0, 0))
    options += attribute(_RATE64, struct.pack("=Q", bytes_per_second))
    return options + attribute(_BURST, struct.pack("=I", burst_bytes))
