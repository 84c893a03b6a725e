"""Moves messages that nobody has pulled yet: to disk when others need the room, to us when their lender does."""

from __future__ import annotations

import asyncio
import logging

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.shared_slots import BorrowedSlot
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""After a spill that failed (a full disk), the next try. Meanwhile whoever wants room waits for tasks to pull."""

SMALL_RETRY_SECONDS = 1.0
"""The same for small messages, which others may be refused for: so soon those that were pulled no longer count."""


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
    if (copy := message.use_copy()) is not None:
        # it is on disk already
        message.moving, message.lease = None, None
        _spilled(context, message, copy)
        lease.release()
        return
    try:
        spilled = await asyncio.to_thread(context.spill.spill, lease.slot, message.payload_at, message.total_bytes)
    except FedRDMAError as error:
        # the message stays where it is
        context.complaints.add(logger, "spill failed", "messages", "%s", error, level=logging.ERROR)
        return
    finally:
        message.moving = None
    message.lease = None
    _spilled(context, message, spilled)
    _spill_others(context, message, spilled, lease)
    lease.release()


def _spill_others(context: GatewayContext, message: Message, spilled: Spilled, lease: Lease) -> None:
    """Messages of the same payload give up the slot, too, which is free only then; the file is theirs as well."""
    slot = lease.slot
    for other in list(context.mailbox.in_region(slot.region)):
        held = other.lease
        if held is None or held.slot.offset != slot.offset:
            continue
        if (other.payload_at, other.total_bytes) != (message.payload_at, message.total_bytes):
            continue
        again = context.spill.again(spilled)
        if again is None:
            # it is written by itself, when it is its turn
            return
        other.lease = None
        _spilled(context, other, again)
        held.release()


def keep_small(context: GatewayContext, message: Message, owner: str) -> None:
    """Move a small message that nobody waits for out of the heap: to receive memory, where there is none to disk."""
    body = message.body
    if not body or not context.mailbox.waits_here(message):
        return
    lease = _room_at_once(context.receive_pool, message, owner)
    if lease is None and (copy := message.use_copy()) is not None:
        message.body = None
        _spilled(context, message, copy)
        return
    if lease is None:
        message.moving = spawn(context.tasks, _spill_small(context, message, body, owner))
        return
    lease.slot.view[:] = body
    message.lease, message.body = lease, None


async def _spill_small(context: GatewayContext, message: Message, body: bytes, owner: str) -> None:
    context.small_bytes += len(body)
    try:
        spilled = await asyncio.to_thread(context.spill.spill_bytes, body)
    except FedRDMAError as error:
        # the message stays where it is
        context.complaints.add(logger, "spill failed", "small messages", "%s", error, level=logging.ERROR)
        if not context.unspilled:
            spawn(context.tasks, _place_unspilled(context))
        context.unspilled.add(message, owner)
        return
    finally:
        context.small_bytes -= len(body)
        message.moving = None
    message.body = None
    _spilled(context, message, spilled)


async def _place_unspilled(context: GatewayContext) -> None:
    """Try again to move small messages out of the heap, until none is left there that nobody has pulled."""
    while context.unspilled:
        await asyncio.sleep(SMALL_RETRY_SECONDS)
        for message, owner in context.unspilled.keep_those(lambda each: _is_in_heap(context, each)):
            if not _is_in_heap(context, message):
                # pulled meanwhile
                continue
            keep_small(context, message, owner)
            if message.moving is not None:
                await asyncio.wait([message.moving])
                if message.body is not None:
                    break
        context.unspilled.keep_those(lambda each: _is_in_heap(context, each))


def _is_in_heap(context: GatewayContext, message: Message) -> bool:
    return message.body is not None and context.mailbox.waits_here(message)


def why_no_room_for_small(context: GatewayContext, key: MessageKey) -> MemoryPoolError | None:
    """SPILL_FAILED where a small message is one too many for the heap, with memory and disk full; None for others.

    One that somebody waits for is never.
    """
    unspilled = context.unspilled
    if not unspilled.is_full or context.mailbox.is_awaited(key):
        return None
    # tasks may have pulled them meanwhile
    unspilled.recount(lambda each: _is_in_heap(context, each), asyncio.get_running_loop().time())
    if not unspilled.is_full:
        return None
    return MemoryPoolError(
        ErrorCode.SPILL_FAILED,
        f"{context.config.site} has neither receive memory nor room on its spill disk for another message.",
        "Make room on the disk of memory.spill_directory there, or raise memory.receive_bytes.",
    )


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
    # from now on it is ours to keep
    context.journal.keep(message)
    message.borrowed = None
    borrowed.close()


def _room_at_once(pool: SlotPool, message: Message, owner: str) -> Lease | None:
    try:
        return pool.lease(message.total_bytes, owner)
    except MemoryPoolError:
        return None


def _spilled(context: GatewayContext, message: Message, spilled: Spilled) -> None:
    message.spilled = spilled
    context.journal.spilled(message)
    context.metrics.spilled(message.total_bytes)
    context.trace.spilled(message.key, message.total_bytes)
