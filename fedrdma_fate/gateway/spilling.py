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


async def make_room(hub: Hub, pool: SlotPool) -> None:
    """Spill messages, the longest waiting first, until nobody waits for room there or nothing is left to spill."""
    while pool.wanted_bytes:
        message = next(hub.mailbox.in_region(pool.region), None)
        if message is None:
            return
        message.spilling = spawn(hub.tasks, _spill(hub, message))
        await asyncio.wait([message.spilling])
        if message.spilled is None:
            return


async def _spill(hub: Hub, message: Message) -> None:
    lease = message.lease
    assert lease is not None
    try:
        spilled = await asyncio.to_thread(hub.spill.spill, lease.slot, message.payload_at, message.total_bytes)
    except FedRDMAError as error:
        # the message stays in memory: nothing is lost, but whoever waits for room waits on
        logger.error("%s", error)
        return
    finally:
        message.spilling = None
    message.spilled = spilled
    message.lease = None
    lease.release()
    hub.metrics.spilled(message.total_bytes)
    hub.trace.emit("spilled", key=str(message.key), bytes=message.total_bytes)
