"""First transfers that begin before the path probe is answered, beside those that begin after. Prints a table."""

from __future__ import annotations

import dataclasses
import random
import sys

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from tests.support.sim.bottleneck import PACKET_OVERHEAD_BYTES, Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.x_flow import XFlow

MIB = 1 << 20
GIVEN_UP_SECONDS = 60.0
ANSWERED_SECONDS = 1.0
"""So long after the path is there its probe is answered, however often it went."""


@dataclasses.dataclass(frozen=True)
class First:
    """A first transfer.

    Attributes:
        seconds: over the least possible, a round trip and the payload with its headers; infinite: not done.
        resent: of the payload, sent again.
    """

    seconds: float
    resent: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} ({self.resent:.0%})"


def first_transfer(rate_bps: float, rtt: float, buffer_bytes: float, total: int, *, answered: bool) -> First:
    """Over a path of which a probe is under way, or has told."""
    clock = VirtualClock()
    profile = BottleneckProfile(rate_bps, rtt=rtt, buffer_bytes=buffer_bytes, nic_bps=10 * rate_bps)
    link = Bottleneck(clock, profile, random.Random(1))
    flow = XFlow(clock, link, ChunkPlan(total, FIRST_CHUNK_BYTES), probed=True, recut=True, repairs=True)
    clock.run(ANSWERED_SECONDS if answered else 0.0)
    began = clock.now
    flow.start()
    clock.run(began + GIVEN_UP_SECONDS)
    heads = (profile.mtu_bytes + PACKET_OVERHEAD_BYTES) / profile.mtu_bytes
    least = rtt + total * heads * 8 / rate_bps
    if flow.outcome != Finished() or flow.stats is None:
        return First(float("inf"), 0.0)
    return First((flow.ended_at - began) / least, flow.stats.resent_bytes / total)


def main() -> int:
    """Print the table."""
    print("| path, buffer of 0.5 MB | payload | before the answer | after it |\n|---|---|---|---|")
    for rate_bps in (10e9, 25e9):
        for rtt in (0.0025, 0.02):
            for mebibytes in (4, 64):
                each = [
                    first_transfer(rate_bps, rtt, 0.5e6, mebibytes * MIB, answered=answered)
                    for answered in (False, True)
                ]
                path = f"{rate_bps / 1e9:g} Gbit/s, {rtt * 1e3:g} ms"
                print(f"| {path} | {mebibytes} MiB | {each[0]} | {each[1]} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
