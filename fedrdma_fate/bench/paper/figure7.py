"""Figure 7: communication and end-to-end time of full GPT-2 tuning, by mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedrdma_fate.bench.paper.evaluation import (
    Evaluation,
    factor_cell,
    paper_cell,
    per_cent_cell,
    saved,
    seconds_cell,
)
from fedrdma_fate.bench.paper.networks import Lab
from fedrdma_fate.bench.paper.published import (
    COMMUNICATION_FACTOR,
    COMMUNICATION_SAVED_E,
    EPOCHS,
    ROUND_SECONDS_TCP,
    TOTAL_FACTOR,
    TOTAL_SAVED_E,
    TRAFFIC_GB,
)
from fedrdma_fate.bench.paper.rounds import TRANSFERS, Round, model_bytes, round_of
from fedrdma_fate.bench.plots import Series, stacked_plot
from fedrdma_fate.bench.report import DataTable, Plot
from fedrdma_fate.bench.wan.wan_link import WanLink

ROWS = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")


@dataclasses.dataclass(frozen=True, slots=True)
class Stated:
    """What the paper's text says of a mode; None where it says nothing."""

    communication: float | None = None
    communication_saved: float | None = None
    total_saved: float | None = None


PAPER = {
    "grpc": Stated(communication=ROUND_SECONDS_TCP),
    "fedrdma": Stated(
        communication_saved=round(1 - 1 / COMMUNICATION_FACTOR, 3), total_saved=round(1 - 1 / TOTAL_FACTOR, 3)
    ),
    "fedrdma-e": Stated(communication_saved=COMMUNICATION_SAVED_E, total_saved=TOTAL_SAVED_E),
    "fedrdma-x": Stated(),
}


def figure7(lab: Lab, link: WanLink, sample_bytes: int, repeats: int, compute: float) -> Evaluation:
    """Measure a payload by every mode, and make rounds of it.

    Args:
        lab: where.
        link: the WAN.
        sample_bytes: of the payload that is measured.
        repeats: transfers after the first.
        compute: seconds of computation in a round.
    """
    measured = lab.measure(ROWS, link, sample_bytes, repeats)
    rounds = {name: round_of(one, sample_bytes, compute) for name, one in measured.items()}
    return Evaluation(
        name="figure7",
        title="Figure 7: communication and end-to-end time of full GPT-2 tuning",
        tables=[_table(rounds, lab.where(link)), _on_the_papers_base(rounds)],
        notes=_notes(sample_bytes, compute),
        document={
            **lab.to_document(),
            "link": link.to_document(),
            "sample_bytes": sample_bytes,
            "model_bytes": model_bytes(),
            "transfers_of_a_round": TRANSFERS,
            "compute_seconds": compute,
            "rows": [_document_row(name, rounds) for name in rounds],
        },
        failures=lab.failures,
        draw=lambda: _plots(rounds),
    )


def _table(rounds: Mapping[str, Round], where: str) -> DataTable:
    columns = ("", "communication", "paper's", "saved", "paper's", "end to end", "saved", "paper's")
    return DataTable(f"A round over {where}; virtual time", columns, [_cells(name, rounds) for name in ROWS])


def _cells(name: str, rounds: Mapping[str, Round]) -> tuple[str, ...]:
    one, base, paper = rounds.get(name), rounds.get("grpc"), PAPER[name]
    own = name != "grpc"
    return (
        name,
        seconds_cell(_communication(one)),
        paper_cell(paper.communication, " s"),
        per_cent_cell(saved(_communication(base), _communication(one))) if own else "",
        _share(paper.communication_saved) if own else "",
        seconds_cell(_total(one)),
        per_cent_cell(saved(_total(base), _total(one))) if own else "",
        _share(paper.total_saved) if own else "",
    )


def _communication(one: Round | None) -> float | None:
    return None if one is None else one.communication


def _total(one: Round | None) -> float | None:
    return None if one is None else one.total


def _on_the_papers_base(rounds: Mapping[str, Round]) -> DataTable:
    """Ours against the paper's own gRPC, which spent what virtual time does not show."""
    columns = ("beside the paper's 45.9 s", "communication", "faster", "end to end saved")
    rows = [_based_cells(name, one) for name, one in rounds.items() if name != "grpc"]
    return DataTable("The same rounds, compared with the round that the paper measured for gRPC", columns, rows)


def _based_cells(name: str, one: Round) -> tuple[str, ...]:
    return (
        name,
        seconds_cell(one.communication),
        factor_cell(ROUND_SECONDS_TCP / one.communication),
        per_cent_cell(saved(ROUND_SECONDS_TCP + one.compute, one.total)),
    )


def _share(value: float | None) -> str:
    return paper_cell(None if value is None else round(value * 100, 1), " %")


def _document_row(name: str, rounds: Mapping[str, Round]) -> dict[str, Any]:
    one, base, paper = rounds[name], rounds.get("grpc"), PAPER[name]
    return {
        "name": name,
        "communication_seconds": one.communication,
        "total_seconds": one.total,
        "sample_seconds": list(one.sample_seconds),
        "communication_saved": saved(_communication(base), one.communication),
        "total_saved": saved(_total(base), one.total),
        "paper_communication_seconds": paper.communication,
        "paper_communication_saved": paper.communication_saved,
        "paper_total_saved": paper.total_saved,
    }


def _notes(sample_bytes: int, compute: float) -> list[str]:
    total = TRANSFERS * model_bytes() * EPOCHS
    return [
        f"A round sends {TRANSFERS} × {model_bytes():,} bytes; {sample_bytes:,} were measured, the rest is in "
        f"proportion. Computation: {compute:.1f} s, a parameter.",
        f"{EPOCHS} such rounds send {total / 2**30:.2f} GiB; the paper says approximately {TRAFFIC_GB} GB.",
        f"The paper gives factors for FedRDMA, {COMMUNICATION_FACTOR}× and {TOTAL_FACTOR}×, shown as shares. With "
        f"communication {COMMUNICATION_FACTOR}× faster and {compute:.1f} s of computation the whole becomes "
        f"{(ROUND_SECONDS_TCP + compute) / (ROUND_SECONDS_TCP / COMMUNICATION_FACTOR + compute):.2f}× faster.",
        "CPU work takes no virtual time: what gRPC spends on copies and coding is in the paper's figure, not in ours.",
    ]


def _plots(rounds: Mapping[str, Round]) -> list[Plot]:
    compute = Series("computation", [one.compute for one in rounds.values()])
    communication = Series("communication", [one.communication for one in rounds.values()])
    png = stacked_plot("A round of full GPT-2 tuning", "seconds", list(rounds), [compute, communication])
    return [Plot("paper-figure7", "Computation and communication of a round, by mode.", png)]
