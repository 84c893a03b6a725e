"""What a foreign TCP flow gets of a receiver's link into which silos send without end, beside one and beside many.

.venv/bin/python -m tests.support.sim.beside_cubic --silos 1 8
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.incast import Incast, ShareMode

LATER_SECONDS = 1.0
"""After ours the foreign flow begins."""
SETTLED_SECONDS = 3.0
"""After its beginning: what it gets is counted from then on."""


def shares(
    profile: BottleneckProfile, silos: int, seconds: float, seed: int, share: ShareMode = "even"
) -> tuple[float, float]:
    """Of the link, what the foreign flow gets, and what all silos together do.

    Args:
        profile: of the link.
        silos: how many send without end.
        seconds: over which it is counted.
        seed: of what is drawn by chance.
        share: whether the receiver shares its link out.
    """
    clock = VirtualClock()
    link = Bottleneck(clock, profile, random.Random(seed))
    until = LATER_SECONDS + SETTLED_SECONDS + seconds
    endless = int(profile.rate_bps / 8 * (until + 1))
    incast = Incast(link, clock, [endless] * silos, share)
    began = clock.now
    foreign = CubicFlow(clock, link, began + until)
    for flow in incast.flows:
        flow.start()
    clock.at(began + LATER_SECONDS, foreign.start)
    clock.run(began + until)
    since = began + until - seconds
    ours = sum(flow.goodput_bps(since, clock.now) for flow in incast.flows)
    return foreign.goodput_bps(since, clock.now) / profile.rate_bps, ours / profile.rate_bps


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each number of silos."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.sim.beside_cubic", description=__doc__)
    parser.add_argument("--silos", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rate", type=float, default=1e9, help="of the link, bits a second")
    parser.add_argument("--rtt", type=float, default=0.02, help="seconds")
    parser.add_argument("--buffer", type=float, default=0.5e6, help="bytes")
    parser.add_argument("--share", choices=("even", "off"), default="even", help="`receive.share`")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=1)
    chosen = parser.parse_args(arguments)
    print("| silos | seed | CUBIC, of the link | all silos |\n|---|---|---|---|")
    for silos in chosen.silos:
        for seed in range(1, chosen.seeds + 1):
            profile = BottleneckProfile(
                chosen.rate,
                chosen.rtt,
                buffer_bytes=chosen.buffer,
                nic_bps=10 * chosen.rate,
                # a fluid buffer lets none of a flow's packets through that comes a little faster than the link
                drops_whole_packets=True,
            )
            foreign, ours = shares(profile, silos, chosen.seconds, seed, chosen.share)
            print(f"| {silos} | {seed} | {foreign:.3f} | {ours:.3f} |", flush=True)


if __name__ == "__main__":
    main()
