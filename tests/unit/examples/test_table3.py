"""The paper's Table 3, from parameter counts that are known to be right."""

from __future__ import annotations

import pytest
from rich.console import Console

from fedrdma_fate.bench.table3 import PAPER_TABLE_3, PaperRow, compare_rank, table3_document, table3_view

C_ATTN_PARAMETERS_PER_RANK = (768 + 3 * 768) * 12


def rank(number: int) -> PaperRow:
    return next(paper for paper in PAPER_TABLE_3 if paper.rank == number)


@pytest.mark.parametrize("paper", PAPER_TABLE_3, ids=lambda paper: f"rank-{paper.rank}")
def test_every_rank_has_the_paper_s_size_and_link_enable_and_its_count_to_within_one(paper: PaperRow) -> None:
    row = compare_rank(paper, C_ATTN_PARAMETERS_PER_RANK * paper.rank)
    assert row.mebibytes == paper.mebibytes
    assert row.link_enable == paper.link_enable
    assert abs(row.pieces - paper.chunks) <= 1
    assert row.agrees


@pytest.mark.parametrize("number", [16, 32, 64])
def test_where_the_count_is_the_paper_s_there_is_no_remark(number: int) -> None:
    row = compare_rank(rank(number), C_ATTN_PARAMETERS_PER_RANK * number)
    assert row.pieces == row.paper.chunks
    assert row.remark == ""


@pytest.mark.parametrize(("number", "reason"), [(4, "header"), (8, "header"), (128, "whole chunks")])
def test_where_the_count_differs_the_reason_is_given(number: int, reason: str) -> None:
    assert reason in compare_rank(rank(number), C_ATTN_PARAMETERS_PER_RANK * number).remark


def test_another_payload_does_not_agree() -> None:
    assert not compare_rank(rank(64), C_ATTN_PARAMETERS_PER_RANK * 65).agrees


def test_the_document_holds_both_sides_of_every_row() -> None:
    row = compare_rank(rank(8), C_ATTN_PARAMETERS_PER_RANK * 8)
    document = table3_document([row])
    assert document == {
        "rows": [
            {
                "rank": 8,
                "payload_bytes": 2_359_296,
                "mebibytes": 2.3,
                "data_chunks": 1,
                "link_enable": True,
                "pieces": 3,
                "paper": {"rank": 8, "mebibytes": 2.3, "chunks": 2, "link_enable": True},
                "remark": row.remark,
                "agrees": True,
            }
        ]
    }


def test_the_printed_table_shows_ours_beside_the_paper_s() -> None:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(table3_view([compare_rank(rank(1024), C_ATTN_PARAMETERS_PER_RANK * 1024)]))
    text = captured.get()
    for cell in ("1024", "301,989,888", "288.0", "74", "75"):
        assert cell in text
