"""What bounded loss is worth: transfers of one flow beside the same without, over random paths.

`python -m tests.support.sim.bounded [SEEDS]` prints the table of docs/results/bounded-loss.md.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.held import bytes_in
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.x_flow import XFlow

MIB = 1 << 20

TRANSFERS = 3
"""Of a flow: before the third there is no room for repair chunks."""

GIVEN_UP_SECONDS = 60.0
"""A transfer that has not ended by then."""


@dataclasses.dataclass(frozen=True)
class Path:
    """A path and a payload: megabytes, Gbit/s, seconds, bytes; `loss` of a packet, `share` that may be missing."""

    mebibytes: int
    gbps: float
    rtt: float
    loss: float
    share: float
    buffer_bytes: float = 4e6

    def __str__(self) -> str:
        size, rate, trip = f"{self.mebibytes} MiB", f"{self.gbps:g} Gbit/s", f"RTT {self.rtt * 1000:g} ms"
        return f"{size}, {rate}, {trip}, {self.loss * 100:g} % lost, {self.share:g} may be missing"


@dataclasses.dataclass(frozen=True)
class Sent:
    """How a transfer went: seconds until the sender knew, bytes sent besides the payload, share that is missing."""

    seconds: float
    resent_bytes: int
    missing: float


def transfers(path: Path, share: float, seed: int, *, repairs: bool = True, jitter: float = 0.0) -> list[Sent]:
    """Some transfers one after the other, on a path of which nothing is known at first."""
    clock = VirtualClock()
    profile = BottleneckProfile(
        path.gbps * 1e9, rtt=path.rtt, buffer_bytes=path.buffer_bytes, loss=path.loss, jitter=jitter
    )
    link = Bottleneck(clock, profile, random.Random(seed))
    total = path.mebibytes * MIB
    plan = ChunkPlan(total, FIRST_CHUNK_BYTES)
    flow = XFlow(clock, link, plan, repairs=repairs, recut=True, loss_share=share)
    found = []
    for _ in range(TRANSFERS):
        began = clock.now
        flow.start()
        clock.run(clock.now + GIVEN_UP_SECONDS)
        assert flow.outcome == Finished(), (path, seed)
        assert flow.stats is not None
        missing = bytes_in(flow.missing) / total
        found.append(Sent(flow.ended_at - began, flow.stats.resent_bytes, missing))
    return found


PATHS = (
    Path(4, 1, 0.1, 0.1, 0.05),
    Path(4, 1, 0.02, 0.05, 0.1),
    Path(4, 1, 0.1, 0.01, 0.05),
    Path(4, 1, 0.02, 0.01, 0.01),
    Path(64, 1, 0.02, 0.01, 0.002),
)
"""The cases of issue 13, and two more of what was measured before there was anything."""


def main(seeds: int) -> None:
    """Print a row for each path, transfer and with or without repair chunks."""
    names = "case", "transfer", "repair chunks", "whole", "bounded", "times faster", "sent besides, whole", "bounded"
    print(f"| {' | '.join(names)} | missing, mean and most |")
    for path in PATHS:
        for repairs in (True, False):
            both = [
                [transfers(path, share, seed, repairs=repairs) for seed in range(seeds)] for share in (0.0, path.share)
            ]
            for number in (0, TRANSFERS - 1):
                whole, bounded = ([each[number] for each in runs] for runs in both)
                was, now = (statistics.median(each.seconds for each in runs) for runs in (whole, bounded))
                before, after = (
                    statistics.mean(each.resent_bytes for each in runs) / (path.mebibytes * MIB)
                    for runs in (whole, bounded)
                )
                holes = [each.missing for each in bounded]
                row = (
                    f"{path}",
                    f"{number + 1}",
                    "on" if repairs else "off",
                    f"{was * 1000:.1f} ms",
                    f"{now * 1000:.1f} ms",
                    f"{was / now:.2f}",
                    f"{before:.1%}",
                    f"{after:.1%}",
                    f"{statistics.mean(holes):.2%}, {max(holes):.2%}",
                )
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
