"""What sharing out a receiver's link costs it: shares told a second, and processor time, in rounds of the simulator.

    .venv/bin/python -m tests.support.sim.share_costs --silos 64

Only what the shares themselves decide is counted, not what it takes to send a share: a frame, and two datagrams.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from tests.support.sim.incast import PAUSE_SECONDS, Case

CALLED = ("on_arrivals", "on_begin", "on_end", "on_timer", "take_told", "timer")
"""What a gateway calls of the shares while transfers come; the simulator tells them what is known of paths besides."""


@dataclasses.dataclass
class Cost:
    """Of rounds so far.

    Attributes:
        told: shares.
        seconds: of a processor, by the shares.
        virtual_seconds: that the rounds took.
    """

    told: int = 0
    seconds: float = 0.0
    virtual_seconds: float = 0.0


def watch(shares: ReceiveShares, cost: Cost) -> None:
    """Count what is called from now on."""
    for name in CALLED:
        setattr(shares, name, functools.partial(_counted, getattr(shares, name), cost, name))


def _counted(call: Callable[..., Any], cost: Cost, name: str, *arguments: Any) -> Any:
    began = time.thread_time()
    found = call(*arguments)
    cost.seconds += time.thread_time() - began
    if name == "take_told":
        cost.told += len(found)
    return found


def cost_of(case: Case, rounds: int) -> list[Cost]:
    """Of each round."""
    clock, incast = case.make("even", 1)
    chance = random.Random(1)
    costs = []
    cost = Cost()
    watch(incast.shares, cost)
    for _ in range(rounds):
        before = dataclasses.replace(cost)
        taken = incast.play(chance, case.jitter).seconds
        costs.append(Cost(cost.told - before.told, cost.seconds - before.seconds, taken))
        clock.run(clock.now + PAUSE_SECONDS)
    return costs


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line a round."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.sim.share_costs", description=__doc__)
    parser.add_argument("--silos", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e9, help="of the receiver's link, bits a second")
    parser.add_argument("--size", type=int, default=4 << 20, help="bytes that each sends in a round")
    parser.add_argument("--loss", type=float, default=0.0, help="share of the packets")
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args(arguments)
    print(
        "| silos, link | round | took | shares told | a second | processor, of the round |\n|---|---|---|---|---|---|"
    )
    case = Case(chosen.silos, chosen.rate, loss=chosen.loss, total=chosen.size)
    where = f"{chosen.silos}, {chosen.rate / 1e9:g} Gbit/s"
    for number, cost in enumerate(cost_of(case, chosen.rounds), start=1):
        took = cost.virtual_seconds
        print(
            f"| {where} | {number} | {took:.2f} s | {cost.told} | {cost.told / took:.0f} | {cost.seconds / took:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
