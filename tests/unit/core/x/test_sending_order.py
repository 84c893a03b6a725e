"""In which order chunks go: each once, both ways round, the tail behind all others, a trailer behind that."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.sending_order import SendingOrder


@pytest.mark.parametrize("count", [1, 2, 7, 12])
@pytest.mark.parametrize("trailers", [0, 1, 3])
def test_each_chunk_has_one_position_and_tail_and_trailer_go_last(count: int, trailers: int) -> None:
    plan = ChunkPlan(count * 64, 64, 0, trailers * 64)
    for start in range(trailers, plan.count):
        for stop in range(start, plan.count + 1):
            order = SendingOrder(plan, range(start, stop))
            indices = [order.index(position) for position in range(plan.count)]
            assert [order.position(index) for index in indices] == list(range(plan.count))
            tail, others = list(range(start, stop)), [*range(trailers, start), *range(stop, plan.count)]
            assert indices == [*reversed(others), *reversed(tail), *reversed(range(trailers))]


def test_without_a_tail_it_is_from_the_last_to_the_first() -> None:
    order = SendingOrder(ChunkPlan(640, 64))
    assert [order.chunk(position).index for position in range(10)] == list(reversed(range(10)))


def test_what_is_outside_of_the_plan_is_outside_of_the_order() -> None:
    for tail in (range(0), range(3, 5), range(5, 10)):
        order = SendingOrder(ChunkPlan(640, 64), tail)
        for outside in (-5, -1, 10, 12):
            assert not 0 <= order.position(outside) < 10
            with pytest.raises(IndexError):
                order.chunk(outside)
