"""Copies of chunks whose loss nothing would betray in time, and repair chunks for them."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.estimators import chunk_loss
from fedrdma_fate.core.x.repair_code import MOST_COPIES, copies_of_last, copies_of_repeat, plan_repairs


def test_the_likelier_a_loss_the_more_copies_of_what_was_lost_go_at_once() -> None:
    assert [copies_of_repeat(lost) for lost in (0.0, 0.008, 0.04, 0.08, 0.3, 1.0)] == [2, 2, 3, 3, 3, MOST_COPIES]
    assert [copies_of_last(lost) for lost in (0.0, 0.0005, 0.008, 0.5)] == [1, 1, 2, 2]
    assert chunk_loss(0.01, 4) == pytest.approx(0.0394, abs=1e-4)
    assert (chunk_loss(-1.0, 4), chunk_loss(2.0, 4)) == (0.0, 1.0)


def test_where_as_much_may_be_missing_as_repair_chunks_would_make_up_for_there_are_none() -> None:
    plan = ChunkPlan(4 << 20, 8192)
    # some 10 chunks are lost in a round trip, and 24 are made up for
    planned = plan_repairs(plan, 4096, 0.01, 12.5e6)
    assert planned is not None
    assert plan_repairs(plan, 4096, 0.01, 12.5e6, 23 * 8192) == planned, "too little is of no use"
    assert plan_repairs(plan, 4096, 0.01, 12.5e6, 25 * 8192) is None


def test_where_few_chunks_go_in_a_round_trip_more_are_covered_so_that_what_is_lost_need_not_go_again() -> None:
    # an eighth of 1 Gbit/s, 20 ms
    planned = plan_repairs(ChunkPlan(4 << 20, 16384), 4096, 0.01, 0.022 * 15e6)
    assert planned is not None
    assert planned.repairs <= 0.5 * 0.022 * 15e6 / 16384, "less than the round trip that they save"
    assert planned.covered == 4 * planned.repairs


def test_where_they_would_take_as_long_as_the_round_trip_that_they_save_there_are_none() -> None:
    assert plan_repairs(ChunkPlan(4 << 20, 16384), 4096, 0.01, 0.022 * 6e6) is None
