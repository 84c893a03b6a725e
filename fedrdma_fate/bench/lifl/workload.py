"""Figures 9 and 10: rounds of clients that sleep and train, by ours, and by what the paper compares with."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from fedrdma_fate.bench.lifl.costs import Costs
from fedrdma_fate.bench.lifl.figure8 import CAPACITY, LINK_BYTES_PER_SECOND, NODES, NOT_STATED
from fedrdma_fate.bench.lifl.hierarchy import NO_HOP, Network, Sum, System, add_up
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.core.planning import Gateway, Load, Policy, plan, workers_wanted

SYSTEMS = ("ours", "SF", "SL")
"""SF: always on, joined by gRPC. SL: started when something comes, past a broker and two proxies."""

MOST_WORKERS = 4
"""Of a gateway of ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """Of the paper.

    Attributes:
        model: its name.
        clients: of a round.
        sleep: seconds before a client trains, at most; by chance.
        training: seconds that a client trains. Ours.
        stated: of each system, hours and hours of processors to 70 %.
    """

    model: str
    clients: int
    sleep: float
    training: float
    stated: dict[str, tuple[str, str]]


WORKLOADS = (
    Workload(
        "resnet18", 120, 60.0, 10.0, {"ours": ("0.9 h", "4.5 h"), "SF": ("1.4 h", "8 h"), "SL": ("2.4 h", "26 h")}
    ),
    Workload(
        "resnet152", 15, 0.0, 30.0, {"ours": ("1.9 h", "4.76 h"), "SF": ("2.2 h", "6.81 h"), "SL": ("3.2 h", "20.4 h")}
    ),
)

_JITTER = 0.2
"""Share of the training by which clients differ, at most. Ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlayedRound:
    """One of one system.

    Attributes:
        sum: how it went.
        after_last: seconds from the last client's end of training to the sum.
        ready: when each client was.
        wanted: when more or fewer workers were wanted, and how many; of ours only.
    """

    sum: Sum
    after_last: float
    ready: tuple[float, ...]
    wanted: tuple[tuple[float, int], ...]

    def active(self, begin: float, end: float) -> float:
        """Workers that are there then, on the average."""
        if self.wanted:
            return statistics.mean(self._wanted_at(begin + part * (end - begin) / 10) for part in range(10))
        overlaps = (max(0.0, min(end, last) - max(begin, first)) for first, last in self.sum.active)
        return sum(overlaps) / (end - begin)

    def _wanted_at(self, now: float) -> int:
        return next((count for since, count in reversed(self.wanted) if since <= now), 1)


def play_round(workload: Workload, system: str, costs: Costs, update_bytes: int, seed: int) -> PlayedRound:
    """Play one.

    Args:
        workload: whose clients.
        system: of SYSTEMS.
        costs: of all, with hops.
        update_bytes: of each update, and of a sum.
        seed: of when clients are ready.
    """
    chance = np.random.default_rng((seed, workload.clients))
    sleeps = chance.uniform(0, workload.sleep, workload.clients)
    ready = (sleeps + workload.training * (1 + chance.uniform(0, _JITTER, workload.clients))).tolist()
    span = max(ready) - min(ready)
    if system == "ours":
        how = System(system, warm=True, eager=True, hop=NO_HOP)
        # as many as are there at once
        each = update_bytes * (costs.add_seconds_per_byte + 1 / LINK_BYTES_PER_SECOND)
        at_once = min(workload.clients, max(1, math.ceil(workload.clients * each / span)))
        gateways, policy = [Gateway(str(number), CAPACITY) for number in range(NODES)], Policy.BEST_FIT
    else:
        hop = costs.hops["grpc" if system == "SF" else "broker-sidecar"]
        how = System(system, warm=system == "SF", eager=system == "SF", hop=hop)
        at_once = workload.clients
        # one of the nodes is the top, and has no clients
        gateways, policy = [Gateway(str(number), math.inf) for number in range(NODES - 1)], Policy.LEAST_CONNECTION
    if policy is Policy.BEST_FIT:
        made = plan(at_once, gateways, policy)
        used, top = [adder.gateway for adder in made.adders], made.adders[0].gateway
    else:
        used, top = list(range(NODES - 1)), NODES - 1
    arrivals = [(time, used[number % len(used)]) for number, time in enumerate(ready)]
    load, wanted = Load(0.0), [(0.0, 1)]
    load.added(update_bytes * costs.add_seconds_per_byte)

    def came(now: float, _gateway: int) -> None:
        load.arrived(now)
        count = workers_wanted(load.queue(now), MOST_WORKERS)
        if count != wanted[-1][1]:
            wanted.append((now, count))

    network = Network(LINK_BYTES_PER_SECOND, LINK_BYTES_PER_SECOND)
    found = add_up(how, costs, network, update_bytes, arrivals, top, came, from_clients=True)
    ours = tuple(wanted) if system == "ours" else ()
    return PlayedRound(found, found.seconds - max(ready), tuple(ready), ours)


@dataclasses.dataclass(frozen=True, slots=True)
class ToAccuracy:
    """Of a workload and a system.

    Attributes:
        workload: which.
        system: which.
        rounds: that the model needs.
        seconds: of a round, the mean.
        after_last: of those, after the last client's training.
        cpu_seconds: of a round, the mean.
        reserved_seconds: of a round: workers times the time for which they were there.
    """

    workload: Workload
    system: str
    rounds: int
    seconds: float
    after_last: float
    cpu_seconds: float
    reserved_seconds: float

    @property
    def hours(self) -> float:
        """To the goal."""
        return self.rounds * self.seconds / 3600

    @property
    def cpu_hours(self) -> float:
        """To the goal."""
        return self.rounds * self.cpu_seconds / 3600


def figure9(workload: Workload, costs: Costs, update_bytes: int, rounds: int, played: int) -> list[ToAccuracy]:
    """Of all systems: the same rounds, whose clients are ready at the same times."""
    found = []
    for system in SYSTEMS:
        plays = [play_round(workload, system, costs, update_bytes, seed) for seed in range(played)]
        sums = [each.sum for each in plays]
        found.append(
            ToAccuracy(
                workload,
                system,
                rounds,
                statistics.mean(each.seconds for each in sums),
                statistics.mean(each.after_last for each in plays),
                statistics.mean(each.cpu_seconds for each in sums),
                statistics.mean(each.active(0.0, each.sum.seconds) * each.sum.seconds for each in plays),
            )
        )
    return found


def figure9_table(found: Sequence[ToAccuracy], update_bytes: int) -> DataTable:
    """For people."""
    workload = found[0].workload
    title = (
        f"Figure 9: {workload.model}, {update_bytes / 1e6:.0f} MB, {workload.clients} clients, asleep 0 to "
        f"{workload.sleep:g} s, training {workload.training:g} s; {found[0].rounds} rounds to 70 %"
    )
    ours = found[0]
    rows = []
    for each in found:
        hours, cpu_hours = workload.stated[each.system]
        rows.append(
            (
                each.system,
                f"{each.seconds:.1f} s",
                f"{each.after_last:.2f} s",
                f"{each.hours:.2f} h",
                f"{each.hours / ours.hours:.2f}",
                hours,
                f"{each.cpu_seconds:.1f} s",
                f"{each.cpu_seconds / ours.cpu_seconds:.2f}",
                f"{each.reserved_seconds:.0f} s",
                cpu_hours,
            )
        )
    columns = ("system", "a round", "after last", "to 70 %", "× ours", "paper", "CPU a round", "× ours", "reserved")
    return DataTable(title, (*columns, "paper"), rows)


def figure9_document(found: Sequence[ToAccuracy]) -> list[dict[str, object]]:
    """For programs."""
    return [
        {
            **dataclasses.asdict(each),
            "workload": each.workload.model,
            "hours": each.hours,
            "cpu_hours": each.cpu_hours,
            "paper_hours": each.workload.stated[each.system][0],
            "paper_cpu_hours": each.workload.stated[each.system][1],
        }
        for each in found
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Of a round.

    Attributes:
        begin: seconds.
        arrivals: clients that were ready in it.
        active: workers that were there, on the average, of each system.
    """

    begin: float
    arrivals: int
    active: dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A round of a workload.

    Attributes:
        workload: which.
        windows: from its beginning to the last system's end.
        seconds: of each.
        cpu_seconds: of the round, of each system.
    """

    workload: Workload
    windows: tuple[Window, ...]
    seconds: float
    cpu_seconds: dict[str, float]


def figure10(workload: Workload, costs: Costs, update_bytes: int, seconds: float, seed: int) -> Series:
    """One round by every system, in windows of so many seconds."""
    plays = {system: play_round(workload, system, costs, update_bytes, seed) for system in SYSTEMS}
    ready = plays["ours"].ready
    end = max(each.sum.seconds for each in plays.values())
    windows = []
    for number in range(math.ceil(end / seconds)):
        begin = number * seconds
        came = sum(begin <= each < begin + seconds for each in ready)
        active = {
            system: each.active(begin, begin + seconds) if begin < each.sum.seconds else 0.0
            for system, each in plays.items()
        }
        windows.append(Window(begin, came, active))
    cpu = {system: each.sum.cpu_seconds for system, each in plays.items()}
    return Series(workload, tuple(windows), seconds, cpu)


def figure10_table(series: Series) -> DataTable:
    """For people; the paper's text has no values of this figure."""
    workload = series.workload
    cpu = ", ".join(f"{system} {seconds:.1f} s" for system, seconds in series.cpu_seconds.items())
    title = f"Figure 10: {workload.model}, {workload.clients} clients; CPU of the round: {cpu}; paper: {NOT_STATED}"
    rows = [
        (
            f"{window.begin:.0f} to {window.begin + series.seconds:.0f} s",
            f"{60 * window.arrivals / series.seconds:.0f}",
            *(f"{window.active[system]:.1f}" for system in SYSTEMS),
        )
        for window in series.windows
    ]
    return DataTable(title, ("when", "arrivals a minute", *(f"active, {system}" for system in SYSTEMS)), rows)
