"""What is remembered of a path from transfer to transfer."""

from __future__ import annotations

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.path_memory import PathMemory


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
