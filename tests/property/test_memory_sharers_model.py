"""Peers that share receive memory, some of whom do whatever they can with it, against what each is promised."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.region import PAGE_BYTES
from tests.support.endpoints import HeapRegion

PAGES = 256
ENEMIES = ["a", "b"]
QUIET = "quiet"
"""Asks for nothing, until it asks for all that is reserved for it."""

Step = tuple[str, str, int]


class Enemies:
    """What others hold and wait for; the quiet one is asked for after each step.

    They hold slots alone: a second holder is a task, which is none of the sharers (`test_memory_pool_model.py`).
    """

    def __init__(self) -> None:
        self.pool = SlotPool(HeapRegion(PAGES * PAGE_BYTES), "receive", sharers=[*ENEMIES, QUIET])
        assert self.pool._shares is not None
        self.reserved = self.pool._shares.reserved
        self.held: list[Lease] = []
        self.waiting: list[asyncio.Task[Lease]] = []

    def step(self, action: str, owner: str, number: int) -> None:
        pages = number % (self.pool.most_bytes // PAGE_BYTES) + 1
        lease = self.held[number % len(self.held)] if self.held else None
        if action == "take all in pieces":
            while (taken := self.pool.lease(pages * PAGE_BYTES, owner)) is not None:
                self.held.append(taken)
        elif action == "take" and (taken := self.pool.lease(pages * PAGE_BYTES, owner)) is not None:
            self.held.append(taken)
        elif action == "ask":
            self.waiting.append(asyncio.ensure_future(self.pool.acquire(pages * PAGE_BYTES, owner)))
        elif action == "cancel" and self.waiting:
            self.waiting.pop(number % len(self.waiting)).cancel()
        elif action == "give back every other":
            for each in self.held[number % 7 :: 2]:
                each.release()
            self.held = [each for each in self.held if each._pool is not None]
        elif action == "release owner":
            self.pool.release_owner(owner)
            self.held = [each for each in self.held if each._pool is not None]
        elif lease is not None and action == "release":
            self.held.remove(lease)
            lease.release()
        elif lease is not None and action == "trim":
            lease.trim(number % (lease.slot.length + 1))

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done = [task for task in self.waiting if task.done()]
        self.waiting = [task for task in self.waiting if not task.done()]
        # who was given up holds nothing
        self.held += [task.result() for task in done if not task.cancelled() and task.exception() is None]

    def check(self) -> None:
        longest: dict[int, int] = {}
        for slot in (each.slot for each in self.held):
            pages = max(1, -(-slot.length // PAGE_BYTES))
            longest[slot.offset] = max(longest.get(slot.offset, 0), pages * PAGE_BYTES)
        neighbours = itertools.pairwise(sorted(longest.items()))
        assert all(offset + length <= next_one for (offset, length), (next_one, _) in neighbours), "two slots overlap"
        stats = self.pool.stats()
        assert stats.leased_bytes == sum(longest.values()), "a slot leaked"
        assert stats.slots == len(longest)
        assert stats.waiting == len(self.waiting)

    async def run(self, steps: list[Step]) -> None:
        for step in steps:
            self.step(*step)
            await self.settle()
            self.check()
            asked = asyncio.ensure_future(self.pool.acquire(self.reserved, QUIET))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert asked.done(), "others keep the quiet one from what is reserved for it"
            asked.result().release()
            await self.settle()
            self.check()
        while self.held or self.waiting:
            assert self.held, "all room came back, so everybody was served"
            self.held.pop().release()
            await self.settle()
        assert self.pool.stats().leased_bytes == 0
        assert self.pool.stats().largest_free_bytes == PAGES * PAGE_BYTES


ACTIONS = st.sampled_from(
    [
        "take all in pieces",
        "take",
        "ask",
        "ask",
        "cancel",
        "give back every other",
        "release owner",
        "release",
        "release",
        "trim",
    ]
)
NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 100_000))


@settings(max_examples=150)
@given(st.lists(st.tuples(ACTIONS, st.sampled_from(ENEMIES), NUMBERS), max_size=40))
@example(
    # all it can have, page by page; then what is free lies between them, and the rest is taken in one piece
    [("take all in pieces", "a", 0), ("give back every other", "a", 0), ("take all in pieces", "a", 15)]
)
def test_whatever_others_do_with_their_memory_a_peer_gets_all_that_is_reserved_for_it_in_one_piece(
    steps: list[Step],
) -> None:
    asyncio.run(Enemies().run(steps))
