"""Controllers side by side, in virtual time: prints tables. `python -m tests.support.sim.compare --help`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
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
from tests.support.sim.busy import Busy
from tests.support.sim.clock import VirtualClock
from tests.support.sim.core_flow import CoreFlow
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.incast import Case as IncastCase
from tests.support.sim.incast import print_incast, print_slow, print_slowest
from tests.support.sim.outcast import Case as OutcastCase
from tests.support.sim.outcast import print_outcast
from tests.support.sim.streams import Bbr, EndlessStream
from tests.support.sim.x_flow import XFlow

MIB = 1 << 20
GIVEN_UP_SECONDS = 120.0
CONTROLLERS: dict[str, MakeController] = {"ours": RateController, "bbr3": BbrController}
SHARE_SECONDS = 10.0
"""After the later flow has begun."""
START_SECONDS = 0.037
"""Between two starts of the later one: of a cycle of the first each meets another part."""
FAIR_SHARE = 0.5
"""Of the link, for each of two flows."""
PAIRS = ("ours+ours", "ours+cubic", "cubic+ours", "ours+bbr3", "bbr3+ours")
PAYLOAD_BYTES = 32 * MIB
"""Of the first transfer of a flow that shares, and where it is a job of all, at 1 Gbit/s."""
PAUSE_SECONDS = (0.02, 0.04)
"""Of a job, between two transfers: it computes now a little longer and now a little shorter."""


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


def _policed(total: int, burst_bytes: float) -> Case:
    def profile() -> BottleneckProfile:
        return BottleneckProfile(1e9, nic_bps=10e9, policer=Policer(0.5e9, burst_bytes))

    name = f"1G 20 ms, policed at 0.5G, burst {burst_bytes / 1e3:g} kB"
    return Case(name if total == 32 * MIB else f"{name}, {total / 1e6:g} MB", total, profile, 0.5e9)


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
    yield _path("10G 20 ms, jitter 3 ms", 10e9, 256, jitter=3e-3)
    for milliseconds in (10, 50, 100):
        for both, out in ((" both ways", milliseconds / 1e3), (" back", 0.0)):
            name = f"20M 20 ms, slots of {milliseconds} ms{both}"
            yield _path(name, 20e6, 2.34e6 / MIB, mtu_bytes=1442, slot=out, back_slot=milliseconds / 1e3)
    for percent in (0.1, 1):
        yield _path(f"1G 20 ms, {percent} % lost", 1e9, loss=percent / 100)
    for packets in (2, 10, 30):
        yield _bursts(packets)
    for total, burst_bytes in ((32 * MIB, 100e3), (18_000_000, 100e3), (18_000_000, 300e3)):
        yield _policed(total, burst_bytes)
    yield _traced()
    for milliseconds in (2, 0.5):
        yield _path(f"10G {milliseconds} ms, 0.5 MB", 10e9, 256, rtt=milliseconds / 1e3, buffer_bytes=0.5e6)
    for megabits in (5, 20, 60):
        for milliseconds in (2, 20):
            for percent in (0, 5, 10, 20):
                name = f"{megabits}M {milliseconds} ms, {percent} % lost"
                yield _path(
                    name, megabits * 1e6, 2.34e6 / MIB, rtt=milliseconds / 1e3, loss=percent / 100, mtu_bytes=1442
                )


def transfers(
    case: Case,
    make: MakeController,
    count: int = 3,
    seed: int = 1,
    busy: Busy | None = None,
    *,
    packets: bool = False,
) -> list[tuple[float, float]]:
    """(seconds over the best possible, share sent again) of transfers after each other, nothing known but the probe."""
    clock = VirtualClock()
    link = Bottleneck(clock, case.profile(), random.Random(seed), jitter_seed=2 * seed)
    plan = ChunkPlan(case.total, FIRST_CHUNK_BYTES)
    flow = XFlow(
        clock, link, plan, recut=True, probed=True, repairs=True, make_controller=make, busy=busy, packets=packets
    )
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
    """Of a link, of two flows over the time after the later one began: what each got."""

    first: float
    later: float

    @property
    def used(self) -> float:
        """Of the link, by both."""
        return self.first + self.later


@dataclasses.dataclass(frozen=True)
class Shared:
    """A link that two flows share.

    Attributes:
        rate_bps: of the link.
        buffer_bytes: of it.
        jitter: of it, seconds.
        rtt: of both flows, seconds.
        jobs: flows of ours are transfers of PAYLOAD_BYTES, idle for PAUSE_SECONDS in between; else they always have
            something to send.
        chunk_bytes: of flows of ours; None: what suits the path.
        drops_whole_packets: see `BottleneckProfile`.
    """

    rate_bps: float
    buffer_bytes: float
    jitter: float = 0.0
    rtt: float = 0.02
    jobs: bool = False
    chunk_bytes: int | None = None
    drops_whole_packets: bool = False

    def shares(self, first: str, later: str, start: int) -> Shares:
        """Two flows, the later one a second after the first and a little more with each start."""
        clock = VirtualClock()
        profile = BottleneckProfile(
            self.rate_bps,
            rtt=self.rtt,
            buffer_bytes=self.buffer_bytes,
            jitter=self.jitter,
            nic_bps=10 * self.rate_bps,
            drops_whole_packets=self.drops_whole_packets,
        )
        link = Bottleneck(clock, profile, random.Random(start + 1))
        begins = 1 + START_SECONDS * start
        readers = []
        for number, name in enumerate((first, later)):
            flow = self._flow(name, clock, link, begins + SHARE_SECONDS, number)
            clock.at(begins * number, flow.start)
            readers.append(flow)
        clock.run(begins)
        before = [flow.arrived_bytes for flow in readers]
        clock.run(begins + SHARE_SECONDS)
        return Shares(
            *(
                (flow.arrived_bytes - then) * 8 / SHARE_SECONDS / self.rate_bps
                for flow, then in zip(readers, before, strict=True)
            )
        )

    def _flow(
        self, name: str, clock: VirtualClock, link: Bottleneck, until: float, number: int
    ) -> CoreFlow | CubicFlow | EndlessStream:
        if name == "cubic":
            return CubicFlow(clock, link, until=until)
        if name == "bbr1":
            return EndlessStream(clock, link, Bbr())
        payload_bytes = int(PAYLOAD_BYTES * self.rate_bps / 1e9)
        if self.jobs:
            chance = random.Random(number)
            payloads: Iterator[int] = itertools.repeat(payload_bytes)
            pause = functools.partial(chance.uniform, *PAUSE_SECONDS)
            return CoreFlow(clock, link, payloads, CONTROLLERS[name], pause, self.chunk_bytes)
        # the first transfer finds the path, and its loss, so that chunks are as long as they are for the rest
        endless = itertools.chain([payload_bytes], itertools.repeat(int(self.rate_bps * until / 8)))
        return CoreFlow(clock, link, endless, CONTROLLERS[name], chunk_bytes=self.chunk_bytes)


def medians(
    case: Case, make: MakeController, seeds: int, busy: Busy | None = None, *, packets: bool = False
) -> list[tuple[float, float]]:
    """Of `transfers` by seeds from 1 on, each by its place; up to the first that one of them did not do."""
    runs = [transfers(case, make, seed=seed, busy=busy, packets=packets) for seed in range(1, seeds + 1)]
    columns = [tuple(zip(*each, strict=True)) for each in zip(*runs, strict=False)]
    return [(statistics.median(seconds), statistics.median(resent)) for seconds, resent in columns]


def print_single(
    names: Sequence[str], pattern: str, seeds: int = 1, busy: Busy | None = None, *, packets: bool = False
) -> None:
    """The table of flows that have a path for themselves; CUBIC by one seed."""
    head = ["path", *(f"{name}: first, later (sent again)" for name in names), "CUBIC"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for case in single_cases():
        if pattern not in case.name:
            continue
        cells = []
        for name in names:
            first, *later = medians(case, CONTROLLERS[name], seeds, busy, packets=packets)
            if not later:
                cells.append("not done" if first[0] == float("inf") else f"{first[0]:.2f}, not done")
                continue
            seconds, resent = (statistics.median(column) for column in zip(*later, strict=True))
            cells.append(f"{first[0]:.2f}, {seconds:.2f} ({first[1]:.1%}, {resent:.1%})")
        cells.append(f"{cubic_seconds(case):.2f}")
        print("| " + " | ".join([case.name, *cells]) + " |", flush=True)


def print_sharing(
    starts: int,
    rate_bps: float,
    pairs: Sequence[str],
    pattern: str,
    *,
    jobs: bool = False,
    rtt: float = 0.02,
    chunk_bytes: int | None = None,
    drops_whole_packets: bool = False,
) -> None:
    """The table of two flows that share a link, over different starts; shares are of what is fair, half of the link."""
    print("| buffer, jitter | first, later | the first: least, median | the later: least, median | used |")
    print("|---|---|---|---|---|")
    for buffer_bytes, jitter in itertools.product((0.5e6, 4e6), (0.0, 0.001)):
        where = f"{buffer_bytes / 1e6:g} MB, {jitter * 1e3:g} ms"
        if pattern not in where:
            continue
        link = Shared(rate_bps, buffer_bytes * rate_bps / 1e9, jitter, rtt, jobs, chunk_bytes, drops_whole_packets)
        for pair in pairs:
            first, later = pair.split("+")
            runs = [link.shares(first, later, start) for start in range(starts)]
            cells = [
                f"{min(values):.2f}, {statistics.median(values):.2f}"
                for values in (
                    [run.first / FAIR_SHARE for run in runs],
                    [run.later / FAIR_SHARE for run in runs],
                    [run.used for run in runs],
                )
            ]
            print(f"| {where} | {first}, {later} | " + " | ".join(cells) + " |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.sim.compare", description=__doc__)
    tables = {
        "single": "flows alone",
        "sharing": "two on one link",
        "incast": "many into one receiver",
        "outcast": "one to many",
    }
    parser.add_argument(
        "table", choices=list(tables), help=", ".join(f"{name}: {each}" for name, each in tables.items())
    )
    parser.add_argument("--only", default="", help="rows whose path has this in its name")
    parser.add_argument("--controllers", default="ours,bbr3", help="of `single`")
    parser.add_argument("--pairs", default=",".join(PAIRS), help="of `sharing`; `bbr1` is a rival, too")
    parser.add_argument("--whole-packets", action="store_true", help="of `sharing`: what does not fit takes no room")
    parser.add_argument("--chunk", type=int, help="of `sharing`: bytes of each chunk of ours")
    parser.add_argument("--starts", type=int, default=24, help="of `sharing`, 37 ms apart")
    parser.add_argument("--rate", type=float, default=1e9, help="bits a second; buffers of `sharing` scale with it")
    parser.add_argument("--rtt", type=float, default=0.02, help="of `sharing`, `incast` and `outcast`, seconds")
    parser.add_argument("--silos", type=int, default=8, help="of `incast` and `outcast`")
    parser.add_argument("--buffer", type=float, default=0.5e6, help="of `incast` and `outcast`, bytes")
    parser.add_argument("--loss", type=float, default=0.0, help="of `incast` and `outcast`, share of the packets")
    parser.add_argument(
        "--size", type=float, default=4.0, help="of `incast` and `outcast`, MiB that each sends in a round"
    )
    parser.add_argument("--jitter", type=float, default=0.001, help="of `incast`, seconds within which all begin")
    parser.add_argument("--rounds", type=int, default=3, help="of `incast` and `outcast`")
    parser.add_argument("--packets", action="store_true", help="of `single`: as over `udp`")
    parser.add_argument("--busy", help="of `single`: ms that both hosts run, and wait then: 4/8; CUBIC's are idle")
    parser.add_argument("--seeds", type=int, default=1, help="of `single` and `incast`: the median of so many runs")
    parser.add_argument("--share", default="even,off", help="of `incast`")
    parser.add_argument("--configured", type=float, help="of `incast`: `receive.rate`, as a multiple of the link's")
    parser.add_argument("--repairs", action="store_true", help="of `incast`: there may be repair chunks")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="of `incast`: share of a payload that may be missing"
    )
    parser.add_argument("--slowest", action="store_true", help="of `incast`: median and p99 of the rounds of one seed")
    parser.add_argument("--slow", type=float, help="of `incast`: one sender's card, as a multiple of its equal part")
    parser.add_argument("--order", default="even,one by one,off", help="of `outcast`")
    parser.add_argument("--card", type=float, default=10.0, help="of `outcast`, as a multiple of the link's rate")
    parser.add_argument("--access", type=float, help="of `outcast`: each silo's own link, as such a multiple")
    parser.add_argument("--mtu", type=int, default=4096, help="of `incast` and `outcast`, bytes of payload in a packet")
    parser.add_argument(
        "--in-front", action="store_true", help="what is lost at random never comes to the link, as in the testbed"
    )
    parser.add_argument("--jobs", action="store_true", help="of `sharing`: transfers with pauses in between")
    chosen = parser.parse_args(arguments)
    if chosen.table == "single":
        busy = None
        if chosen.busy is not None:
            runs, waits = (float(each) / 1e3 for each in chosen.busy.split("/"))
            busy = Busy(runs, waits)
        print_single(chosen.controllers.split(","), chosen.only, chosen.seeds, busy, packets=chosen.packets)
    elif chosen.table == "incast":
        case = IncastCase(
            chosen.silos,
            chosen.rate,
            chosen.rtt,
            chosen.buffer,
            chosen.loss,
            int(chosen.size * MIB),
            chosen.jitter,
            chosen.configured,
            chosen.repairs,
            chosen.tolerance,
            chosen.mtu,
            chosen.in_front,
        )
        if chosen.slowest:
            print_slowest(case, chosen.share.split(",")[0], chosen.rounds)
        elif chosen.slow is None:
            print_incast(case, chosen.share.split(","), chosen.rounds, chosen.seeds)
        else:
            print_slow(case, chosen.slow, chosen.rounds)
    elif chosen.table == "outcast":
        down = OutcastCase(
            chosen.silos,
            chosen.rate,
            chosen.rtt,
            chosen.buffer,
            chosen.loss,
            int(chosen.size * MIB),
            chosen.card,
            chosen.access,
            chosen.mtu,
        )
        print_outcast(down, chosen.order.split(","), chosen.rounds)
    else:
        pairs = chosen.pairs.split(",")
        parts = {"jobs": chosen.jobs, "rtt": chosen.rtt, "chunk_bytes": chosen.chunk}
        parts["drops_whole_packets"] = chosen.whole_packets
        print_sharing(chosen.starts, chosen.rate, pairs, chosen.only, **parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
