"""The allocator against a model that knows nothing but which ranges are taken."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedrdma_fate.memory.allocator import SlotAllocator

PAGE = 4096


def gaps(taken: dict[int, int], length: int) -> list[int]:
    """Lengths of the free ranges."""
    ends = [0, *(offset + taken[offset] for offset in sorted(taken))]
    starts = [*sorted(taken), length]
    return [start - end for start, end in zip(starts, ends, strict=True)]


def check(allocator: SlotAllocator, taken: dict[int, int], length: int) -> None:
    free = gaps(taken, length)
    assert min(free) >= 0, "two slots overlap, or one ends outside the region"
    assert allocator.free_bytes == sum(free)
    assert allocator.largest_free == max(free)


class AllocatorAgainstModel(RuleBasedStateMachine):
    @initialize(pages=st.integers(1, 200))
    def make(self, pages: int) -> None:
        self.length = pages * PAGE
        self.allocator = SlotAllocator(self.length, PAGE)
        self.taken: dict[int, int] = {}

    @rule(length=st.one_of(st.integers(0, 3 * PAGE), st.integers(0, 250 * PAGE)))
    def allocate(self, length: int) -> None:
        needed = max(1, -(-length // PAGE)) * PAGE
        fits = max(gaps(self.taken, self.length)) >= needed
        offset = self.allocator.allocate(length)
        assert (offset is not None) == fits
        if offset is not None:
            assert offset % PAGE == 0
            assert offset not in self.taken
            self.taken[offset] = needed

    @precondition(lambda self: self.taken)
    @rule(choice=st.randoms(use_true_random=False), length=st.integers(0, 250 * PAGE))
    def shrink(self, choice: random.Random, length: int) -> None:
        offset = choice.choice(sorted(self.taken))
        kept = min(self.taken[offset], max(1, -(-length // PAGE)) * PAGE)
        assert self.allocator.shrink(offset, length) == self.taken[offset] - kept
        self.taken[offset] = kept

    @precondition(lambda self: self.taken)
    @rule(choice=st.randoms(use_true_random=False))
    def free(self, choice: random.Random) -> None:
        offset = choice.choice(sorted(self.taken))
        self.allocator.free(offset)
        del self.taken[offset]

    @invariant()
    def agrees(self) -> None:
        check(self.allocator, self.taken, self.length)

    def teardown(self) -> None:
        for offset in self.taken:
            self.allocator.free(offset)
        assert self.allocator.largest_free == self.length, "all is free, so it is one hole"


TestAllocatorAgainstModel = AllocatorAgainstModel.TestCase
TestAllocatorAgainstModel.settings = settings(max_examples=60, stateful_step_count=60)


def test_nothing_leaks_in_thousands_of_random_operations() -> None:
    chance = random.Random(20)
    length = 4096 * PAGE
    allocator = SlotAllocator(length, PAGE)
    taken: dict[int, int] = {}
    for _ in range(10_000):
        if taken and chance.random() < 0.5:
            offset = chance.choice(list(taken))
            allocator.free(offset)
            del taken[offset]
        else:
            size = chance.choice([1, 3, 40, 900]) * PAGE
            found = allocator.allocate(size)
            if found is not None:
                taken[found] = size
    check(allocator, taken, length)
    for offset in taken:
        allocator.free(offset)
    assert allocator.largest_free == length
