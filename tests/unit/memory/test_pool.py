"""Behaviour of leases and of the queue for room; tests/property has the models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

POOL_PAGES = 8


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    region = SharedRegion.create("send", POOL_PAGES * PAGE_BYTES)
    yield SlotPool(region, "send")
    region.close()


def leased(pool: SlotPool, pages: int, owner: str = "task") -> Lease:
    lease = pool.lease(pages * PAGE_BYTES, owner)
    assert lease is not None
    return lease


def asking(pool: SlotPool, pages: int, owner: str = "task", timeout: float | None = None) -> asyncio.Task[Lease]:
    return asyncio.create_task(pool.acquire(pages * PAGE_BYTES, owner, timeout))


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_slot_is_as_long_as_asked_for_page_aligned_and_writable(pool: SlotPool) -> None:
    first, second = pool.lease(100, "task"), pool.lease(5000, "task")
    assert first is not None
    assert second is not None
    assert (first.slot.length, second.slot.length) == (100, 5000)
    assert first.slot.offset % PAGE_BYTES == second.slot.offset % PAGE_BYTES == 0
    first.slot.view[:] = b"a" * 100
    second.slot.view[:] = b"b" * 5000
    assert bytes(first.slot.view) == b"a" * 100


def test_a_full_pool_leases_nothing_until_a_slot_comes_back(pool: SlotPool) -> None:
    lease = leased(pool, POOL_PAGES)
    assert pool.lease(1, "task") is None
    lease.release()
    assert pool.lease(1, "task") is not None


def test_an_empty_message_can_have_a_slot(pool: SlotPool) -> None:
    lease = pool.lease(0, "task")
    assert lease is not None
    assert lease.slot.length == 0


def test_what_can_never_fit_is_refused_at_once_also_when_others_wait(pool: SlotPool) -> None:
    async def scenario() -> None:
        leased(pool, POOL_PAGES)
        waiting = asking(pool, 1)
        await settle()
        with pytest.raises(MemoryPoolError) as caught:
            await pool.acquire(POOL_PAGES * PAGE_BYTES + 1, "task")
        assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE
        assert "memory.send_bytes" in caught.value.remedy
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(scenario())


def test_a_negative_length_is_refused(pool: SlotPool) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        pool.lease(-1, "task")


def test_a_shared_slot_is_free_when_its_last_holder_releases(pool: SlotPool) -> None:
    first = leased(pool, POOL_PAGES)
    second = first.share("destination")
    assert second.slot == first.slot
    first.release()
    assert pool.lease(1, "task") is None
    second.release()
    assert pool.stats().leased_bytes == 0


def test_releasing_twice_does_not_take_the_other_holders_hold(pool: SlotPool) -> None:
    first = leased(pool, POOL_PAGES)
    second = first.share()
    first.release()
    first.release()
    assert pool.stats().slots == 1
    second.release()
    assert pool.stats().slots == 0


def test_a_released_lease_gives_no_access_to_bytes_that_may_be_anothers(pool: SlotPool) -> None:
    lease = leased(pool, 1)
    lease.release()
    for use in (lambda: lease.slot, lease.share):
        with pytest.raises(MemoryPoolError) as caught:
            use()
        assert caught.value.code is ErrorCode.LEASE_UNKNOWN


def test_a_dead_task_loses_all_its_leases_and_nobody_else_any(pool: SlotPool) -> None:
    dead = [leased(pool, 1, "dead") for _ in range(3)]
    alive = leased(pool, 2, "alive")
    assert pool.release_owner("dead") == 3
    for lease in dead:
        with pytest.raises(MemoryPoolError) as caught:
            lease.share()
        assert caught.value.code is ErrorCode.LEASE_UNKNOWN
    assert alive.slot.length == 2 * PAGE_BYTES
    assert pool.stats().leased_bytes == 2 * PAGE_BYTES
    assert pool.release_owner("dead") == 0


def test_a_message_committed_by_a_task_that_died_stays_in_its_slot(pool: SlotPool) -> None:
    written = leased(pool, 1, "task")
    written.slot.view[:4] = b"data"
    committed = written.share("message")
    pool.release_owner("task")
    assert bytes(committed.slot.view[:4]) == b"data"


def test_a_request_waits_for_room_and_is_served(pool: SlotPool) -> None:
    async def scenario() -> None:
        holder = leased(pool, POOL_PAGES)
        request = asking(pool, 2)
        await settle()
        assert (pool.stats().waiting, pool.wanted) == (1, (2 * PAGE_BYTES, None))
        holder.release()
        assert (await request).slot.length == 2 * PAGE_BYTES
        assert (pool.stats().waiting, pool.wanted) == (0, (0, None))

    asyncio.run(scenario())


def test_requests_are_served_in_the_order_in_which_they_came(pool: SlotPool) -> None:
    async def scenario() -> None:
        holders = [leased(pool, 1) for _ in range(POOL_PAGES)]
        requests = [asking(pool, 1) for _ in range(3)]
        served = []
        for holder in holders[:3]:
            await settle()
            served.append([request.done() for request in requests])
            holder.release()
        await settle()
        assert served == [[False, False, False], [True, False, False], [True, True, False]]
        assert all(request.done() for request in requests)

    asyncio.run(scenario())


def test_small_requests_cannot_keep_a_large_one_out(pool: SlotPool) -> None:
    async def scenario() -> None:
        other, holder = leased(pool, 1), leased(pool, POOL_PAGES - 2)
        large, small = asking(pool, POOL_PAGES - 1), asking(pool, 1)
        await settle()
        assert pool.lease(1, "in a hurry") is None, "there is a free page, but two wait already"
        assert not small.done()
        holder.release()
        await settle()
        assert large.done()
        assert not small.done()
        other.release()
        await small

    asyncio.run(scenario())


def test_a_cancelled_head_of_the_queue_lets_the_next_in(pool: SlotPool) -> None:
    async def scenario() -> None:
        leased(pool, POOL_PAGES - 1)
        large, small = asking(pool, 2), asking(pool, 1)
        await settle()
        large.cancel()
        await settle()
        assert large.cancelled()
        assert small.done()
        assert pool.stats().waiting == 0

    asyncio.run(scenario())


def test_a_request_cancelled_in_the_moment_of_its_grant_gives_the_slot_back(pool: SlotPool) -> None:
    async def scenario() -> None:
        holder = leased(pool, POOL_PAGES)
        request = asking(pool, 1)
        await settle()
        holder.release()
        assert pool.stats().slots == 1, "granted, though the task has not run yet"
        request.cancel()
        await settle()
        assert request.cancelled()
        assert pool.stats().slots == 0

    asyncio.run(scenario())


def test_a_request_that_times_out_says_how_full_the_pool_is_and_leaves_the_queue(pool: SlotPool) -> None:
    async def scenario() -> None:
        leased(pool, POOL_PAGES - 1)
        behind = asking(pool, 1)
        with pytest.raises(MemoryPoolError) as caught:
            await pool.acquire(2 * PAGE_BYTES, "task", timeout=0.001)
        assert caught.value.code is ErrorCode.POOL_TIMEOUT
        assert f"{(POOL_PAGES - 1) * PAGE_BYTES} of {POOL_PAGES * PAGE_BYTES} bytes leased" in caught.value.message
        assert "1 others wait" in caught.value.message
        await behind
        assert pool.stats().waiting == 0

    asyncio.run(scenario())


def test_what_a_dead_task_waited_for_is_refused_and_the_next_is_served(pool: SlotPool) -> None:
    async def scenario() -> None:
        leased(pool, POOL_PAGES - 1)
        dead, alive = asking(pool, 2, "dead"), asking(pool, 1, "alive")
        await settle()
        assert pool.release_owner("dead") == 0
        with pytest.raises(MemoryPoolError) as caught:
            await dead
        assert caught.value.code is ErrorCode.LEASE_UNKNOWN
        assert (await alive).owner == "alive"

    asyncio.run(scenario())


def test_a_task_that_dies_and_is_cancelled_at_once_leaves_nothing_behind(pool: SlotPool) -> None:
    async def scenario() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        holder = leased(pool, POOL_PAGES)
        request = asking(pool, 1, "dead")
        await settle()
        pool.release_owner("dead")
        request.cancel()
        await settle()
        assert request.cancelled()
        holder.release()
        assert pool.stats().slots == 0
        del request
        assert troubles == []

    asyncio.run(scenario())


def test_a_closed_pool_refuses_those_who_wait_and_those_who_come_but_takes_leases_back(pool: SlotPool) -> None:
    async def scenario() -> None:
        lease = leased(pool, POOL_PAGES)
        waiting = asking(pool, 1)
        await settle()
        pool.close()
        pool.close()
        for refused in (waiting, asking(pool, 1)):
            with pytest.raises(MemoryPoolError) as caught:
                await refused
            assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
        assert lease.slot.length == POOL_PAGES * PAGE_BYTES
        lease.release()
        assert pool.stats().leased_bytes == 0

    asyncio.run(scenario())


def test_statistics_count_pages_slots_and_the_high_water_mark(pool: SlotPool) -> None:
    first, second = leased(pool, 3), pool.lease(1, "task")
    assert second is not None
    first.share("other")
    second.release()
    stats = pool.stats()
    assert (stats.name, stats.length) == ("send", POOL_PAGES * PAGE_BYTES)
    assert (stats.leased_bytes, stats.slots, stats.total_leases) == (3 * PAGE_BYTES, 1, 2)
    assert stats.high_water_bytes == 4 * PAGE_BYTES
    assert stats.largest_free_bytes == (POOL_PAGES - 3) * PAGE_BYTES
    assert pool.region.length == stats.length


def test_a_slot_that_comes_back_is_told_unless_somebody_waited_for_it(pool: SlotPool) -> None:
    told: list[int] = []
    pool.when_freed.append(lambda: told.append(pool.stats().leased_bytes))

    async def scenario() -> None:
        first, second = leased(pool, 4), leased(pool, 4)
        shared = first.share()
        first.release()
        assert told == [], "it has another holder"
        waiting = asking(pool, 4), asking(pool, 2)
        await settle()
        shared.release()
        assert told == [], "another still waits"
        await settle()
        second.release()
        assert told == [6 * PAGE_BYTES]
        for lease in await asyncio.gather(*waiting):
            lease.release()
        assert told[-1] == 0

    asyncio.run(scenario())


def test_a_trimmed_lease_keeps_its_first_bytes_and_its_end_serves_who_waits(pool: SlotPool) -> None:
    async def scenario() -> None:
        lease = leased(pool, POOL_PAGES)
        lease.slot.view[:3] = b"abc"
        waiting = asking(pool, 5)
        await settle()
        lease.trim(2 * PAGE_BYTES + 1)
        assert (lease.slot.length, bytes(lease.slot.view[:3])) == (2 * PAGE_BYTES + 1, b"abc")
        (await waiting).release()
        lease.trim(POOL_PAGES * PAGE_BYTES)
        assert lease.slot.length == 2 * PAGE_BYTES + 1, "it does not grow"
        lease.release()
        assert pool.stats().leased_bytes == 0

    asyncio.run(scenario())


def test_a_slot_that_others_hold_too_is_not_trimmed_nor_one_that_was_released(pool: SlotPool) -> None:
    lease = leased(pool, 4)
    other = lease.share()
    lease.trim(1)
    assert lease.slot == other.slot
    assert lease.slot.length == 4 * PAGE_BYTES
    lease.release()
    with pytest.raises(MemoryPoolError):
        lease.trim(1)
    other.release()


def test_room_is_looked_for_and_nothing_is_taken(pool: SlotPool) -> None:
    told: list[int] = []
    pool.when_freed.append(lambda: told.append(1))
    first, second, third = leased(pool, 3), leased(pool, 2), leased(pool, 3)
    first.release()
    third.release()
    told.clear()
    three = 3 * PAGE_BYTES
    assert pool.has_room_for(three, three)
    assert not pool.has_room_for(three, three, 1)
    assert not pool.has_room_for(4 * PAGE_BYTES)
    assert pool.has_room_for()
    assert pool.stats().leased_bytes == 2 * PAGE_BYTES
    assert told == []
    second.release()


def test_there_is_no_room_while_somebody_waits(pool: SlotPool) -> None:
    async def scenario() -> None:
        lease = leased(pool, 6)
        waiting = asking(pool, 4)
        await settle()
        assert not pool.has_room_for(PAGE_BYTES)
        lease.release()
        (await waiting).release()
        assert pool.has_room_for(PAGE_BYTES)

    asyncio.run(scenario())
