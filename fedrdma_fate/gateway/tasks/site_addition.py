"""A sum that another site has asked for, or is likely to: of messages that are kept back, and sums of sites below."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Add, Begin, End, Unfit
from fedrdma_fate.aggregate.place import MARK_BYTES, PLANES_AT, accumulator_bytes
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.aggregate.worker_pool import WorkerPool
from fedrdma_fate.core.fold import Order
from fedrdma_fate.core.sum_tree import LEAST_PARTS, Asked
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks.adding import CannotAddError, locate, read_summand
from fedrdma_fate.gateway.tasks.child_sums import ChildSums
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.shared_slots import hold_range
from fedrdma_fate.wire.errors import MemoryPoolError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MessageKey, Party, SumOrder
from fedrdma_fate.wire.site_sum import MOST_TRANSFER, Part, SiteSum, encode_site_sum
from fedrdma_fate.wire.summand import NoSummandError, Shape, Summand, planes_bytes

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Likely:
    """Of a sum that was not asked for yet.

    Attributes:
        first: whose message it is begun for.
        unasked: called when it is over, and still was not.
    """

    first: Party
    unasked: Callable[[], object]


@dataclasses.dataclass(frozen=True, slots=True)
class AdditionProgress:
    """How far a sum for another site has come.

    Attributes:
        key: of the message that it travels in.
        asked_by: the site that it goes to.
        parties: of this site that belong to it; of a site that only passes on, none does.
        asked_sites: sums of sites below that were asked for.
        added: how many updates are in it.
        awaited: whose of this site's are not.
        sites: whose sums are awaited.
        is_sent: it was sent, and waits to be confirmed.
    """

    key: MessageKey
    asked_by: str
    parties: tuple[Party, ...]
    asked_sites: int
    added: int
    awaited: tuple[Party, ...]
    sites: tuple[str, ...]
    is_sent: bool


class NoRoomError(Exception):
    """There is no memory for a sum: nothing is waited for, for the messages can go without."""


class SiteAddition:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        context: GatewayContext,
        workers: WorkerPool,
        keeps: Sending,
        sends: Sending,
        order: SumOrder,
        key: MessageKey,
        sum_id: int,
        below: Sequence[Asked[Party]] = (),
        likely: Likely | None = None,
    ) -> None:
        """
        Args:
            context: the gateway's.
            workers: those of its sums.
            keeps: what sends to the site that the messages are for.
            sends: what sends to the site that asks: that one, or the parent.
            order: what is asked for, or likely to be.
            key: in which message it travels.
            sum_id: its number at a worker.
            below: what is to be asked for, of sites below this one.
            likely: it has not been asked for yet.
        """
        self._context = context
        self._workers = workers
        self._worker: WorkerHandle | None = None
        self._keeps = keeps
        self._sends = sends
        self._order = order
        self._key = key
        self._id = sum_id
        self._children = ChildSums(context, self._child_changed)
        comes = None if likely is None else likely.first
        self._missing = {source for source in self._own if source == comes or not self._was_pushed(source)}
        self._kept: dict[int, Outgoing] = {}
        self._ready: list[Outgoing] = []
        self._parts: list[Part] = []
        self._additions = 0
        self._shapes: tuple[Shape, ...] = ()
        self._lease: Lease | None = None
        self._open: OpenSum | None = None
        self._transfer: int | None = None
        self._changed = asyncio.Event()
        self._is_running = self._is_over = False
        self._likely = likely
        self._has_asked = False
        # of whom it is not waited for any more, though the order is still of them
        self._narrowed: set[Party] = set()
        if likely is None:
            self._ask(below)
        if len(self._missing) < LEAST_PARTS and not self._children.sites and (likely is None or not below):
            self._missing.clear()

    @property
    def _own(self) -> list[Party]:
        return [source for source in self._order.sources if self._context.routes.is_local(source)]

    def _ask(self, below: Sequence[Asked[Party]]) -> None:
        self._children.ask(self._order, below)
        if self._children.sites:
            self._has_asked = True
            self._run_once()

    def confirm(self, order: SumOrder, key: MessageKey, sends: Sending, below: Sequence[Asked[Party]]) -> bool:
        """It is asked for, by this order: whether what is kept back is of it; else that goes alone."""
        kept = {outgoing.key.source for outgoing in self._kept.values()}
        self._likely = None
        # where it has failed, all has gone alone, and nobody takes anything any more
        if self._is_over or not kept or not kept <= set(order.sources) or order.parties != self._order.parties:
            self.end()
            return False
        # what says whose it is has the room that those take
        fit = order.sources if self._lease is None else self._order.sources
        self._order, self._key, self._sends = order, key, sends
        self._missing = {source for source in self._own if source in fit and self._may_come(source, kept)}
        self._ask([each for each in below if set(each.sources) <= set(fit)])
        self._changed.set()
        return True

    def _may_come(self, source: Party, kept: set[Party]) -> bool:
        return source not in kept and not self._was_pushed(source)

    def _was_pushed(self, source: Party) -> bool:
        """Whether its message is on its way already, or was there before the order came."""
        order = self._order
        key = MessageKey(order.session, order.name, order.tag, source, order.destination)
        return self._context.mailbox.sessions.pushed(key) is not None

    @property
    def is_passed_on(self) -> bool:
        """Whether it goes to a parent, or holds what children send: then it ends with the channels it needs."""
        return self._sends is not self._keeps or self._has_asked

    def tell_if_idle(self) -> None:
        """Where nothing will ever be sent for it, the parent does not wait."""
        if not self._is_running and not self._missing:
            self.tell_none()

    def progress(self, asked_by: str) -> AdditionProgress:
        """How far it has come; any thread may ask."""
        awaited, sites = tuple(self._missing.copy()), self._children.sites
        is_sent = self._transfer is not None
        own, asked = tuple(self._own), self._children.count
        return AdditionProgress(self._key, asked_by, own, asked, len(self._parts), awaited, sites, is_sent)

    # -- what is kept back ----------------------------------------------------------------------------------------

    def takes(self, outgoing: Outgoing) -> bool:
        """Whether it waits for this message, and keeps it now."""
        order, key = self._order, outgoing.key
        is_of_it = (key.session, key.name, key.tag) == (order.session, order.name, order.tag)
        if not is_of_it or key.destination != order.destination or key.source not in self._missing or self._is_over:
            return False
        self._missing.remove(key.source)
        self._kept[outgoing.transfer] = outgoing
        if not outgoing.payload.written_from:
            self._is_whole(outgoing)
        self._run_once()
        self._changed.set()
        return True

    def _run_once(self) -> None:
        if not self._is_running:
            self._is_running = True
            spawn(self._context.tasks, self._run())

    def on_whole(self, outgoing: Outgoing) -> None:
        """A message lies whole in its slot now."""
        if outgoing.transfer in self._kept:
            self._is_whole(outgoing)
            self._changed.set()

    def _is_whole(self, outgoing: Outgoing) -> None:
        self._ready.append(outgoing)
        self._workers.arrived()

    def _child_changed(self) -> None:
        self._workers.arrived()
        self._changed.set()

    def on_sum_failed(self, transfer: int) -> None:
        """Its sum did not get to the other site."""
        if transfer == self._transfer:
            self._transfer = None
            self._send_alone()

    def lost(self, site: str) -> None:
        """A site is not connected any more: its sum does not come."""
        if self._children.lost(site):
            self._changed.set()

    def narrow(self, sources: Collection[Party]) -> bool:
        """The order is of these alone by now: nobody waits for who is below and not among them; whether that is new."""
        gone = set(self._order.sources).difference(sources)
        if not gone - self._narrowed:
            return False
        self._narrowed |= gone
        if self._children.narrow(set(self._order.sources) - self._narrowed):
            self._changed.set()
        return True

    def end(self) -> None:
        """The order is over: whatever has not been delivered by now goes alone."""
        self._is_over = True
        self._changed.set()
        if self._transfer is not None:
            self._sends.withdraw_site_sum(self._transfer)
        self._send_alone()

    def _send_alone(self) -> None:
        """Wait for nobody, and keep nothing back."""
        self._missing.clear()
        self._ready.clear()
        kept, self._kept = list(self._kept), {}
        self._keeps.send_alone(kept)
        self._children.end()

    # -- adding ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._workers.enter()
        try:
            await self._add_all()
            if not self._is_over:
                await self._send()
        except asyncio.CancelledError:
            # the gateway stops: nobody may write into the slot when it is given back
            self._workers.close()
            raise
        except (NoRoomError, NoSummandError, WorkerLostError, MemoryPoolError, OSError) as error:
            logger.warning("%s of %s go one by one, without their sum: %s", self._key.name, self._key.session, error)
            self._send_alone()
        except Exception:
            # a mistake here is nothing that they should wait for
            logger.exception("%s of %s go one by one, without their sum", self._key.name, self._key.session)
            self._send_alone()
        finally:
            if self._likely is not None:
                self._likely.unasked()
                self._likely = None
            await self._give_room_back()
            if self._worker is not None:
                self._workers.give_back(self._worker)
            self._workers.leave()
            self.tell_none()

    async def _add_all(self) -> None:
        """Add what is there, until all is or the time is over; then the others go alone."""
        loop = asyncio.get_running_loop()
        began: float | None = None
        while not self._is_over:
            while not self._is_over and (self._ready or self._children.is_one_here):
                if self._ready:
                    await self._take_in(self._ready.pop(0))
                else:
                    await self._merge_in(self._children.pop())
            if began is None and (self._kept or self._parts):
                began = loop.time()
            is_all = not self._missing and not self._children.sites
            if self._likely is None and is_all and all(transfer in self._in for transfer in self._kept):
                break
            self._changed.clear()
            try:
                # those below wait as long, one after the other
                wait = (1 + self._children.levels) * self._context.config.aggregate.site_wait
                left = None if began is None else max(0.0, began + wait - loop.time())
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                break
        if self._likely is not None:
            self._is_over = True
            self._send_alone()
        self._missing.clear()
        self._children.close_to_late()
        late = [transfer for transfer in self._kept if transfer not in self._in]
        for transfer in late:
            del self._kept[transfer]
        self._keeps.send_alone(late)

    @property
    def _in(self) -> set[int]:
        return {part.transfer for part in self._parts if self._context.routes.is_local(part.party)}

    async def _take_in(self, outgoing: Outgoing) -> None:
        """Add a message; one that cannot be added goes alone."""
        try:
            await self._add(outgoing)
        except CannotAddError as error:
            logger.info("%s goes alone: %s", outgoing.key, error)
            self._kept.pop(outgoing.transfer, None)
            self._keeps.send_alone([outgoing.transfer])

    async def _add(self, outgoing: Outgoing) -> None:
        found = self._keeps.find(outgoing.key) if self._keeps.is_kept_back(outgoing.transfer) else None
        if found is None:
            raise CannotAddError("it is not here any more")
        payload, lease = found
        try:
            message = Message(outgoing.key, outgoing.kind, payload.total_bytes, lease=lease)
            if payload.total_bytes <= INLINE_LIMIT_BYTES:
                raise CannotAddError("the updates are small")
            _, descriptor, offset = message.locate()
            try:
                summand, first = read_summand(message, descriptor, offset)
                if summand.parties != (outgoing.key.source,):
                    raise CannotAddError("it says that it is another party's")
                await self._add_planes(summand, summand.weight, descriptor, offset + first, is_region=True)
            finally:
                os.close(descriptor)
        finally:
            lease.release()
        self._parts.append(Part(outgoing.key.source, summand.weight, outgoing.transfer))

    async def _merge_in(self, message: Message) -> None:
        """Add the sum of a site below; of one that cannot be added, its parties go alone."""
        try:
            await self._merge(message)
        except CannotAddError as error:
            logger.warning("the sum of a site, %s, is not used: %s", message.key, error)
            self._children.refuse(message.key)
        finally:
            message.discard()

    async def _merge(self, message: Message) -> None:
        if message.small_body() is not None:
            raise CannotAddError("it is no sum of a site: it is small")
        place, descriptor, offset = locate(message)
        try:
            site_sum, first = self._children.read(message, descriptor, offset, self._order.parties)
            if {part.party for part in site_sum.parts} & {part.party for part in self._parts}:
                raise CannotAddError("a party in it is in the sum already")
            weight, is_region, parties = site_sum.parts[0].weight, place != "spilled", len(site_sum.parts)
            await self._add_planes(site_sum, weight, descriptor, offset + first, is_region=is_region, parties=parties)
        finally:
            os.close(descriptor)
        self._parts.extend(site_sum.parts)

    async def _add_planes(
        self,
        says: Summand | SiteSum,
        weight: float | None,
        descriptor: int,
        offset: int,
        *,
        is_region: bool,
        parties: int = 0,
    ) -> None:
        """Add an update, or the sum of so many parties.

        Raises:
            CannotAddError: it is not in the sum, which is as before.
        """
        if self._parts and says.shapes != self._shapes:
            raise CannotAddError("its arrays have other shapes than those that are in the sum")
        if self._parts and (weight is None) != (self._parts[0].weight is None):
            raise CannotAddError("it has a weight and others have none, or the other way round")
        if self._open is not None and says.shapes != self._shapes:
            # nothing is in: what had these shapes was refused, and of another they would take more bytes, or fewer
            await self._give_room_back()
        opened = self._open or self._make_room(says.shapes)
        started = time.monotonic()
        job = Add(self._id, self._additions + 1, offset, is_region, parties)
        answer = await self._do(job, opened, descriptor)
        if isinstance(answer, Unfit):
            raise CannotAddError(answer.reason)
        self._additions += 1
        self._context.metrics.update_added(Order.EXACT.value, planes_bytes(self._shapes), time.monotonic() - started)

    def _make_room(self, shapes: tuple[Shape, ...]) -> OpenSum:
        self._shapes = shapes
        # what takes the most room: which weights and transfers they are is not known yet
        longest = tuple(Part(source, 0.5, MOST_TRANSFER) for source in self._order.sources)
        footer = len(encode_site_sum(SiteSum(self._order.parties, longest, shapes)))
        length = accumulator_bytes(Order.EXACT, planes_bytes(shapes)) + footer
        self._lease = lease = self._context.send_pool.lease(length, f"site-sum:{self._id}")
        if lease is None:
            raise NoRoomError(f"no room for a sum of {length} bytes")
        lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)
        descriptor = memory_files.open_for_writing(lease.slot.region.fileno)
        try:
            # the next gateway sees by it whether a worker may still write there
            hold_range(descriptor, lease.slot.offset, lease.slot.length)
        except OSError:
            os.close(descriptor)
            raise
        begin = Begin(self._id, "exact", self._order.parties, shapes, lease.slot.offset, lease.slot.length)
        self._open = OpenSum(begin, descriptor)
        return self._open

    async def _give_room_back(self) -> None:
        await self._unmap()
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    async def _do(self, job: Add | End, opened: OpenSum, descriptor: int | None = None) -> object:
        if self._worker is None:
            self._worker = self._workers.choose()
        return await self._worker.do(job, opened, descriptor)

    async def _unmap(self) -> None:
        """No worker writes to the slot any more."""
        opened, self._open = self._open, None
        if opened is None:
            return
        try:
            await self._do(End(self._id), opened)
        except WorkerLostError:
            # the process that had it mapped is gone
            return
        finally:
            os.close(opened.descriptor)

    # -- sending --------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        await self._unmap()
        own = [part.transfer for part in self._parts if self._context.routes.is_local(part.party)]
        transfers = [transfer for transfer in own if self._keeps.is_kept_back(transfer)]
        if self._is_over:
            return
        if len(self._parts) < LEAST_PARTS or len(transfers) != len(own) or self._lease is None:
            # one by itself is no sum; and of one that was given up meanwhile, the sum would be of no use
            self._send_alone()
            return
        footer = encode_site_sum(SiteSum(self._order.parties, tuple(self._parts), self._shapes))
        at = PLANES_AT + planes_bytes(self._shapes)
        self._lease.slot.view[at : at + len(footer)] = footer
        lease, self._lease = self._lease, None
        total = at + len(footer) - PLANES_AT
        payload = Payload(lease.slot.part(PLANES_AT, total), total)
        mode = self._kept[transfers[0]].mode if transfers else self._sends.mode
        # before it goes: the answer is about them
        self._keeps.note_in_sum(transfers)
        self._transfer = self._sends.put_site_sum(self._key, payload, lease, mode)

    def tell_none(self) -> None:
        """Where no sum goes to the parent, it does not wait for one."""
        if self._transfer is None and not self._is_over and self._sends is not self._keeps:
            self._sends.tell_no_site_sum(self._key)
