"""Controllers side by side, in virtual time: prints tables. `python -m tests.support.sim.compare --help`."""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.bbr.bbr_controller import BbrController
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from fedrdma_fate.core.x.controller import MakeController
from fedrdma_fate.core.x.rate_control import RateController
from tests.support.sim.bad_paths import BurstLoss, Policer
from tests.support.sim.bottleneck import PACKET_OVERHEAD_BYTES, Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.sharing import Job
from tests.support.sim.x_flow import XFlow

MIB = 1 << 20
GIVEN_UP_SECONDS = 120.0
CONTROLLERS: dict[str, MakeController] = {"ours": RateController, "bbr3": BbrController}
SHARE_SECONDS = 10.0
"""After the later flow has begun."""
PAYLOAD_BYTES = 32 * MIB
"""Of each transfer of a flow that shares."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A path, and what is sent over it.

    Attributes:
        name: of the row.
        total: payload bytes.
        profile: makes the path's.
        rate_bps: what it can carry at most, on average.
        loss: of it, lost at random.
        trace: its rate follows this.
    """

    name: str
    total: int
    profile: Callable[[], BottleneckProfile]
    rate_bps: float
    loss: float = 0.0
    trace: Sequence[tuple[float, float]] = ()

    def best_seconds(self) -> float:
        """A round trip, and the payload with its headers at the path's rate, what is lost once more."""
        profile = self.profile()
        heads = (profile.mtu_bytes + PACKET_OVERHEAD_BYTES) / profile.mtu_bytes
        return profile.rtt + self.total * heads * 8 / self.rate_bps / (1 - self.loss)


def _path(name: str, rate: float, mebibytes: float = 32, **parts: float) -> Case:
    def profile() -> BottleneckProfile:
        made = BottleneckProfile(rate, nic_bps=10 * rate)
        for part, value in parts.items():
            setattr(made, part, value)
        return made

    return Case(name, int(mebibytes * MIB), profile, rate, parts.get("loss", 0.0))


def _bursts(packets: int) -> Case:
    loss = 0.005

    def profile() -> BottleneckProfile:
        return BottleneckProfile(1e9, nic_bps=10e9, bursts=BurstLoss(loss, packets, random.Random(7)))

    return Case(f"1G 20 ms, 0.5 % in bursts of {packets}", 32 * MIB, profile, 1e9, loss)


def _policed() -> Case:
    def profile() -> BottleneckProfile:
        return BottleneckProfile(1e9, nic_bps=10e9, policer=Policer(0.5e9, 100e3))

    return Case("1G 20 ms, policed at 0.5G, burst 100 kB", 32 * MIB, profile, 0.5e9)


def _traced() -> Case:
    chance = random.Random(3)
    rates = [(0.1 * step, chance.choice((0.4e9, 0.6e9, 0.8e9, 1e9))) for step in range(1200)]
    mean = statistics.fmean(rate for _, rate in rates[:20])
    return Case(
        "0.4 to 1G by 0.1 s, 20 ms, 4 MB", 96 * MIB, lambda: BottleneckProfile(1e9, nic_bps=10e9), mean, trace=rates
    )


def single_cases() -> Iterator[Case]:
    """The paths that a flow has for itself."""
    yield _path("1G 20 ms, 4 MB", 1e9)
    yield _path("10G 20 ms, 4 MB", 10e9, 256)
    for milliseconds in (0.3, 1, 3):
        yield _path(f"1G 20 ms, jitter {milliseconds} ms", 1e9, jitter=milliseconds / 1e3)
    for milliseconds in (5, 100):
        yield _path(f"1G {milliseconds} ms, jitter 1 ms", 1e9, rtt=milliseconds / 1e3, jitter=1e-3)
    for percent in (0.1, 1):
        yield _path(f"1G 20 ms, {percent} % lost", 1e9, loss=percent / 100)
    for packets in (2, 10, 30):
        yield _bursts(packets)
    yield _policed()
    yield _traced()
    for milliseconds in (2, 0.5):
        yield _path(f"10G {milliseconds} ms, 0.5 MB", 10e9, 256, rtt=milliseconds / 1e3, buffer_bytes=0.5e6)
    for megabits in (5, 20, 60):
        for milliseconds in (2, 20):
            for percent in (0, 5, 20):
                name = f"{megabits}M {milliseconds} ms, {percent} % lost"
                yield _path(
                    name, megabits * 1e6, 2.34e6 / MIB, rtt=milliseconds / 1e3, loss=percent / 100, mtu_bytes=1442
                )


def transfers(case: Case, make: MakeController, count: int = 3) -> list[tuple[float, float]]:
    """(seconds over the best possible, share sent again) of transfers after each other, nothing known but the probe."""
    clock = VirtualClock()
    link = Bottleneck(clock, case.profile(), random.Random(1))
    plan = ChunkPlan(case.total, FIRST_CHUNK_BYTES)
    flow = XFlow(clock, link, plan, recut=True, probed=True, repairs=True, make_controller=make)
    clock.run(1.0)
    link.follow(case.trace)
    results = []
    for _ in range(count):
        began = clock.now
        flow.start()
        clock.run(began + GIVEN_UP_SECONDS)
        done = flow.outcome == Finished() and flow.stats is not None
        seconds = flow.ended_at - began if done else float("inf")
        resent = flow.stats.resent_bytes if done and flow.stats is not None else 0
        results.append((seconds / case.best_seconds(), resent / case.total))
        if not done:
            break
        clock.run(max(clock.now, flow.ended_at + 0.03))
    return results


def cubic_seconds(case: Case) -> float:
    """What CUBIC takes for the payload, as a multiple of the best possible."""
    clock = VirtualClock()
    link = Bottleneck(clock, case.profile(), random.Random(1))
    link.follow(case.trace)
    flow = CubicFlow(clock, link, until=GIVEN_UP_SECONDS)
    flow.start()
    until = 0.0
    while sum(length for _, length in flow.arrivals) < case.total:
        if until >= GIVEN_UP_SECONDS / 2:
            return float("inf")
        until += case.best_seconds() / 50
        clock.run(until)
    return until / case.best_seconds()


@dataclasses.dataclass(frozen=True)
class Shares:
    """Of a link, of two flows over the time after the later one began: what each got, and what they used."""

    first: float
    later: float

    @property
    def least(self) -> float:
        """The smaller one, as a part of its fair share."""
        return min(self.first, self.later) / max((self.first + self.later) / 2, 1e-9)


def share(
    first: str, later: str, start: int, *, rate_bps: float, buffer_bytes: float, jitter: float, rtt: float = 0.02
) -> Shares:
    """Two flows, the later one a second after the first and a little more with each start."""
    clock = VirtualClock()
    profile = BottleneckProfile(rate_bps, rtt=rtt, buffer_bytes=buffer_bytes, jitter=jitter, nic_bps=10 * rate_bps)
    link = Bottleneck(clock, profile, random.Random(start + 1))
    begins = [0.0, 1 + 0.003 * start]
    readers: list[Callable[[], float]] = []
    for number, (name, begin) in enumerate(zip((first, later), begins, strict=True)):
        if name == "cubic":
            rival = CubicFlow(clock, link, until=begins[1] + SHARE_SECONDS)
            clock.at(begin, rival.start)
            readers.append(lambda rival=rival: sum(length for _, length in rival.arrivals))  # type: ignore[misc]
        else:
            payload = int(PAYLOAD_BYTES * rate_bps / 1e9)
            job = Job(clock, link, payload, begin, random.Random(number), CONTROLLERS[name])
            readers.append(lambda job=job: job.arrived_bytes)  # type: ignore[misc]
    clock.run(begins[1])
    before = [read() for read in readers]
    clock.run(begins[1] + SHARE_SECONDS)
    got = [(read() - then) * 8 / SHARE_SECONDS / rate_bps for read, then in zip(readers, before, strict=True)]
    return Shares(*got)


def print_single(names: Sequence[str], pattern: str) -> None:
    """The table of flows that have a path for themselves."""
    head = ["path", *(f"{name}: first, later (sent again)" for name in names), "CUBIC"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for case in single_cases():
        if pattern not in case.name:
            continue
        cells = []
        for name in names:
            first, *later = transfers(case, CONTROLLERS[name])
            if not later:
                cells.append("not done" if first[0] == float("inf") else f"{first[0]:.2f}, not done")
                continue
            seconds, resent = (statistics.median(column) for column in zip(*later, strict=True))
            cells.append(f"{first[0]:.2f}, {seconds:.2f} ({first[1]:.1%}, {resent:.1%})")
        cells.append(f"{cubic_seconds(case):.2f}")
        print("| " + " | ".join([case.name, *cells]) + " |", flush=True)


def print_sharing(starts: int, rate_bps: float, pairs: Sequence[str], pattern: str) -> None:
    """The table of two flows that share a link, over different starts."""
    print("| buffer, jitter | first, later | least of a fair share: median, quartile, worst | first | later | used |")
    print("|---|---|---|---|---|---|")
    for buffer_bytes in (0.5e6, 4e6):
        for jitter in (0.0, 0.001):
            where = f"{buffer_bytes / 1e6:g} MB, {jitter * 1e3:g} ms"
            if pattern not in where:
                continue
            for pair in pairs:
                first, later = pair.split("+")
                scaled = buffer_bytes * rate_bps / 1e9
                runs = [
                    share(first, later, start, rate_bps=rate_bps, buffer_bytes=scaled, jitter=jitter)
                    for start in range(starts)
                ]
                least = sorted(run.least for run in runs)
                means = [
                    f"{statistics.median(values):.2f}"
                    for values in (
                        [run.first for run in runs],
                        [run.later for run in runs],
                        [run.first + run.later for run in runs],
                    )
                ]
                spread = f"{statistics.median(least):.2f}, {least[len(least) // 4]:.2f}, {least[0]:.2f}"
                print(f"| {where} | {first}, {later} | {spread} | " + " | ".join(means) + " |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.sim.compare", description=__doc__)
    parser.add_argument("table", choices=["single", "sharing"], help="flows alone, or two on one link")
    parser.add_argument("--only", default="", help="rows whose path has this in its name")
    parser.add_argument("--controllers", default="ours,bbr3", help="of `single`")
    parser.add_argument("--pairs", default="ours+ours,bbr3+bbr3,ours+cubic,cubic+ours,ours+bbr3", help="of `sharing`")
    parser.add_argument("--starts", type=int, default=24, help="of `sharing`, 3 ms apart")
    parser.add_argument("--rate", type=float, default=1e9, help="of `sharing`, bits a second; buffers scale with it")
    chosen = parser.parse_args(arguments)
    if chosen.table == "single":
        print_single(chosen.controllers.split(","), chosen.only)
    else:
        print_sharing(chosen.starts, chosen.rate, chosen.pairs.split(","), chosen.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
