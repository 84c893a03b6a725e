"""Puts the messages of an earlier run back: those that wait, those that tasks have mapped, and those that are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.earlier_run import EarlierRun
from fedrdma_fate.gateway.journal_records import Gone, Lost, Received
from fedrdma_fate.gateway.messages.mailbox import Message
from fedrdma_fate.gateway.peers.receiving import Receiving, pool_owner
from fedrdma_fate.gateway.spilling import keep_small
from fedrdma_fate.memory.shared_slots import range_is_held
from fedrdma_fate.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

TASKS_LOOK_SECONDS = 1.0
"""Between two looks at what tasks of an earlier run have mapped: a slot is free so long after they let go of it."""

_HELD_BY = "tasks of an earlier run"
"""Who holds those slots."""


def restore(context: GatewayContext, run: EarlierRun, peers: Mapping[str, Receiving]) -> None:
    """Let this gateway have what the run before it had. Nobody has connected yet."""
    held: dict[tuple[str, int], Message] = {}
    kept = 0
    for name, lost in run.state.lost.items():
        _tell(context, name, lost, peers)
    for origin, receiving in peers.items():
        receiving.restore_ended(run.state.ended(origin))
    for name, record in list(run.state.messages.items()):
        message = _found(context, run, record)
        if message is None:
            _lose(context, run, record, peers)
        elif not record.handed:
            kept += context.mailbox.deliver(message)
            if message.body is not None:
                keep_small(context, message, message.counts_as)
        elif message.lease is None:
            # whoever has a file mapped needs its name no more
            message.discard()
        else:
            held[name] = message
    context.spill.remove_others({record.file for record in run.state.messages.values()})
    context.receive_pool.give_back_free()
    if held:
        spawn(context.tasks, _await_tasks(held))
    if run.state.messages or run.state.lost:
        logger.warning(
            "of an earlier run, %d messages wait here, tasks have %d, and %d are lost",
            kept,
            len(held),
            len(run.state.lost),
        )


def _found(context: GatewayContext, run: EarlierRun, record: Received) -> Message | None:
    """The message, where its memory or its file is still there."""
    message = Message(
        record.key,
        record.kind,
        record.total_bytes,
        body=record.body,
        origin=record.origin,
        user=record.user,
        transfer=record.transfer,
    )
    context.journal.follow(message)
    if record.body is not None:
        return message
    if record.file:
        message.spilled = None if run.spill is None else context.spill.find(record.file, record.total_bytes)
        return None if message.spilled is None else message
    if run.region is None:
        return None
    owner = _HELD_BY if record.handed else pool_owner(record.origin) if record.origin else message.counts_as
    length = record.payload_at + record.total_bytes
    message.lease = context.receive_pool.lease_at(record.offset, length, owner)
    message.payload_at = record.payload_at
    return None if message.lease is None else message


def _lose(context: GatewayContext, run: EarlierRun, record: Received, peers: Mapping[str, Receiving]) -> None:
    name = record.origin, record.transfer
    why = run.why_gone or "its file or its slot is gone"
    if record.handed:
        # its task has it, in memory that lives as long as the task does
        context.journal.write(Gone(*name))
        return
    lost = Lost(*name, record.key, f"it was here, and was lost when the gateway was killed: {why}")
    context.journal.write(lost)
    logger.error("[%s] %s from %s is lost: %s", ErrorCode.MESSAGE_LOST.value, record.key, record.origin or "here", why)
    run.state.lost[name] = lost
    _tell(context, name, lost, peers)


def _tell(context: GatewayContext, name: tuple[str, int], lost: Lost, peers: Mapping[str, Receiving]) -> None:
    origin, transfer = name
    context.mailbox.fail(lost.key, ErrorCode.MESSAGE_LOST.value, lost.reason, origin)
    if (receiving := peers.get(origin)) is not None:
        receiving.note_lost(transfer, lost.reason)


async def _await_tasks(held: dict[tuple[str, int], Message]) -> None:
    """Give slots back when the tasks that have them mapped let go of them, or die."""
    while held:
        for name, message in list(held.items()):
            if message.lease is None or not range_is_held(message.lease.slot):
                message.discard()
                del held[name]
        await asyncio.sleep(TASKS_LOOK_SECONDS)
