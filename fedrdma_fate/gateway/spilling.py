"""Moves messages that nobody has pulled yet to disk when others need the room."""

from __future__ import annotations

import asyncio
import logging

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.hub import Hub
from fedrdma_fate.gateway.mailbox import Message
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.wire.errors import FedRDMAError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""After a spill that failed (a full disk), the next try. Meanwhile whoever wants room waits for tasks to pull."""


def make_room(hub: Hub, pool: SlotPool) -> None:
    """Begin to make room for those who wait for it there, if anybody does."""
    if not pool.wanted_bytes:
        return
    if pool is hub.receive_pool:
        for recall in hub.recalls:
            recall()
    if pool not in hub.making_room:
        hub.making_room.add(pool)
        spawn(hub.tasks, _spill_while_wanted(hub, pool))


async def _spill_while_wanted(hub: Hub, pool: SlotPool) -> None:
    """Spill messages, the longest waiting first, until nobody waits for room or nothing is left to spill."""
    try:
        while pool.wanted_bytes and (message := next(hub.mailbox.in_region(pool.region), None)) is not None:
            message.spilling = spawn(hub.tasks, _spill(hub, message))
            await asyncio.wait([message.spilling])
            if message.lease is not None:
                await asyncio.sleep(RETRY_SECONDS)
    finally:
        hub.making_room.discard(pool)


async def _spill(hub: Hub, message: Message) -> None:
    lease = message.lease
    assert lease is not None
    try:
        spilled = await asyncio.to_thread(hub.spill.spill, lease.slot, message.payload_at, message.total_bytes)
    except FedRDMAError as error:
        # the message stays where it is
        logger.error("%s", error)
        return
    finally:
        message.spilling = None
    message.spilled = spilled
    message.lease = None
    lease.release()
    hub.metrics.spilled(message.total_bytes)
    hub.trace.emit("spilled", key=str(message.key), bytes=message.total_bytes)
