"""Figure 1: communication beside computation in full GPT-2 tuning, by bandwidth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedrdma_fate.bench.paper.evaluation import (
    NOT_MEASURED,
    Evaluation,
    factor_cell,
    per_cent_cell,
    seconds_cell,
)
from fedrdma_fate.bench.paper.networks import PAPER_MODES, Experiment
from fedrdma_fate.bench.paper.published import (
    COMMUNICATION_SHARE_TCP,
    LARGEST_RATIO,
    NOT_STATED,
    ROUND_SECONDS_TCP,
)
from fedrdma_fate.bench.paper.rounds import TRANSFERS, Round, model_bytes, round_of
from fedrdma_fate.bench.plots import Series, stacked_plot
from fedrdma_fate.bench.report import DataTable, Plot
from fedrdma_fate.bench.wan.wan_link import WanLink

ROWS = ("grpc", "fedrdma-e", "fedrdma-x")
_PAPER_RATE = 10**10
"""Bits a second: the only rate at which the paper states what a round takes."""
PAPER_MODES_FROM_BPS = 10**9
"""Where the paper's begin: far below, a chunk of theirs takes longer than a device waits for its acknowledgement."""

Rounds = Mapping[str, Round]


def figure1(
    experiment: Experiment, links: Sequence[WanLink], sample_bytes: int, repeats: int, compute: float
) -> Evaluation:
    """Measure a payload at every bandwidth, and make rounds of it.

    Args:
        experiment: where it is measured.
        links: one for each bandwidth.
        sample_bytes: of the payload that is measured.
        repeats: transfers after the first.
        compute: seconds of computation in a round.
    """
    measured = [(link, _rounds(experiment, link, sample_bytes, repeats, compute)) for link in links]
    return Evaluation(
        name="figure1",
        title="Figure 1: communication and computation of a round of full GPT-2 tuning",
        tables=[_table(measured, experiment.network.name)],
        notes=_notes(sample_bytes, compute),
        document={
            **experiment.to_document(),
            "sample_bytes": sample_bytes,
            "model_bytes": model_bytes(),
            "transfers_of_a_round": TRANSFERS,
            "compute_seconds": compute,
            "rows": [_document_row(link, name, one) for link, rounds in measured for name, one in rounds.items()],
        },
        failures=experiment.failures,
        draw=lambda: _plots(measured),
    )


def rows_over(link: WanLink) -> Sequence[str]:
    """What is measured over a link."""
    return [name for name in ROWS if link.rate_bps >= PAPER_MODES_FROM_BPS or name not in PAPER_MODES]


def _rounds(experiment: Experiment, link: WanLink, sample_bytes: int, repeats: int, compute: float) -> Rounds:
    measured = experiment.measure(rows_over(link), link, sample_bytes, repeats)
    return {name: round_of(one, sample_bytes, compute) for name, one in measured.items()}


def _table(measured: Sequence[tuple[WanLink, Rounds]], network: str) -> DataTable:
    columns = ("link, mode", "communication", "the paper's", "its share", "the paper's", "over computation")
    rows = [_cells(link, name, rounds.get(name)) for link, rounds in measured for name in rows_over(link)]
    return DataTable(f"A round, network {network}; virtual time", columns, rows)


def _cells(link: WanLink, name: str, one: Round | None) -> tuple[str, ...]:
    stated = name == "grpc" and link.rate_bps == _PAPER_RATE
    return (
        f"{link.rate_text}, {name}",
        seconds_cell(one.communication if one else None),
        f"{ROUND_SECONDS_TCP} s" if stated else NOT_STATED,
        per_cent_cell(one.share if one else None),
        per_cent_cell(COMMUNICATION_SHARE_TCP) if stated else NOT_STATED,
        factor_cell(one.communication / one.compute) if one and one.compute else NOT_MEASURED,
    )


def _document_row(link: WanLink, name: str, one: Round) -> dict[str, Any]:
    stated = name == "grpc" and link.rate_bps == _PAPER_RATE
    return {
        "name": name,
        "link": link.to_document(),
        "communication_seconds": one.communication,
        "total_seconds": one.total,
        "sample_seconds": list(one.sample_seconds),
        "communication_share": one.share,
        "paper_communication_seconds": ROUND_SECONDS_TCP if stated else None,
        "paper_communication_share": COMMUNICATION_SHARE_TCP if stated else None,
    }


def _notes(sample_bytes: int, compute: float) -> list[str]:
    slowest = TRANSFERS * model_bytes() * 8 / (LARGEST_RATIO * compute) if compute else 0.0
    return [
        f"A round sends {TRANSFERS} × {model_bytes():,} bytes; {sample_bytes:,} were measured, the rest is in "
        f"proportion. Computation: {compute:.1f} s, a parameter.",
        f"The paper's {LARGEST_RATIO}× at its lowest bandwidth, which its text does not name, is a goodput of "
        f"{slowest / 1e6:.1f} Mbit/s with this computation.",
    ]


def _plots(measured: Sequence[tuple[WanLink, Rounds]]) -> list[Plot]:
    bars = [(f"{link.rate_text} {name}", one) for link, rounds in measured for name, one in rounds.items()]
    compute = Series("computation", [one.compute for _, one in bars])
    communication = Series("communication", [one.communication for _, one in bars])
    title = "A round of full GPT-2 tuning"
    png = stacked_plot(title, "seconds", [label for label, _ in bars], [compute, communication])
    return [Plot("paper-figure1", "Computation and communication of a round, by bandwidth and mode.", png)]
