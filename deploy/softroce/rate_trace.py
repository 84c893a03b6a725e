"""A bottleneck whose rate follows a trace: its tbf is changed by netlink, at the moments that the trace names.

What waits in the queue stays there; the packet at its head leaves when the rate before the change let it.
"""

from __future__ import annotations

import dataclasses
import functools
import time

from deploy.softroce.netlink import queue_request, set_root_queue
from deploy.softroce.tbf import KIND, tbf_options
from fedrdma_fate.bench.wan.shaping import RateTrace


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
        burst = max(self.packets_bytes, int(rate_bps // 8 * self.burst_seconds))
        return queue_request(ifindex, KIND, tbf_options(rate_bps, burst, self.limit_bytes))
