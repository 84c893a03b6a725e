"""Moves messages that nobody has pulled yet: to disk when others need the room, to us when their lender does."""

from __future__ import annotations

import asyncio
import logging

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.mailbox import Message
from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.shared_slots import BorrowedSlot
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.wire.errors import FedRDMAError, MemoryPoolError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""After a spill that failed (a full disk), the next try. Meanwhile whoever wants room waits for tasks to pull."""


def make_room(context: GatewayContext, pool: SlotPool) -> None:
    """Begin to make room for those who wait for it there, if anybody does."""
    wanted, owner = pool.wanted
    if not wanted:
        return
    for recall in context.recalls[pool]:
        recall(owner)
    if pool not in context.making_room:
        context.making_room.add(pool)
        spawn(context.tasks, _spill_while_wanted(context, pool))


async def _spill_while_wanted(context: GatewayContext, pool: SlotPool) -> None:
    """Spill messages, the longest waiting first, until nobody waits for room or nothing is left to spill."""
    try:
        while (message := _to_spill(context, pool)) is not None:
            message.moving = spawn(context.tasks, _spill(context, message))
            await asyncio.wait([message.moving])
            if message.lease is not None:
                await asyncio.sleep(RETRY_SECONDS)
    finally:
        context.making_room.discard(pool)


def _to_spill(context: GatewayContext, pool: SlotPool) -> Message | None:
    """The message whose room helps those who wait, None where nobody does or none would."""
    wanted, owner = pool.wanted
    if not wanted:
        return None
    return next((each for each in context.mailbox.in_region(pool.region) if owner in (None, each.lease_owner)), None)


async def _spill(context: GatewayContext, message: Message) -> None:
    lease = message.lease
    assert lease is not None
    try:
        spilled = await asyncio.to_thread(context.spill.spill, lease.slot, message.payload_at, message.total_bytes)
    except FedRDMAError as error:
        # the message stays where it is
        context.complaints.add(logger, "spill failed", "messages", "%s", error, level=logging.ERROR)
        return
    finally:
        message.moving = None
    message.lease = None
    lease.release()
    _spilled(context, message, spilled)


def keep_small(context: GatewayContext, message: Message, owner: str) -> None:
    """Move a small message that nobody waits for out of the heap: to receive memory, where there is none to disk."""
    body = message.body
    if not body or not context.mailbox.waits_here(message):
        return
    lease = _room_at_once(context.receive_pool, message, owner)
    if lease is None:
        message.moving = spawn(context.tasks, _spill_small(context, message, body))
        return
    lease.slot.view[:] = body
    message.lease, message.body = lease, None


async def _spill_small(context: GatewayContext, message: Message, body: bytes) -> None:
    context.small_bytes += len(body)
    try:
        spilled = await asyncio.to_thread(context.spill.spill_bytes, body)
    except FedRDMAError as error:
        # the message stays where it is
        context.complaints.add(logger, "spill failed", "small messages", "%s", error, level=logging.ERROR)
        return
    finally:
        context.small_bytes -= len(body)
        message.moving = None
    message.body = None
    _spilled(context, message, spilled)


def take_in(context: GatewayContext, message: Message) -> None:
    """Begin to copy a borrowed message that nobody has pulled into memory of ours, to disk where there is no room."""
    if message.moving is None and message.borrowed is not None:
        message.moving = spawn(context.tasks, _take_in(context, message, message.borrowed))


async def _take_in(context: GatewayContext, message: Message, borrowed: BorrowedSlot) -> None:
    lease = _room_at_once(context.receive_pool, message, f"message:{message.key}")
    try:
        if lease is not None:
            await asyncio.to_thread(borrowed.read_into, lease.slot.view)
            message.lease = lease
        else:
            _spilled(context, message, await asyncio.to_thread(context.spill.spill_borrowed, borrowed))
    except FedRDMAError as error:
        # the message stays where it is
        context.complaints.add(logger, "spill failed", "messages", "%s", error, level=logging.ERROR)
        if lease is not None:
            lease.release()
        return
    finally:
        message.moving = None
    message.borrowed = None
    borrowed.close()


def _room_at_once(pool: SlotPool, message: Message, owner: str) -> Lease | None:
    try:
        return pool.lease(message.total_bytes, owner)
    except MemoryPoolError:
        return None


def _spilled(context: GatewayContext, message: Message, spilled: Spilled) -> None:
    message.spilled = spilled
    context.metrics.spilled(message.total_bytes)
    context.trace.spilled(message.key, message.total_bytes)
