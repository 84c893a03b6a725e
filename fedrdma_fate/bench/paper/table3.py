"""Table 3: what travels for each LoRA rank, in how many pieces."""

from __future__ import annotations

from fedrdma_fate.bench.paper.evaluation import Evaluation
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.bench.table3 import Table3Row, build_table3, table3_document

_COLUMNS = ("rank", "bytes", "MiB", "paper's MB", "pieces", "paper's", "Link-Enable", "paper's", "why it differs")


def table3() -> Evaluation:
    """Build GPT-2's adapters and plan their transfer; sends nothing.

    Raises:
        FateError: FATE_ABSENT when transformers or peft is not installed.
    """
    rows = build_table3()
    return Evaluation(
        name="table3",
        title="Table 3: LoRA on GPT-2's c_attn",
        tables=[DataTable("Payload and pieces of a transfer", _COLUMNS, [_cells(row) for row in rows])],
        notes=[
            "Pieces: data chunks of 4 MiB, the Link-Enable chunk, the header. The paper's MB are units of 2^20 bytes."
        ],
        document=table3_document(rows),
        failures={},
    )


def _cells(row: Table3Row) -> tuple[str, ...]:
    return (
        f"{row.rank}",
        f"{row.payload_bytes:,}",
        f"{row.mebibytes:.1f}",
        f"{row.paper.mebibytes:.1f}",
        f"{row.pieces}",
        f"{row.paper.chunks}",
        _yes(row.link_enable),
        _yes(row.paper.link_enable),
        row.remark,
    )


def _yes(enabled: bool) -> str:
    return "yes" if enabled else "no"
