"""Sets a netem queue by netlink: delay and its jitter, slots, losses one by one or in bursts, and the seed of both.

`tc` knows netem's seed only from iproute2 6.6 on; the kernel has had it since 6.6 as well. Attributes and structures
are those of linux/pkt_sched.h.
"""

from __future__ import annotations

import dataclasses
import functools
import struct

from deploy.softroce.netlink import attribute, inner_queue_request, queue_request, set_root_queue
from deploy.softroce.tbf import KIND as TBF
from deploy.softroce.tbf import tbf_options

_NETEM_LOSS, _NETEM_RATE, _NETEM_RATE64, _NETEM_LATENCY64, _NETEM_JITTER64 = 5, 6, 8, 10, 11
_NETEM_SLOT, _NETEM_PRNG_SEED = 12, 14
_LOSS_GILBERT_ELLIOTT = 2
_NESTED = 0x8000
ENDLESS_PACKETS = 10_000_000
"""So long that it never drops: what is dropped for want of room is the bottleneck's affair."""

_ORDER_KEEPING_RATE = 10**12
"""Bytes a second: with a rate of its own, netem lets no packet go before the one in front of it. At this one a packet
takes a few nanoseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class DelayLine:
    """A netem queue at the root of an interface.

    Attributes:
        netdev: the interface.
        delay_ns: of each packet, nanoseconds.
        loss: share of packets lost.
        seed: of losses and jitter.
        packets: that it holds before it drops.
        jitter_ns: a packet is earlier or later by up to so much, evenly; not more than the delay.
        reorders: packets that jitter makes earlier overtake those in front of them; else they wait for those.
        slot_ns: what was delayed goes on every so many nanoseconds, all of it at once; 0: when its time has come.
        burst_packets: that are lost one after the other, on average; 1: each is lost by itself.
        rate_bps: at which packets leave it once they were delayed, by a tbf inside it, bit/s; None: as they come.
        buffer_bytes: that the tbf holds before it drops.
        tokens_bytes: that the tbf may send at once.
    """

    netdev: str
    delay_ns: int
    loss: float
    seed: int
    packets: int = ENDLESS_PACKETS
    jitter_ns: int = 0
    reorders: bool = False
    slot_ns: int = 0
    burst_packets: float = 1.0
    rate_bps: int | None = None
    buffer_bytes: int = 0
    tokens_bytes: int = 0


def qdisc_request(ifindex: int, line: DelayLine) -> bytes:
    """The netlink message that puts a netem queue at the root of an interface."""
    in_bursts = line.loss > 0 and line.burst_packets > 1
    # struct tc_netem_qopt: latency (superseded by the 64-bit attribute), limit, loss, gap, duplicate, jitter (likewise)
    options = struct.pack("=6I", 0, line.packets, 0 if in_bursts else _share(line.loss), 0, 0, 0)
    options += attribute(_NETEM_LATENCY64, struct.pack("=q", line.delay_ns))
    options += attribute(_NETEM_PRNG_SEED, struct.pack("=Q", line.seed))
    if line.jitter_ns:
        options += attribute(_NETEM_JITTER64, struct.pack("=q", line.jitter_ns))
        if not line.reorders:
            # struct tc_netem_rate: rate (superseded), overhead of packets, cells and their overhead
            options += attribute(_NETEM_RATE, struct.pack("=IiIi", 2**32 - 1, 0, 0, 0))
            options += attribute(_NETEM_RATE64, struct.pack("=Q", _ORDER_KEEPING_RATE))
    if line.slot_ns:
        # struct tc_netem_slot: delay at least and at most, packets and bytes of a slot (0: all), a distribution (none)
        options += attribute(_NETEM_SLOT, struct.pack("=qqiiqq", line.slot_ns, line.slot_ns, 0, 0, 0, 0))
    if in_bursts:
        model = attribute(_LOSS_GILBERT_ELLIOTT, struct.pack("=4I", *_gilbert_elliott(line)))
        options += attribute(_NETEM_LOSS | _NESTED, model)
    return queue_request(ifindex, "netem", options, holds_another=line.rate_bps is not None)


def bottleneck_request(ifindex: int, line: DelayLine) -> bytes:
    """The netlink message that puts a tbf inside the netem queue of a line with a rate."""
    assert line.rate_bps is not None
    return inner_queue_request(ifindex, TBF, tbf_options(line.rate_bps, line.tokens_bytes, line.buffer_bytes))


def set_netem(line: DelayLine) -> None:
    """Put a netem queue at the root of an interface of this network namespace.

    Raises:
        OSError: the kernel refused.
    """
    set_root_queue(line.netdev, functools.partial(qdisc_request, line=line))
    if line.rate_bps is not None:
        set_root_queue(line.netdev, functools.partial(bottleneck_request, line=line))


def _gilbert_elliott(line: DelayLine) -> tuple[int, int, int, int]:
    """struct tc_netem_gemodel: in the bad state all packets are lost, in the good one none.

    A bad state lasts for 1 / r packets on average, and is left with probability r; it is entered with p, where
    p / (p + r) is the share lost (Gilbert 1960; Elliott 1963).
    """
    leave = 1 / line.burst_packets
    enter = leave * line.loss / (1 - line.loss) if line.loss < 1 else 1.0
    return _share(min(1.0, enter)), _share(leave), 0, 0


def _share(value: float) -> int:
    """In units of the kernel: of 2**32."""
    return min(round(value * 2**32), 2**32 - 1)
