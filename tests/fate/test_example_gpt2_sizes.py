"""The paper's Table 3 from models really built."""

from __future__ import annotations

import pytest

from fedrdma_fate.bench.table3 import build_table3, count_parameters

pytestmark = pytest.mark.fate


def test_gpt2_with_its_adapters_has_the_paper_s_sizes_at_every_rank() -> None:
    rows = build_table3()
    assert [row.rank for row in rows] == [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert all(row.agrees for row in rows)


def test_full_gpt2_is_124_million_parameters_in_148_arrays() -> None:
    counted = count_parameters(None, None)
    assert (counted.parameters, counted.trainable_arrays) == (124_439_808, 148)
    assert counted.trainable == counted.parameters
