"""Table 4: what it costs to transfer 1 GB: memory beyond the payload, time, CPU, energy.

No single run shows all of it: virtual time has no CPU, and loopback has no WAN. So time comes from the testbed, memory
and CPU from real processes on loopback, and energy is an estimate made of both.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrdma_fate.bench.paper.evaluation import (
    NOT_MEASURED,
    Evaluation,
    paper_cell,
    seconds_cell,
)
from fedrdma_fate.bench.paper.networks import Experiment
from fedrdma_fate.bench.paper.published import NOT_STATED, RDMA_CARD_WATTS, STANDARD_CARD_WATTS, TABLE_4
from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.report import DataTable, Plot, format_bytes
from fedrdma_fate.bench.results import Measurement
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.quantities import GIGABYTE

CPU_WATTS = 10.0
"""Of a busy core: an assumption, not a measurement."""

BASELINES = {
    "grpc": "grpc/grpc",
    "fedrdma": "fedrdma/tcp",
    "fedrdma-e": "fedrdma-e/tcp",
    "fedrdma-x": "fedrdma-x/tcp",
}
"""By mode, the row of `bench fate` that moves the payload by it between real processes."""

MeasureRows = Callable[[Sequence[str]], tuple[Sequence[Measurement], Mapping[str, str]]]
"""Measures rows of `bench fate`: what was measured, and why the others were not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Power:
    """Watts, as stated by whoever asks.

    Attributes:
        cpu: of a busy core.
        rdma_card: of the card, while a mode over RDMA transfers.
        standard_card: of the card, while gRPC does.
    """

    cpu: float = CPU_WATTS
    rdma_card: float = RDMA_CARD_WATTS
    standard_card: float = STANDARD_CARD_WATTS

    def card(self, mode: str) -> float:
        """Of the card that a mode uses."""
        return self.standard_card if mode == "grpc" else self.rdma_card


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Of 1 GB by one mode; None where it was not measured.

    Attributes:
        mode: of the transfer.
        seconds: over the WAN, virtual, scaled.
        cpu_seconds: of all processes of both sides on loopback, scaled.
        extra_bytes_sender: memory beyond the payload at the sample's size, not scaled.
        extra_bytes_receiver: the same.
    """

    mode: str
    seconds: float | None
    cpu_seconds: float | None
    extra_bytes_sender: int | None
    extra_bytes_receiver: int | None

    def card_joules(self, power: Power) -> float | None:
        """As the paper counts: the card's power while the transfer lasts."""
        return None if self.seconds is None else self.seconds * power.card(self.mode)

    def cpu_joules(self, power: Power) -> float | None:
        """Of busy cores."""
        return None if self.cpu_seconds is None else self.cpu_seconds * power.cpu


def table4(
    experiment: Experiment,
    link: WanLink,
    sample_bytes: int,
    repeats: int,
    loopback: MeasureRows,
    loopback_bytes: int,
    power: Power,
) -> Evaluation:
    """Measure every mode over the WAN and on loopback.

    Args:
        experiment: where the WAN is.
        link: the WAN.
        sample_bytes: of the payload over the WAN.
        repeats: transfers after the first.
        loopback: measures rows of `bench fate`.
        loopback_bytes: of its payload.
        power: for the estimate of energy.
    """
    over_wan = experiment.measure(list(BASELINES), link, sample_bytes, repeats)
    processes, failures = loopback(list(BASELINES.values()))
    experiment.failures.update({f"{name}, loopback": reason for name, reason in failures.items()})
    wan_seconds = {mode: one.median_seconds * GIGABYTE / sample_bytes for mode, one in over_wan.items()}
    by_baseline = {one.name: one for one in processes}
    costs = [
        _cost(mode, wan_seconds.get(mode), by_baseline.get(baseline), loopback_bytes)
        for mode, baseline in BASELINES.items()
    ]
    return Evaluation(
        name="table4",
        title="Table 4: the cost of transferring 1 GB",
        tables=[_table(costs, experiment.where(link), loopback_bytes), _energy(costs, power)],
        notes=_notes(sample_bytes, loopback_bytes, power),
        document={
            **experiment.to_document(),
            "link": link.to_document(),
            "sample_bytes": sample_bytes,
            "loopback_bytes": loopback_bytes,
            "watts": dataclasses.asdict(power),
            "rows": [_document_row(cost, power) for cost in costs],
        },
        failures=experiment.failures,
        draw=lambda: _plots(costs),
    )


def _cost(mode: str, seconds: float | None, one: Measurement | None, loopback_bytes: int) -> Cost:
    if one is None:
        return Cost(mode, seconds, None, None, None)
    cpu = statistics.median(one.cpu_seconds) * GIGABYTE / loopback_bytes
    return Cost(mode, seconds, cpu, one.extra_bytes_sender, one.extra_bytes_receiver)


def _table(costs: Sequence[Cost], where: str, loopback_bytes: int) -> DataTable:
    size = format_bytes(loopback_bytes)
    columns = (
        *("1 GB", "time, paper's", "testbed", "memory, paper's"),
        *(f"sender, {size} on loopback", "receiver", "CPU, loopback"),
    )
    return DataTable(f"Time over {where}, and memory beyond the payload", columns, [_cells(cost) for cost in costs])


def _cells(cost: Cost) -> tuple[str, ...]:
    paper = TABLE_4.get(cost.mode)
    return (
        cost.mode,
        paper_cell(paper.seconds if paper else None, " s"),
        seconds_cell(cost.seconds),
        paper_cell(paper.memory_mb if paper else None, " MB"),
        _bytes_cell(cost.extra_bytes_sender),
        _bytes_cell(cost.extra_bytes_receiver),
        seconds_cell(cost.cpu_seconds),
    )


def _bytes_cell(size: int | None) -> str:
    return NOT_MEASURED if size is None else format_bytes(size)


def _energy(costs: Sequence[Cost], power: Power) -> DataTable:
    columns = ("1 GB", "power, paper's", "energy, paper's", "card, estimate", "CPU, estimate")
    return DataTable("Energy: seconds times a stated power", columns, [_energy_cells(cost, power) for cost in costs])


def _energy_cells(cost: Cost, power: Power) -> tuple[str, ...]:
    paper = TABLE_4.get(cost.mode)
    return (
        cost.mode,
        f"{paper.watts} W" if paper else NOT_STATED,
        paper_cell(paper.joules if paper else None, " J"),
        _joules_cell(cost.card_joules(power)),
        _joules_cell(cost.cpu_joules(power)),
    )


def _joules_cell(joules: float | None) -> str:
    return NOT_MEASURED if joules is None else f"{joules:.1f} J"


def _document_row(cost: Cost, power: Power) -> dict[str, Any]:
    paper = TABLE_4.get(cost.mode)
    return {
        "name": cost.mode,
        **{key: value for key, value in dataclasses.asdict(cost).items() if key != "mode"},
        "estimated_card_joules": cost.card_joules(power),
        "estimated_cpu_joules": cost.cpu_joules(power),
        "paper": None if paper is None else dataclasses.asdict(paper),
    }


def _notes(sample_bytes: int, loopback_bytes: int, power: Power) -> list[str]:
    return [
        f"Time: virtual, in the testbed, {sample_bytes:,} bytes, median of later transfers, scaled to 1 GB.",
        f"Memory: of real processes, FATE's put to get through two gateways on loopback, transport tcp, "
        f"{loopback_bytes:,} bytes, as `fedrdma bench fate` counts it; not scaled. A card that writes by itself "
        "needs less CPU than tcp.",
        "CPU: of the same processes, both sides, scaled to 1 GB; it depends on the machine and what else it does.",
        f"Energy is an estimate: seconds over the WAN × {power.rdma_card:g} W (gRPC: {power.standard_card:g} W), the "
        f"paper's power of one card, which is how the paper's own energy comes out; CPU seconds × {power.cpu:g} W "
        "a core, an assumption.",
    ]


def _plots(costs: Sequence[Cost]) -> list[Plot]:
    modes = [cost.mode for cost in costs]
    paper = Series("the paper", [row.seconds if (row := TABLE_4.get(mode)) else None for mode in modes])
    ours = Series("testbed", [cost.seconds for cost in costs])
    png = bar_plot("1 GB", "seconds", modes, [paper, ours])
    return [Plot("paper-table4", "Seconds of 1 GB over the WAN, beside the paper's.", png)]
