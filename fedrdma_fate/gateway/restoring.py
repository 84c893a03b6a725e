"""Puts back what an earlier run had: messages that wait, or are to be sent; what tasks have; and what is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping

from fedrdma_fate.aggregate.place import planes_at
from fedrdma_fate.core.digest import block_digest
from fedrdma_fate.core.fold import Order
from fedrdma_fate.core.held import Held, longest, merged
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal.earlier_run import EarlierRun
from fedrdma_fate.gateway.journal.kept_sums import KeptSum
from fedrdma_fate.gateway.journal_records import (
    Coming,
    ComingSealed,
    Dropped,
    Gone,
    Lost,
    Outgoing,
    Received,
    Stopped,
    SumGone,
    Unleased,
)
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.kept_transfers import kept_key, told_of
from fedrdma_fate.gateway.peers.peer import Peer
from fedrdma_fate.gateway.peers.receiving import pool_owner
from fedrdma_fate.gateway.spilling import keep_small
from fedrdma_fate.gateway.tasks.returning import TASKS_LOOK_SECONDS, EarlierSum, Had
from fedrdma_fate.memory.pool import Lease, SlotPool
from fedrdma_fate.memory.region import PAGE_BYTES
from fedrdma_fate.memory.shared_slots import held_ranges, place_is_held, range_is_held
from fedrdma_fate.quantities import counted
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import PROBE_TRANSFERS_FROM
from fedrdma_fate.wire.site_sum import is_site_sum
from fedrdma_fate.wire.summand import planes_bytes

logger = logging.getLogger(__name__)

_HELD_BY = "tasks of an earlier run"
"""Who holds those slots."""


@dataclasses.dataclass(slots=True)
class _Held:
    """A slot that somebody may have from an earlier run: whether that is so still, and what is done when it is not."""

    is_held: Callable[[], bool]
    let_go: Callable[[], object]


class _Slots:
    """Leases slots of a region anew, each of them once, whoever shares it."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._first: dict[int, Lease] = {}

    def lease(self, offset: int, length: int, owner: str) -> Lease | None:
        """One more hold on the slot that begins there; None where another lies there."""
        first = self._first.get(offset)
        if first is not None:
            return first.share(owner) if first.slot.length >= length else None
        lease = self._pool.lease_at(offset, length, owner)
        if lease is not None:
            # held until all is restored, so that the first that has it may give it back
            self._first[offset] = lease.share(_HELD_BY)
        return lease

    def lease_alone(self, offset: int, length: int, owner: str) -> Lease | None:
        """The slot that begins there, where nobody else has any of it."""
        return None if offset in self._first else self.lease(offset, length, owner)

    def done(self) -> None:
        """All is restored."""
        for lease in self._first.values():
            lease.release()
        self._pool.give_back_free()


def restore(context: GatewayContext, run: EarlierRun, peers: Mapping[str, Peer]) -> list[Had]:
    """Let this gateway have what the run before it had. Nobody has connected yet.

    Returns:
        tasks that may come back, and what they had.
    """
    restoration = _Restoration(context, run, peers)
    restoration.carry_out()
    return list(restoration.tasks.values())


class _Restoration:
    """One restoring, from its begin to its end."""

    def __init__(self, context: GatewayContext, run: EarlierRun, peers: Mapping[str, Peer]) -> None:
        self._context = context
        self._run = run
        self._peers = peers
        self._held: list[_Held] = []
        self.tasks = {client: Had(task) for client, task in run.state.tasks.items()}
        self._small: list[Message] = []
        self._received = _Slots(context.receive_pool)
        self._sent = _Slots(context.send_pool)
        self._kept = self._resumed = 0

    def carry_out(self) -> None:
        """All of it, in the order in which one thing needs another."""
        run, context = self._run, self._context
        for site, peer in self._peers.items():
            peer.restore_journal(run.state.met.get(site, ""))
            peer.receiving.restore_ended(run.state.ended(site))
            peer.sending.restore_told(run.state.confirmed(site), run.state.undelivered.get(site, {}).values())
        # after those, of which they are some: who asks for one again is told that it is lost
        for lost in run.state.lost.values():
            self._tell(lost)
        for late in run.state.late:
            context.mailbox.restore_late(late)
        # before any message that one of them is
        for key, pull in run.state.sessions.pulls():
            if (had := self.tasks.get(pull.client)) is not None:
                had.pulls.append((key, pull.asked))
                context.mailbox.doubt(key)
        # slots are leased anew by those who know their length, the longest hold first
        if run.send_region is not None:
            self._restore_leases()
        for record in list(run.state.messages.values()):
            self._restore_message(record)
        for kept in run.state.sums:
            self._restore_sum(kept)
        for outgoing in list(run.state.outgoing.values()):
            self._restore_outgoing(outgoing)
        if run.send_region is not None:
            self._hold_borrowed(context.send_pool, self._sent)
        if run.region is not None:
            self._hold_borrowed(context.receive_pool, self._received)
            # last: in memory that anybody else has, nothing goes on
            for coming in list(run.state.coming.values()):
                self._restore_coming(coming)
        self._received.done()
        self._sent.done()
        for message in self._small:
            # when each slot that others lie in is leased anew, and what is free is free
            keep_small(context, message, _owner(message))
        context.spill.remove_others({record.file for record in run.state.messages.values()})
        if context.copies is not None:
            context.copies.remove_others({record.copy for record in run.state.messages.values()})
        if self._held:
            spawn(context.tasks, _await_holders(self._held))
        if run.state.messages or run.state.lost or run.state.outgoing:
            logger.warning(
                "of an earlier run: %s to be pulled here, %d to be sent, %s that tasks have, %d lost",
                counted(self._kept, "message"),
                self._resumed,
                counted(len(self._held) + sum(had.count for had in self.tasks.values()), "slot"),
                len(run.state.lost),
            )

    # -- what was received ----------------------------------------------------------------------------------------

    def _restore_message(self, record: Received) -> None:
        context = self._context
        message = self._found(record)
        if is_site_sum(record.key) and not context.routes.is_local(record.key.destination):
            # to be added to others and passed on, which nobody does any more: its parties go alone
            if message is None:
                context.journal.write(Gone(record.origin, record.transfer))
            else:
                message.discard()
            return
        if message is not None and message.lease is not None and record.origin in self._peers and not message.missing:
            self._peers[record.origin].receiving.same.came(message)
        if message is None:
            self._lose(record)
        elif not record.handed:
            self._kept += context.mailbox.deliver(message)
            if message.body is not None:
                self._small.append(message)
        elif (had := self.tasks.get(record.client)) is not None:
            if record.lease:
                had.messages[record.lease] = message, record.asked
            else:
                had.small.append((message, record.asked))
        elif message.lease is None:
            # whoever has a file mapped needs its name no more
            message.discard()
        else:
            slot = message.lease.slot
            self._held.append(_Held(lambda: range_is_held(slot), message.discard))

    def _found(self, record: Received) -> Message | None:
        """The message, where its memory or its file is still there."""
        context = self._context
        message = Message(
            record.key,
            record.kind,
            record.total_bytes,
            body=record.body,
            origin=record.origin,
            user=record.user,
            broker="" if record.origin else context.routes.broker_of(record.key.source),
            transfer=record.transfer,
            missing=record.missing,
        )
        context.journal.follow(message)
        if record.body is not None:
            if record.file and self._find_first(record, message):
                message.body = None
            return message
        if record.copy and context.copies is not None:
            message.copy = context.copies.find(record.copy, record.total_bytes)
        is_there = self._find_first(record, message) or message.use_copy() is not None
        return message if is_there else None

    def _find_first(self, record: Received, message: Message) -> bool:
        """Find it where it lay first, in a file or in its slot."""
        run, context = self._run, self._context
        if record.file:
            if run.spill is not None and record.file != record.copy:
                message.spilled = context.spill.find(record.file, record.total_bytes)
            return message.spilled is not None
        if (run.send_region if record.sending else run.region) is None:
            return False
        owner = _HELD_BY if record.handed else _owner(message)
        slots = self._sent if record.sending else self._received
        message.lease = slots.lease(record.offset, record.payload_at + record.total_bytes, owner)
        message.payload_at = record.payload_at
        return message.lease is not None

    def _restore_coming(self, record: Coming | ComingSealed) -> None:
        """Half a message, which goes on in its slot when its sender asks for one."""
        peer, offer = self._peers.get(record.origin), record.offer
        lease = None
        if peer is not None:
            lease = self._received.lease_alone(record.offset, record.length, pool_owner(record.origin))
        if peer is None or lease is None:
            self._context.journal.write(Stopped(record.origin, offer.transfer))
            return
        if isinstance(record, ComingSealed):
            kept = KeptSlot(offer, lease.slot, Held(), kept_key(record, lease.slot), record.adopted)
            peer.receiving.kept.restore(kept, lease, told_of(record))
            return
        held = Held(longest(merged(self._right_pieces(record, lease))), record.tagged)
        peer.receiving.kept.restore(KeptSlot(offer, lease.slot, held), lease)

    def _right_pieces(self, record: Coming, lease: Lease) -> Iterator[tuple[int, int]]:
        """Those that nobody has written into since; without digests, the digest of the whole will show them."""
        for start, end, digest in record.pieces:
            if not record.digested:
                yield start, end
                continue
            part = lease.slot.part(record.payload_at + start, end - start)
            if block_digest(part.view) == digest:
                yield start, end

    def _lose(self, record: Received) -> None:
        name = record.origin, record.transfer
        if record.handed:
            # its task has it, in memory that lives as long as the task does
            self._context.journal.write(Gone(*name))
            return
        lost = self._run.lose(record, self._why_gone)
        self._context.journal.write(lost)
        self._tell(lost)

    def _tell(self, lost: Lost) -> None:
        self._context.mailbox.fail(lost.key, ErrorCode.MESSAGE_LOST.value, lost.reason, lost.origin)
        if (peer := self._peers.get(lost.origin)) is not None:
            peer.receiving.note_lost(lost.transfer, lost.reason)
        elif not lost.origin:
            text = f"an earlier push, {lost.key}, is lost: {lost.reason}"
            self._context.mailbox.sessions.push_failed(lost.key, GatewayError(ErrorCode.MESSAGE_LOST, text))

    @property
    def _why_gone(self) -> str:
        return self._run.why_gone or "its file or its slot is gone"

    # -- what is summed -------------------------------------------------------------------------------------------

    def _restore_sum(self, kept: KeptSum) -> None:
        """For its task, which asks for it again, or has it mapped."""
        context, began = self._context, kept.began
        when_gone = functools.partial(context.journal.write, SumGone(began.number))
        length = planes_bytes(began.shapes)
        at = planes_at(Order(began.order), length)
        message = Message(began.keys[0], "object", length, payload_at=at, when_gone=when_gone)
        message.lease = self._received.lease(began.offset, began.length, f"sum:{began.number}")
        had = self.tasks.get(began.client)
        if message.lease is None:
            # what lies there now was written down as something else
            message.discard()
        elif had is not None:
            had.sums.append(EarlierSum(kept, message))
        else:
            slot = message.lease.slot
            self._held.append(_Held(lambda: range_is_held(slot), message.discard))

    # -- what is to be sent ---------------------------------------------------------------------------------------

    def _restore_outgoing(self, record: Outgoing) -> None:
        if record.transfer >= PROBE_TRANSFERS_FROM:
            return
        peer = self._peers.get(record.peer)
        if peer is None:
            self._give_up(record)
            return
        if not record.whole:
            if (had := self.tasks.get(self._writer_of(record.offset))) is not None:
                had.unfinished.append((peer.sending, record))
                return
            peer.sending.note_lost(record, "the gateway was killed before its task had written all of it")
            return
        lease = None
        if record.body is None:
            if self._run.send_region is not None:
                lease = self._sent.lease(record.offset, record.total_bytes, f"transfer:{record.key}")
            if lease is None:
                why = f"it was to be sent, and was lost when the gateway was killed: {self._why_gone}"
                peer.sending.note_lost(record, why)
                return
        peer.sending.restore(record, lease)
        self._resumed += 1

    def _give_up(self, record: Outgoing) -> None:
        """It was to be sent to a site that is a peer no more: its task is told."""
        why = f"{record.peer} is no peer of this site any more"
        logger.error("[%s] %s is not sent: %s", ErrorCode.MESSAGE_LOST.value, record.key, why)
        sessions = self._context.mailbox.sessions
        with self._context.journal.together():
            sessions.forget_push(record.key)
            sessions.push_not_delivered(record.key, ErrorCode.MESSAGE_LOST, why)
            self._context.journal.write(Dropped(record.peer, record.transfer))

    def _restore_leases(self) -> None:
        """Slots into which tasks of the earlier run may still write."""
        region = self._context.send_pool.region
        for record in self._run.state.leases.values():
            gone = Unleased(record.client, record.lease)
            place = region.length + record.place
            if (had := self.tasks.get(record.client)) is not None:
                of_task = self._sent.lease(record.offset, record.length, f"task:{record.client}")
                if of_task is not None:
                    had.leases[record.lease] = of_task
                else:
                    self._context.journal.write(gone)
                continue
            lease = None
            if place_is_held(region.fileno, place):
                lease = self._sent.lease(record.offset, record.length, _HELD_BY)
            if lease is None:
                self._context.journal.write(gone)
                continue
            self._held.append(_Held(_is_held_at(region.fileno, place), _both(lease, self._context, gone)))

    def _writer_of(self, offset: int) -> str:
        """The task that has the send slot there, where one has."""
        return next((each.client for each in self._run.state.leases.values() if each.offset == offset), "")

    def _hold_borrowed(self, pool: SlotPool, slots: _Slots) -> None:
        """What gateways and tasks of this host have mapped of a region, whoever it was lent to."""
        region = pool.region
        if region.fileno < 0:
            # in memory of this process alone
            return
        for offset, length in held_ranges(region.fileno, region.length):
            start = offset // PAGE_BYTES * PAGE_BYTES
            lease = slots.lease(start, offset + length - start, _HELD_BY)
            if lease is not None:
                self._held.append(_Held(_is_range_held(lease), lease.release))


def _owner(message: Message) -> str:
    """Under whose name it has receive memory."""
    return pool_owner(message.origin) if message.origin else message.counts_as


def _is_held_at(fileno: int, place: int) -> Callable[[], bool]:
    return lambda: place_is_held(fileno, place)


def _is_range_held(lease: Lease) -> Callable[[], bool]:
    slot = lease.slot
    return lambda: range_is_held(slot)


def _both(lease: Lease, context: GatewayContext, record: Unleased) -> Callable[[], None]:
    def let_go() -> None:
        context.journal.write(record)
        lease.release()

    return let_go


async def _await_holders(held: list[_Held]) -> None:
    """Give slots back when those who have them let go of them, or die."""
    while held:
        for each in [each for each in held if not each.is_held()]:
            each.let_go()
            held.remove(each)
        await asyncio.sleep(TASKS_LOOK_SECONDS)
