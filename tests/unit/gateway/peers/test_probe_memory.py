"""Probes get spare memory only, and never more than a fair part of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.gateway.peers.probe_transfers import lease_spare
from fedrdma_fate.gateway.peers.receiving import Receiving
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.obs.complaints import Complaints
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM, GrantRequest, Refused
from tests.support.endpoints import HeapRegion

KIB = 1024


def pool_of(length: int = 1024 * KIB) -> SlotPool:
    return SlotPool(HeapRegion(length), "receive")


def code_of(pool: SlotPool, length: int) -> ErrorCode:
    with pytest.raises(MemoryPoolError) as caught:
        lease_spare(pool, length, "probe")
    return caught.value.code


def test_a_quarter_of_an_idle_pool_is_given() -> None:
    assert lease_spare(pool_of(), 256 * KIB, "probe").slot.length == 256 * KIB


def test_more_than_a_quarter_is_refused_even_of_an_idle_pool() -> None:
    assert code_of(pool_of(), 256 * KIB + 1) is ErrorCode.PAYLOAD_TOO_LARGE


def test_as_much_must_stay_free_for_messages() -> None:
    pool = pool_of()
    messages = pool.lease(512 * KIB, "task")
    assert messages is not None
    lease_spare(pool, 256 * KIB, "probe").release()
    more = pool.lease(4 * KIB, "task")
    assert code_of(pool, 256 * KIB) is ErrorCode.POOL_TIMEOUT
    assert more is not None
    more.release()
    lease_spare(pool, 256 * KIB, "probe")


def test_while_a_message_waits_for_room_a_probe_gets_none() -> None:
    async def scenario() -> None:
        pool = pool_of()
        held = pool.lease(64 * KIB, "task")
        assert held is not None
        waiting = asyncio.create_task(pool.acquire(1024 * KIB, "task"))
        await asyncio.sleep(0)
        assert code_of(pool, 4 * KIB) is ErrorCode.POOL_TIMEOUT
        held.release()
        (await waiting).release()
        lease_spare(pool, 4 * KIB, "probe")

    asyncio.run(scenario())


def test_where_free_memory_is_in_pieces_a_probe_does_not_wait_for_a_larger_one() -> None:
    pool = pool_of()
    leases = [pool.lease(128 * KIB, "task") for _ in range(8)]
    for lease in leases[::2]:
        assert lease is not None
        lease.release()
    assert code_of(pool, 256 * KIB) is ErrorCode.POOL_TIMEOUT


class Granting:
    """A link that notes what is granted."""

    def __init__(self) -> None:
        self.granted: list[int] = []

    def grant(self, grant: int, slot: object, transfer: int, kept: object = None) -> None:
        del grant, slot, kept
        self.granted.append(transfer)


def test_a_peer_has_one_slot_for_probes_at_a_time_whatever_it_asks_for() -> None:
    async def scenario() -> None:
        answers: list[Any] = []
        pool = pool_of()
        context: Any = SimpleNamespace(receive_pool=pool, tasks=set(), complaints=Complaints())
        receiving = Receiving("b", context, answers.append, lambda: None)
        link: Any = Granting()
        first, second, message = PROBE_TRANSFERS_FROM + 1, PROBE_TRANSFERS_FROM + 2, 3
        for transfer in (first, second, message):
            receiving.on_grant_request(GrantRequest("tcp", transfer, 128 * KIB), link)
        while context.tasks:
            await asyncio.sleep(0)
        assert link.granted == [first, message]
        (refused,) = answers
        assert isinstance(refused, Refused)
        assert (refused.transfer, refused.code) == (second, ErrorCode.POOL_TIMEOUT.value)

    asyncio.run(scenario())
