"""Peers take turns for receive memory: whoever asks for all of it keeps nobody else from a slot."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.support.endpoints import HeapRegion

PAGE = 4096
PAGES = 128
PEERS = ["greedy", "honest", "third", "fourth"]
"""Each has a share of 32 pages, 4 of them reserved; one can have 116 pages at most."""


def make_pool() -> SlotPool:
    return SlotPool(HeapRegion(PAGES * PAGE), "receive", sharers=PEERS)


def ask(pool: SlotPool, owner: str, pages: int) -> asyncio.Task[Lease]:
    return asyncio.create_task(pool.acquire(pages * PAGE, owner))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_whoever_asks_for_all_again_and_again_keeps_nobody_from_a_slot() -> None:
    async def scenario() -> None:
        pool = make_pool()
        greedy = [ask(pool, "greedy", 116) for _ in range(1000)]
        await settle()
        assert [task.done() for task in greedy[:2]] == [True, False]
        for owner in PEERS[1:]:
            asked = ask(pool, owner, 4)
            await settle()
            assert asked.done(), f"{owner} waits behind whoever holds all"

    asyncio.run(scenario())


def test_another_is_served_before_the_second_of_the_greedy() -> None:
    async def scenario() -> None:
        pool = make_pool()
        first = await ask(pool, "greedy", 116)
        greedy = [ask(pool, "greedy", 60) for _ in range(100)]
        await settle()
        honest = ask(pool, "honest", 60)
        await settle()
        first.release()
        await settle()
        assert honest.done() or greedy[0].done()
        # the greedy had asked before, so it may have one, and then it is the other's turn
        assert sum(task.done() for task in greedy) <= 1
        if not honest.done():
            greedy[0].result().release()
            await settle()
        assert honest.done()

    asyncio.run(scenario())


def test_a_large_wish_holds_up_nobody_who_asks_for_his_share() -> None:
    async def scenario() -> None:
        pool = make_pool()
        kept = await ask(pool, "third", 30)
        large = ask(pool, "greedy", 110)
        await settle()
        assert not large.done()
        for _ in range(20):
            lease = await ask(pool, "honest", 20)
            lease.release()
        kept.release()
        await settle()
        assert large.done(), "and it is served as soon as there is room"

    asyncio.run(scenario())


def test_small_requests_beyond_a_share_do_not_keep_a_large_one_out() -> None:
    async def scenario() -> None:
        pool = make_pool()
        held = [await ask(pool, "honest", 10) for _ in range(9)]
        large = ask(pool, "third", 100)
        await settle()
        more = ask(pool, "honest", 40)
        await settle()
        assert not more.done()
        for lease in held:
            lease.release()
        await settle()
        assert large.done()
        large.result().release()
        await settle()
        assert more.done()

    asyncio.run(scenario())


def test_who_can_have_no_more_waits_for_himself_alone() -> None:
    async def scenario() -> None:
        pool = make_pool()
        own = await ask(pool, "greedy", 80)
        more = ask(pool, "greedy", 80)
        await settle()
        assert pool.wanted == (80 * PAGE, "greedy")
        ring = pool.lease(PAGE, "honest")
        assert ring is not None, "slots ahead of time are granted as if nobody waited"
        assert pool.lease(PAGE, "greedy") is None, "and to himself as if he did"
        assert pool.can_spare is (pool.stats().largest_free_bytes >= 80 * PAGE)
        own.release()
        await settle()
        assert more.done()

    asyncio.run(scenario())


def test_when_who_waited_for_himself_waits_for_others_as_well_that_is_told() -> None:
    async def scenario() -> None:
        pool = make_pool()
        told: list[tuple[int, str | None]] = []
        pool.when_wanted.append(lambda: told.append(pool.wanted))
        own, others = await ask(pool, "greedy", 20), await ask(pool, "honest", 20)
        large = ask(pool, "greedy", 110)
        await settle()
        assert pool.wanted == (110 * PAGE, "greedy")
        own.release()
        assert told == [(110 * PAGE, None)]
        others.release()
        await settle()
        assert large.done()

    asyncio.run(scenario())


def test_of_one_peer_requests_are_served_in_their_order() -> None:
    async def scenario() -> None:
        pool = make_pool()
        first = await ask(pool, "honest", 116)
        tasks = [ask(pool, "honest", 50) for _ in range(4)]
        await settle()
        first.release()
        await settle()
        assert [task.done() for task in tasks] == [True, True, False, False]

    asyncio.run(scenario())


def test_what_the_reserves_of_others_leave_is_the_longest_slot_and_the_error_says_so() -> None:
    async def scenario() -> None:
        pool = make_pool()
        assert pool.most_bytes == 116 * PAGE
        with pytest.raises(MemoryPoolError) as refused:
            await ask(pool, "greedy", 117)
        assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert f"{12 * PAGE} are kept for others" in refused.value.message

    asyncio.run(scenario())


def test_a_single_peer_may_have_everything() -> None:
    pool = SlotPool(HeapRegion(PAGES * PAGE), "receive", sharers=["only"])
    assert pool.most_bytes == PAGES * PAGE
    assert pool.lease(PAGES * PAGE, "only") is not None
