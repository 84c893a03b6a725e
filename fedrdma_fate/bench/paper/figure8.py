"""Figure 8: communication time for LoRA adapters of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedrdma_fate.bench.paper.evaluation import Evaluation, factor_cell, seconds_cell
from fedrdma_fate.bench.paper.networks import Lab
from fedrdma_fate.bench.paper.published import MOST_RANKS_SAVED, NOT_STATED, RANK_16_FACTOR
from fedrdma_fate.bench.payload import named_payload
from fedrdma_fate.bench.plots import Series, bar_plot
from fedrdma_fate.bench.report import DataTable, Plot
from fedrdma_fate.bench.wan.results import WanMeasurement
from fedrdma_fate.bench.wan.wan_link import WanLink

_AGAINST_GRPC = ("fedrdma-e", "fedrdma-x")

Measured = Mapping[int, Mapping[str, WanMeasurement]]


def rank_bytes(rank: int) -> int:
    """LoRA adapters on GPT-2's c_attn as float64."""
    return named_payload(f"lora-{rank}").total_bytes


def figure8(lab: Lab, link: WanLink, ranks: Sequence[int], rows: Sequence[str], repeats: int) -> Evaluation:
    """Measure every rank's payload, in full.

    Args:
        lab: where.
        link: the WAN.
        ranks: of LoRA.
        rows: of `bench wan`.
        repeats: transfers after the first.

    Raises:
        ConfigError: CONFIG_BAD_VALUE: there is no row of a name.
    """
    measured = {rank: lab.measure(rows, link, rank_bytes(rank), repeats) for rank in ranks}
    return Evaluation(
        name="figure8",
        title="Figure 8: communication time for LoRA ranks",
        tables=[
            _times(f"First transfer of a connection over {lab.where(link)}; virtual time", measured, rows, first=True),
            _times("Later ones, medians", measured, rows, first=False),
            _gains(measured),
        ],
        notes=[
            "One transfer of the adapters from one site to the other; not scaled.",
            f"The paper's text says of FedRDMA: over {MOST_RANKS_SAVED:.0%} less in the majority of cases, that is "
            f"{1 / (1 - MOST_RANKS_SAVED):.1f} times as fast, and "
            f"{RANK_16_FACTOR}× for rank 16; the times of the figure are not stated.",
        ],
        document={
            **lab.to_document(),
            "link": link.to_document(),
            "rows": [_document_row(rank, one) for rank in ranks for one in measured[rank].values()],
        },
        failures=lab.failures,
        draw=lambda: _plots(measured, rows),
    )


def seconds_of(one: WanMeasurement | None, *, first: bool) -> float | None:
    """Of the first transfer, or the median of the later ones."""
    if one is None:
        return None
    return one.first.seconds if first else one.median_seconds


def _times(title: str, measured: Measured, names: Sequence[str], *, first: bool) -> DataTable:
    rows = [
        (
            f"{rank}",
            f"{rank_bytes(rank):,}",
            *(seconds_cell(seconds_of(by_name.get(name), first=first)) for name in names),
        )
        for rank, by_name in measured.items()
    ]
    return DataTable(title, ("rank", "bytes", *names), rows)


def _gains(measured: Measured) -> DataTable:
    modes = (f"{mode}, {which}" for mode in _AGAINST_GRPC for which in ("first", "later"))
    rows = [_gain_cells(rank, by_name) for rank, by_name in measured.items()]
    return DataTable("Times as fast as gRPC", ("rank", *modes, "paper's FedRDMA"), rows)


def _gain_cells(rank: int, by_name: Mapping[str, WanMeasurement]) -> tuple[str, ...]:
    base = by_name.get("grpc")
    cells = [_factor(base, by_name.get(mode), first=first) for mode in _AGAINST_GRPC for first in (True, False)]
    return (f"{rank}", *cells, f"{RANK_16_FACTOR}×" if rank == 16 else NOT_STATED)


def _factor(base: WanMeasurement | None, one: WanMeasurement | None, *, first: bool) -> str:
    slow, fast = seconds_of(base, first=first), seconds_of(one, first=first)
    return factor_cell(slow / fast if slow and fast else None)


def _document_row(rank: int, one: WanMeasurement) -> dict[str, Any]:
    return {
        "name": one.name,
        "rank": rank,
        "payload_bytes": rank_bytes(rank),
        "first_seconds": one.first.seconds,
        "seconds": one.median_seconds,
        "later_seconds": [transfer.seconds for transfer in one.later],
    }


def _plots(measured: Measured, names: Sequence[str]) -> list[Plot]:
    series = [Series(name, [seconds_of(measured[rank].get(name), first=False) for rank in measured]) for name in names]
    ranks = [str(rank) for rank in measured]
    png = bar_plot("LoRA adapters of each rank", "seconds", ranks, series, logarithmic=True)
    return [Plot("paper-figure8", "Communication time of later transfers, by rank and mode.", png)]
