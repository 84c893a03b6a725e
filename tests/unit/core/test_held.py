"""Ranges of bytes that lie in a slot, and the chunks that they hold."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.held import are_ranges, bytes_in, chunks_within, merged, ranges_of, without
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.wire.frames import MOST_HELD_RANGES


@given(total=st.integers(1, 200), first=st.integers(1, 60), second=st.integers(1, 60), data=st.data())
def test_a_chunk_is_held_where_each_of_its_bytes_is(total: int, first: int, second: int, data: st.DataObject) -> None:
    plan, other = ChunkPlan(total, first), ChunkPlan(total, second, min(second, total - 1, 3))
    there = data.draw(st.sets(st.integers(0, plan.count - 1)))
    ranges = ranges_of(plan.chunk(index) for index in there)
    assert are_ranges(ranges, total)
    held = {at for index in there for at in range(plan.chunk(index).offset, plan.chunk(index).offset + first)}
    held = {at for at in held if at < total}
    assert bytes_in(ranges) == len(held)
    whole = [chunk for chunk in other if held >= set(range(chunk.offset, chunk.offset + chunk.length))]
    assert list(chunks_within(other, ranges)) == whole


def test_of_very_many_ranges_the_longest_are_named() -> None:
    plan = ChunkPlan(10 * 3 * MOST_HELD_RANGES, 10)
    there = [plan.chunk(index) for index in range(0, plan.count, 2)] + [plan.chunk(1)]
    ranges = ranges_of(there)
    assert len(ranges) == MOST_HELD_RANGES
    assert ranges[0] == (0, 30)
    assert are_ranges(ranges, plan.total_bytes)


@pytest.mark.parametrize(
    "told", [((0, 0),), ((5, 4),), ((0, 11),), ((-1, 4),), ((0, 4), (4, 6)), ((0, 4), (3, 6)), ((5, 6), (0, 4))]
)
def test_what_a_peer_tells_that_are_no_ranges_is_found(told: tuple[tuple[int, int], ...]) -> None:
    assert not are_ranges(told, 10)
    assert are_ranges(((0, 4), (5, 10)), 10)


def test_a_table_behind_the_payload_is_held_by_nobody() -> None:
    plan = ChunkPlan(100, 10, 0, 24)
    assert all(chunk.index >= plan.trailer_count for chunk in chunks_within(plan, ((0, 100),)))
    assert len(list(chunks_within(plan, ((0, 100),)))) == 10


stretches = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda each: (each[0], sum(each))), max_size=8
)


@given(some=stretches, others=stretches)
def test_what_is_left_of_ranges_are_the_bytes_that_are_in_no_other(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    def of(ranges: Iterable[tuple[int, int]]) -> set[int]:
        return {at for start, end in ranges for at in range(start, end)}

    left = without(merged(some), merged(others))
    assert of(left) == of(some) - of(others)
    assert are_ranges(left, 60)
