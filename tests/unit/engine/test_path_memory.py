"""What is remembered of a path from transfer to transfer."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.controller import Controller
from fedrdma_fate.engine.path_memory import PathMemory


def state_of(control: Controller) -> PathState:
    state = control.state()
    assert state is not None
    return state


def test_transfers_that_run_together_begin_with_a_share_and_the_whole_is_remembered() -> None:
    memory = PathMemory()
    memory.learn(PathState(8e6, 0.02, 0.0), "measured")
    first = memory.begin()
    second = memory.begin()
    assert first.state() == PathState(8e6, 0.02, 0.0)
    assert second.state() == PathState(4e6, 0.02, 0.0, capacity=8e6)
    memory.end(second)
    assert memory.state == PathState(8e6, 0.02, 0.0)
    memory.end(first)
    assert memory.state == PathState(8e6, 0.02, 0.0)


def test_a_transfer_that_learnt_nothing_leaves_the_memory_as_it_is() -> None:
    memory = PathMemory()
    memory.end(memory.begin())
    assert memory.state is None


def test_what_the_path_lately_gave_is_for_a_transfer_alone_and_outlives_those_that_run_together() -> None:
    memory = PathMemory()
    memory.learn(PathState(8e6, 0.02, 0.0, recent_rate=2e7, held_bytes=1e6), "measured")
    alone = memory.begin()
    assert state_of(alone).recent_rate == 2e7
    beside = memory.begin()
    assert state_of(beside).recent_rate == 0.0
    beside.on_sample(Sample(0.02, 4e6, 10, 0, 4), 0.1)
    memory.end(beside)
    assert memory.state is not None
    assert memory.state.recent_rate == 2e7


def test_a_transfer_that_was_held_to_a_share_of_the_path_leaves_what_that_loses_and_nothing_else() -> None:
    memory = PathMemory()
    probed = PathState(8e6, 0.02, None)
    memory.learn(probed, "probed")
    assert memory.loss is None
    control = memory.begin()
    for number in range(8):
        # faster than the share nothing arrived, which says nothing of the path
        control.on_time(0.1 * number)
        control.on_sample(Sample(0.02, None, 96, 4, 4), 0.1 * number)
    memory.end(control)
    assert (memory.state, memory.proved) == (probed, False)
    assert memory.loss == pytest.approx(0.01, rel=0.1)


def test_what_a_transfer_of_all_of_the_path_has_found_counts_for_its_loss() -> None:
    memory = PathMemory()
    memory.learn(PathState(8e6, 0.02, 0.02), "measured")
    assert memory.loss == 0.02
