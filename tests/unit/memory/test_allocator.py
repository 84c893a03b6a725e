"""Behaviour of the slot allocator, case by case; tests/property has the model."""

from __future__ import annotations

import pytest

from fedrdma_fate.memory.allocator import SlotAllocator
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

PAGE = 4096


def pages(count: int) -> int:
    return count * PAGE


def allocated(allocator: SlotAllocator, length: int) -> int:
    offset = allocator.allocate(length)
    assert offset is not None
    return offset


def test_an_empty_region_is_one_hole() -> None:
    allocator = SlotAllocator(pages(8))
    assert (allocator.length, allocator.free_bytes, allocator.largest_free) == (pages(8), pages(8), pages(8))


@pytest.mark.parametrize(("length", "taken"), [(0, PAGE), (1, PAGE), (PAGE, PAGE), (PAGE + 1, 2 * PAGE)])
def test_a_slot_takes_whole_pages_and_at_least_one(length: int, taken: int) -> None:
    allocator = SlotAllocator(pages(8))
    allocated(allocator, length)
    assert allocator.rounded(length) == taken
    assert allocator.free_bytes == pages(8) - taken


def test_the_whole_region_can_be_one_slot() -> None:
    allocator = SlotAllocator(pages(8))
    assert allocator.allocate(pages(8)) == 0
    assert (allocator.free_bytes, allocator.largest_free) == (0, 0)
    assert allocator.allocate(1) is None


def test_a_slot_longer_than_every_hole_is_not_had_though_the_sum_would_do() -> None:
    allocator = SlotAllocator(pages(8))
    first, _kept, third = (allocated(allocator, pages(2)) for _ in range(3))
    allocated(allocator, pages(2))
    allocator.free(first)
    allocator.free(third)
    assert allocator.free_bytes == pages(4)
    assert allocator.allocate(pages(3)) is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbouring_holes_become_one_whatever_the_order_of_freeing(order: tuple[int, ...]) -> None:
    allocator = SlotAllocator(pages(6))
    offsets = [allocated(allocator, pages(2)) for _ in range(3)]
    for index in order:
        allocator.free(offsets[index])
    assert allocator.largest_free == pages(6)


def test_a_large_slot_takes_the_tightest_hole() -> None:
    allocator = SlotAllocator(pages(12))
    wide, _, tight, _ = (allocated(allocator, pages(count)) for count in (4, 1, 2, 5))
    allocator.free(wide)
    allocator.free(tight)
    assert allocator.allocate(pages(2)) == tight


def test_small_slots_that_come_between_large_ones_do_not_split_the_space_of_the_next_large_one() -> None:
    allocator = SlotAllocator(pages(64))
    large = []
    for _ in range(3):
        large.append(allocated(allocator, pages(20)))
        allocated(allocator, PAGE)
    for offset in large:
        allocator.free(offset)
    assert allocator.largest_free == pages(61)


def test_an_offset_that_was_not_allocated_cannot_be_freed() -> None:
    allocator = SlotAllocator(pages(8))
    offset = allocated(allocator, pages(2))
    with pytest.raises(MemoryPoolError) as caught:
        allocator.free(offset + PAGE)
    assert caught.value.code is ErrorCode.LEASE_UNKNOWN


def test_a_slot_cannot_be_freed_twice() -> None:
    allocator = SlotAllocator(pages(8))
    offset = allocated(allocator, PAGE)
    allocator.free(offset)
    with pytest.raises(MemoryPoolError):
        allocator.free(offset)
    assert allocator.free_bytes == pages(8)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        SlotAllocator(pages(8)).allocate(-1)


@pytest.mark.parametrize(("length", "page"), [(0, PAGE), (-PAGE, PAGE), (PAGE + 1, PAGE), (PAGE, 0)])
def test_a_region_that_is_not_whole_pages_is_refused(length: int, page: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        SlotAllocator(length, page)


def test_the_end_of_a_slot_can_be_given_back_and_joins_the_hole_behind_it() -> None:
    allocator = SlotAllocator(pages(8))
    offset = allocated(allocator, pages(4))
    assert allocator.shrink(offset, PAGE + 1) == pages(2)
    assert (allocator.free_bytes, allocator.largest_free) == (pages(6), pages(6))
    assert allocator.shrink(offset, pages(3)) == 0, "it does not grow"
    allocator.free(offset)
    assert allocator.largest_free == pages(8)


def test_a_slot_that_is_not_leased_cannot_shrink() -> None:
    with pytest.raises(MemoryPoolError) as caught:
        SlotAllocator(pages(8)).shrink(0, 1)
    assert caught.value.code is ErrorCode.LEASE_UNKNOWN
