"""A bottleneck whose rate follows a trace: its tbf is changed by netlink, at the moments that the trace names.

Attributes and structures are those of linux/pkt_sched.h. What waits in the queue stays there; the packet at its head
leaves when the rate before the change let it.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import time

from deploy.softroce.netlink import attribute, queue_request, set_root_queue
from fedrdma_fate.bench.wan.shaping import RateTrace

_TBF_PARAMETERS, _TBF_RATE64, _TBF_BURST = 1, 4, 6
_LINK_LAYER_ETHERNET = 1
_RATE_IN_64_BITS = 2**32 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class TracedBottlenecks:
    """Bottlenecks that share a trace.

    Attributes:
        netdevs: the interfaces whose root queues, tbf, follow it.
        trace: their rate.
        limit_bytes: that each holds before it drops.
        packets_bytes: that may pass at once at any rate.
        burst_seconds: of the rate, that may pass at once besides.
    """

    netdevs: tuple[str, ...]
    trace: RateTrace
    limit_bytes: int
    packets_bytes: int
    burst_seconds: float

    def follow(self, began: float) -> None:
        """Change the rates when it is time to; returns when the last rate holds for good.

        Args:
            began: when the trace begins, by `time.monotonic`.

        Raises:
            OSError: the kernel refused.
        """
        for at_ns, rate_bps in self.trace.moments():
            time.sleep(max(0.0, began + at_ns / 1e9 - time.monotonic()))
            for netdev in self.netdevs:
                set_root_queue(netdev, functools.partial(self.request, rate_bps=rate_bps))

    def request(self, ifindex: int, rate_bps: int) -> bytes:
        """The netlink message that makes an interface's queue a tbf of this rate."""
        bytes_per_second = rate_bps // 8
        burst = max(self.packets_bytes, int(bytes_per_second * self.burst_seconds))
        # struct tc_tbf_qopt: rate and peak rate (struct tc_ratespec, superseded but for the link layer), limit, burst
        # in ticks (superseded), MTU of the peak rate
        rate = struct.pack("=BBHhHI", 0, _LINK_LAYER_ETHERNET, 0, 0, 0, min(bytes_per_second, _RATE_IN_64_BITS))
        options = attribute(_TBF_PARAMETERS, rate + bytes(12) + struct.pack("=III", self.limit_bytes, 0, 0))
        options += attribute(_TBF_RATE64, struct.pack("=Q", bytes_per_second))
        options += attribute(_TBF_BURST, struct.pack("=I", burst))
        return queue_request(ifindex, "tbf", options)
