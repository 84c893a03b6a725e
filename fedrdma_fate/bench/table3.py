"""The paper's Table 3: what travels for each LoRA rank, and in how many pieces, next to what we do.

Sizes come from a GPT-2 and its LoRA adapters really built (without memory for their values), piece counts from the
planner that cuts real transfers.
"""

from __future__ import annotations

import argparse
import dataclasses
import decimal
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from fedrdma_fate.core.tuning import LinkTraits, plan_transfer
from fedrdma_fate.wire.errors import ErrorCode, FateError

VALUE_BYTES = 8
"""FATE aggregates in float64."""

PAPER_LINK = LinkTraits(rate_bps=10e9)
"""The link of the paper's evaluation."""


@dataclasses.dataclass(frozen=True, slots=True)
class PaperRow:
    """One column of the paper's Table 3; what it prints as MB are units of 2**20 bytes."""

    rank: int
    mebibytes: float
    chunks: int
    link_enable: bool


PAPER_TABLE_3 = (
    PaperRow(4, 1.1, 1, False),
    PaperRow(8, 2.3, 2, True),
    PaperRow(16, 4.5, 4, True),
    PaperRow(32, 9.0, 5, True),
    PaperRow(64, 18.0, 7, True),
    PaperRow(128, 36.0, 12, True),
    PaperRow(256, 72.0, 21, True),
    PaperRow(512, 144.0, 39, True),
    PaperRow(1024, 288.0, 75, True),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a model.

    Attributes:
        parameters: all of them.
        trainable: those that training changes.
        trainable_arrays: in how many arrays these are.
    """

    parameters: int
    trainable: int
    trainable_arrays: int


@dataclasses.dataclass(frozen=True, slots=True)
class Table3Row:
    """One rank: ours next to the paper's.

    Attributes:
        rank: LoRA rank.
        payload_bytes: the adapters' values as float64.
        mebibytes: the same in 2**20 bytes, to one decimal.
        data_chunks: chunks of the payload without Link-Enable.
        link_enable: whether a small chunk goes first.
        pieces: RDMA writes of one fedrdma-e transfer: data chunks, the Link-Enable chunk and the header.
        paper: the paper's column.
        remark: why the count differs, empty where it does not.
    """

    rank: int
    payload_bytes: int
    mebibytes: float
    data_chunks: int
    link_enable: bool
    pieces: int
    paper: PaperRow
    remark: str

    @property
    def agrees(self) -> bool:
        """Size and Link-Enable as in the paper, and its count to within one."""
        return (
            self.mebibytes == self.paper.mebibytes
            and self.link_enable == self.paper.link_enable
            and abs(self.pieces - self.paper.chunks) <= 1
        )


def count_parameters(model: Path | None, lora_rank: int | None) -> ParameterCount:
    """Build a GPT-2 on the meta device (no memory for values) and count.

    Args:
        model: directory with a config.json; None for GPT2Config's own 124M parameters.
        lora_rank: rank of LoRA adapters on the attention projections (c_attn), None for full tuning.

    Raises:
        FateError: FATE_ABSENT when transformers or peft is not installed.
    """
    try:
        import peft
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise FateError(
            ErrorCode.FATE_ABSENT,
            f"{error.name} is not installed.",
            "Install what FATE-LLM needs (docs/two-fate-flows.md, step 0).",
        ) from error
    config = GPT2Config() if model is None else GPT2Config.from_pretrained(model)
    with torch.device("meta"):
        built: Any = GPT2LMHeadModel(config)
        if lora_rank is not None:
            adapters = peft.LoraConfig(
                task_type="CAUSAL_LM", r=lora_rank, target_modules=["c_attn"], fan_in_fan_out=True
            )
            built = peft.get_peft_model(built, adapters)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in built.parameters()]
    trainable = [size for size, required in sizes if required]
    return ParameterCount(sum(size for size, _ in sizes), sum(trainable), len(trainable))


def build_table3() -> list[Table3Row]:
    """Every rank of the paper's table.

    Raises:
        FateError: FATE_ABSENT, see `count_parameters`.
    """
    return [compare_rank(paper, count_parameters(None, paper.rank).trainable) for paper in PAPER_TABLE_3]


def compare_rank(paper: PaperRow, parameters: int) -> Table3Row:
    """Our plan for this many parameters, next to the paper's column."""
    payload_bytes = parameters * VALUE_BYTES
    planned = plan_transfer("fedrdma-e", payload_bytes, None, "auto", PAPER_LINK)
    plain = plan_transfer("fedrdma-e", payload_bytes, None, "never", PAPER_LINK)
    mebibytes = decimal.Decimal(payload_bytes) / 2**20
    return Table3Row(
        rank=paper.rank,
        payload_bytes=payload_bytes,
        mebibytes=float(mebibytes.quantize(decimal.Decimal("0.1"), rounding=decimal.ROUND_HALF_UP)),
        data_chunks=plain.count,
        link_enable=planned.enable_bytes > 0,
        pieces=planned.count + 1,
        paper=paper,
        remark=_explain(planned.count + 1 - paper.chunks, payload_bytes % plain.chunk_bytes == 0),
    )


def _explain(difference: int, whole_chunks: bool) -> str:
    if difference == 0:
        return ""
    if difference > 0:
        return "the paper's count leaves the header out where the payload is one chunk; ours is a write of its own"
    if whole_chunks:
        return "the values fill whole chunks; the paper's count fits a payload that is slightly larger than its values"
    return "not explained"


def table3_document(rows: Sequence[Table3Row]) -> dict[str, object]:
    """The table for `--json`."""
    return {"rows": [{**dataclasses.asdict(row), "agrees": row.agrees} for row in rows]}


def table3_view(rows: Sequence[Table3Row]) -> Table:
    """The table for people."""
    table = Table(
        title="LoRA on GPT-2's c_attn: payload and pieces per transfer, beside the paper's Table 3",
        caption="Pieces: data chunks of 4 MiB + Link-Enable chunk + header. Sizes in MiB, which the paper calls MB.",
        box=rich.box.SIMPLE_HEAD,
    )
    for header in ("Rank", "Payload, bytes", "MiB", "Paper", "Data chunks", "Pieces", "Paper", "Link-Enable", "Paper"):
        table.add_column(header, justify="right")
    table.add_column("Where we differ, and why")
    for row in rows:
        table.add_row(
            str(row.rank),
            f"{row.payload_bytes:,}",
            f"{row.mebibytes:.1f}",
            f"{row.paper.mebibytes:.1f}",
            str(row.data_chunks),
            str(row.pieces),
            str(row.paper.chunks),
            "yes" if row.link_enable else "no",
            "yes" if row.paper.link_enable else "no",
            row.remark,
        )
    return table


def print_table3(console: Console, *, as_json: bool = False) -> None:
    """Build the table and print it.

    Raises:
        FateError: FATE_ABSENT, see `count_parameters`.
    """
    rows = build_table3()
    if as_json:
        console.print_json(json.dumps(table3_document(rows)))
    else:
        console.print(table3_view(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="LoRA payload sizes and chunk counts beside the paper's Table 3.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    print_table3(Console(), as_json=parser.parse_args().json)
