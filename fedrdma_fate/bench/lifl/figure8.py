"""Figure 8: what placement, warm workers and eager addition bring, one after the other. And the time of a placement."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from fedrdma_fate.bench.lifl.costs import Costs
from fedrdma_fate.bench.lifl.hierarchy import Network, Sum, System, add_up
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.core.planning import Gateway, Load, Policy, place, plan

NOT_STATED = "not stated"

NODES = 5
"""The paper's."""
CAPACITY = 20
"""Updates at once of each, the paper's."""
UPDATES = (20, 60, 100)
"""The paper's, which are all there at once."""
LINK_BYTES_PER_SECOND = 10e9 / 8
"""Of the paper's nodes."""
STATED_SECONDS = 4.2
"""That one update takes between two of them, as the paper says."""

ROWS = (
    (Policy.LEAST_CONNECTION, System("SL-H: least connection, cold, lazy", warm=False, eager=False)),
    (Policy.BEST_FIT, System("placement: best fit", warm=False, eager=False)),
    (Policy.BEST_FIT, System("and planned: warm workers", warm=True, eager=False)),
    (Policy.BEST_FIT, System("and eager: all of ours", warm=True, eager=True)),
)
"""Each with what the one before has. The paper's 2 and 3 are one here: workers have no roles that one could reuse."""

_STATED = {
    (0, 20): "5 nodes",
    (0, 60): "5 nodes",
    (0, 100): "5 nodes",
    (1, 20): "2.1 ×, 1 node",
    (1, 60): "1.13 ×, 3 nodes",
    (1, 100): "5 nodes",
    (2, 20): "1.22 ×",
    (2, 60): "1.22 ×",
    (2, 100): "1.22 ×",
    (3, 20): "1.2 ×",
    (3, 60): "1.2 ×",
    (3, 100): "1.2 ×",
}
"""By row and updates, sooner than the row before; of the last two without saying for how many updates."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A row at a number of updates.

    Attributes:
        between: what a transfer between nodes is: `stated` or `link`.
        updates: how many.
        row: its number in ROWS.
        sum: how it went.
        sooner: times than the row before; None for the first.
    """

    between: str
    updates: int
    row: int
    sum: Sum
    sooner: float | None

    @property
    def stated(self) -> str:
        """By the paper's text."""
        return _STATED.get((self.row, self.updates), NOT_STATED)


def figure8(costs: Costs, update_bytes: int, counts: Sequence[int] = UPDATES) -> list[Step]:
    """All rows, with a transfer as the paper says it takes, and by the links' rate."""
    steps = []
    networks = {
        "stated": Network(LINK_BYTES_PER_SECOND, update_bytes / STATED_SECONDS),
        "link": Network(LINK_BYTES_PER_SECOND, LINK_BYTES_PER_SECOND),
    }
    gateways = [Gateway(f"node {number + 1}", CAPACITY) for number in range(NODES)]
    for between, network in networks.items():
        for count in counts:
            before: Sum | None = None
            for row, (policy, system) in enumerate(ROWS):
                made = plan(count, gateways, policy)
                arrivals = [(0.0, gateway) for gateway in made.placement.gateway_of]
                found = add_up(system, costs, network, update_bytes, arrivals, made.adders[0].gateway)
                sooner = None if before is None else before.seconds / found.seconds
                steps.append(Step(between, count, row, found, sooner))
                before = found
    return steps


def to_table(steps: Sequence[Step], between: str, update_bytes: int) -> DataTable:
    """For people: those with this transfer between nodes."""
    a_transfer = f"{STATED_SECONDS} s, as the paper states" if between == "stated" else "by links of 10 Gbit/s"
    title = f"Figure 8: updates of {update_bytes / 1e6:.0f} MB, {NODES} nodes of {CAPACITY}; between nodes {a_transfer}"
    rows = [
        (
            f"{step.updates}, {ROWS[step.row][1].name}",
            f"{step.sum.seconds:.2f} s",
            "" if step.sooner is None else f"{step.sooner:.2f} ×",
            str(step.sum.gateways),
            str(step.sum.started),
            f"{step.sum.cpu_seconds:.2f} s",
            step.stated,
        )
        for step in steps
        if step.between == between
    ]
    return DataTable(title, ("updates, row", "sum after", "sooner", "nodes", "started", "CPU", "paper"), rows)


def to_document(steps: Sequence[Step]) -> list[dict[str, object]]:
    """For programs."""
    return [
        {
            "between": step.between,
            "updates": step.updates,
            "row": ROWS[step.row][1].name,
            "seconds": step.sum.seconds,
            "sooner": step.sooner,
            "nodes": step.sum.gateways,
            "started": step.sum.started,
            "cpu_seconds": step.sum.cpu_seconds,
            "paper": step.stated,
        }
        for step in steps
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementTime:
    """What one took.

    Attributes:
        clients: that were placed.
        policy: how.
        seconds: the median.
        stated: by the paper's text.
    """

    clients: int
    policy: str
    seconds: float
    stated: str


def placement_times(clients: int, repeats: int = 9) -> list[PlacementTime]:
    """Time placements on as many gateways of CAPACITY as it takes, and one estimate."""
    gateways = [Gateway(str(number), CAPACITY) for number in range(-(-clients // CAPACITY))]
    found = []
    for policy in Policy:
        took = []
        for _ in range(repeats):
            began = time.perf_counter()
            place(clients, gateways, policy)
            took.append(time.perf_counter() - began)
        stated = "< 17 ms" if policy is Policy.BEST_FIT and clients == 10_000 else NOT_STATED
        found.append(PlacementTime(clients, policy.value, sorted(took)[repeats // 2], stated))
    load, estimates = Load(0.0), 1000
    began = time.perf_counter()
    for number in range(estimates):
        load.arrived(number * 0.5)
        load.added(0.01)
        load.queue(number * 0.5)
    each = (time.perf_counter() - began) / estimates
    return [*found, PlacementTime(1, "an estimate (EWMA)", each, "0.2 ms")]
