"""Figures 4 and 7(c), measured: a round of eight trainers, by one aggregator, by leaves and a top, and by ours.

The aggregation of a round alone: from when all trainers have their updates until the sum is there. The paper's seconds
are those of rounds with their training, on nodes of 64 cores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fedrdma_fate.bench.aggregate import sum_of_all_at_once
from fedrdma_fate.bench.aggregate_hierarchy import all_over_grpc, tree
from fedrdma_fate.bench.aggregate_setting import AggregateRow, AggregateSetting, make_update
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.lifl.figure8 import NOT_STATED
from fedrdma_fate.bench.report import DataTable

UPDATES = 8
"""The paper's trainers."""

SYSTEMS = {
    "ours": ("slots: through gateways, one worker", "44.9 s a round"),
    "WH": ("four leaves and a top, gRPC", "57 s a round"),
    "NH": ("one aggregator, gRPC", "59.8 s a round"),
    "tree": ("four leaves and a top, in shared memory, no network", NOT_STATED),
}
"""Of each, what it is, and what the paper's text says: of a whole round, with training."""


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """Of one system.

    Attributes:
        system: its name.
        seconds: from all updates at their trainers to the sum.
        cpu_seconds: of all processes, those of the trainers included.
        waiting_bytes: the most that lay there of updates and sums; see `AggregateRow`.
        times_ours: its seconds by ours; None where ours was not measured.
        cpu_times_ours: its processor time, likewise.
        paper: what the text states.
    """

    system: str
    seconds: float
    cpu_seconds: float
    waiting_bytes: int
    times_ours: float | None
    cpu_times_ours: float | None
    paper: str


def figure4(setting: AggregateSetting, tell: Callable[[str], object]) -> tuple[list[Round], dict[str, str]]:
    """Measure a round by each; what was measured, and why others were not."""
    rows: dict[str, AggregateRow] = {}
    failures = {}
    for system in SYSTEMS:
        tell(f"a round by {system}")
        try:
            rows[system] = _row(setting, system)
        except RowError as error:
            failures[system] = str(error)
    ours = rows.get("ours")
    is_the_papers = (setting.model, setting.updates) == ("resnet152", UPDATES)
    found = [
        Round(
            system,
            row.seconds,
            row.cpu_seconds,
            row.waiting_bytes,
            None if ours is None else row.seconds / ours.seconds,
            None if ours is None else row.cpu_seconds / ours.cpu_seconds,
            SYSTEMS[system][1] if is_the_papers else NOT_STATED,
        )
        for system, row in rows.items()
    ]
    return found, failures


def _row(setting: AggregateSetting, system: str) -> AggregateRow:
    update = make_update(setting)
    match system:
        case "ours":
            return sum_of_all_at_once(setting, update)
        case "tree":
            return tree(setting, update)
        case _:
            return all_over_grpc(setting, update, leaves=system == "WH")


def to_table(found: Sequence[Round], setting: AggregateSetting) -> DataTable:
    """For people."""
    title = (
        f"Figures 4 and 7(c): {setting.updates} trainers, {setting.model}, {setting.update_bytes / 1e6:.0f} MB each, "
        "all at once; aggregation alone, the paper's with training"
    )
    rows = [
        (
            f"{each.system}: {SYSTEMS[each.system][0]}",
            f"{each.seconds:.2f} s",
            times(each.times_ours),
            f"{each.cpu_seconds:.2f} s",
            times(each.cpu_times_ours),
            f"{each.waiting_bytes / 1e6:.0f} MB",
            each.paper,
        )
        for each in found
    ]
    return DataTable(title, ("system", "sum after", "× ours", "CPU", "× ours", "most waiting", "paper"), rows)


def times(value: float | None) -> str:
    """A ratio for people."""
    return "" if value is None else f"{value:.2f}"
