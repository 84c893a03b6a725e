"""Sums that other sites have asked for: messages to them are kept back, added, and their sum is sent as one.

Whatever goes wrong, each message that was kept back is still what it was, and goes alone. What is told to be in the sum
at the other site is delivered, which ends it here as if it had gone alone.

Who was asked for a sum once is likely asked for one of the same messages in the next round, under another tag; and who
was told ahead, in the first one. So what comes for it before that is kept back, too, and added; it is sent as a sum
when it was asked for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Add, Begin, End, Unfit
from fedrdma_fate.aggregate.place import MARK_BYTES, PLANES_AT, accumulator_bytes
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.aggregate.worker_pool import WorkerPool
from fedrdma_fate.core.fold import Order
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks.adding import CannotAddError, read_summand
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.shared_slots import hold_range
from fedrdma_fate.wire.errors import MemoryPoolError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, MOST_PARTIES, MOST_SUM_ORDERS, MessageKey, Party, SumOrder
from fedrdma_fate.wire.site_sum import MOST_TRANSFER, NEXT_TAG, Part, SiteSum, encode_site_sum, site_sum_key
from fedrdma_fate.wire.summand import NoSummandError, Shape, Summand, planes_bytes

logger = logging.getLogger(__name__)

_ID_BITS = 48
"""Of the number of the first sum at a worker, far from those of the gateway's own sums."""


LEAST_PARTS = 2
"""One message by itself is no sum."""

_Round = tuple[str, str, Party]
"""Session, name and destination of messages that are summed round by round."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Likely:
    """Of a sum that was not asked for yet.

    Attributes:
        first: whose message it is begun for.
        unasked: called when it is over, and still was not.
    """

    first: Party
    unasked: Callable[[], object]


class NoRoomError(Exception):
    """There is no memory for a sum: nothing is waited for, for the messages can go without."""


class SiteSums:
    """Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, workers: WorkerPool, peers: Mapping[str, Sending]) -> None:
        """
        Args:
            context: the gateway's.
            workers: those of its sums.
            peers: what sends to the other sites, by their names.
        """
        self._context = context
        self._workers = workers
        self._peers = peers
        self._sums: dict[str, dict[int, _SiteSum]] = {site: {} for site in peers}
        # what was asked for last of each, and what is kept back to be asked for, by its tag
        self._asked: dict[str, OrderedDict[_Round, SumOrder]] = {site: OrderedDict() for site in peers}
        self._expected: dict[str, dict[tuple[_Round, str], _SiteSum]] = {site: {} for site in peers}
        # numbers of orders ahead that stand, and are known
        self._ahead: dict[str, set[int]] = {site: set() for site in peers}
        self._ids = itertools.count((1 << _ID_BITS) + secrets.randbits(_ID_BITS))

    def on_orders(self, site: str, orders: Sequence[SumOrder]) -> None:
        """See `SiteSumTalk`."""
        standing, sums = {order.number: order for order in self._allowed(site, orders)}, self._sums[site]
        ahead = {number: standing.pop(number) for number, order in [*standing.items()] if order.tag == NEXT_TAG}
        for number, order in ahead.items():
            if number not in self._ahead[site]:
                self._remember(site, order)
        self._ahead[site] = set(ahead)
        for number in [number for number in sums if number not in standing]:
            sums.pop(number).end()
        for number, order in standing.items():
            if number in sums:
                continue
            key = _key_of(order)
            if key is None:
                continue
            self._remember(site, order)
            expected = self._expected[site].pop((_round_of(order), order.tag), None)
            if expected is not None and expected.confirm(order, key):
                sums[number] = expected
                continue
            sums[number] = self._new(site, order, key)

    def _new(self, site: str, order: SumOrder, key: MessageKey, likely: _Likely | None = None) -> _SiteSum:
        return _SiteSum(self._context, self._workers, self._peers[site], order, key, next(self._ids), likely)

    def _remember(self, site: str, order: SumOrder) -> None:
        asked = self._asked[site]
        known = asked.get(_round_of(order))
        if known is not None and known.parties == order.parties:
            # who came too early to be asked for is likely in time for the next one
            sources = dict.fromkeys([*known.sources, *order.sources])
            if len(sources) <= MOST_PARTIES:
                order = msgspec.structs.replace(order, sources=tuple(sources))
        asked[_round_of(order)] = order
        asked.move_to_end(_round_of(order))
        while len(asked) > MOST_SUM_ORDERS:
            asked.popitem(last=False)

    def _expects(self, site: str, outgoing: Outgoing) -> bool:
        """Whether its sum is likely to be asked for: then it is kept back until it is."""
        key, expected = outgoing.key, self._expected[site]
        round_ = key.session, key.name, key.destination
        last = self._asked[site].get(round_)
        if last is None or last.tag == key.tag or (round_, key.tag) in expected or len(expected) >= MOST_SUM_ORDERS:
            return False
        order = msgspec.structs.replace(last, tag=key.tag)
        sum_key = _key_of(order)
        if sum_key is None:
            return False

        def unasked() -> None:
            # it asks no more, or so late that nobody should wait for it
            expected.pop((round_, key.tag), None)
            self._asked[site].pop(round_, None)

        each = self._new(site, order, sum_key, _Likely(key.source, unasked))
        if not each.takes(outgoing):
            return False
        expected[round_, key.tag] = each
        return True

    def _allowed(self, site: str, orders: Sequence[SumOrder]) -> Sequence[SumOrder]:
        """Those of messages from parties of this site to one of that site; none where they are too many.

        The others are ignored: a task there that asks for what cannot be takes nothing from those beside it.
        """
        if not self._context.config.aggregate.site_sums:
            return ()
        right = [order for order in orders if self._can_be(site, order)]
        is_too_much = sum(len(order.sources) for order in orders) > MOST_PARTIES
        if is_too_much or len(right) < len(orders):
            message = "ignored orders of %s for sums: of parties that are not both sites', named twice, or too many"
            self._context.complaints.add(logger, "orders for sums", site, message, site)
        return () if is_too_much else right

    def _can_be(self, site: str, order: SumOrder) -> bool:
        routes = self._context.routes
        return (
            routes.find(order.destination) == site
            and len(set(order.sources)) == len(order.sources) <= order.parties
            and all(map(routes.is_local, order.sources))
        )

    def keeps_back(self, site: str, outgoing: Outgoing) -> bool:
        """See `SiteSumTalk`."""
        return any(each.takes(outgoing) for each in self._all(site)) or self._expects(site, outgoing)

    def _all(self, site: str) -> list[_SiteSum]:
        return [*self._sums[site].values(), *self._expected[site].values()]

    def on_whole(self, site: str, outgoing: Outgoing) -> None:
        """See `SiteSumTalk`."""
        for each in self._all(site):
            each.on_whole(outgoing)

    def standing(self, site: str) -> int:
        """See `SiteSumTalk`."""
        return len(self._sums[site])

    def on_sum_failed(self, site: str, transfer: int) -> None:
        """See `SiteSumTalk`."""
        for each in self._sums[site].values():
            each.on_sum_failed(transfer)


class _SiteSum:
    """One order."""

    def __init__(
        self,
        context: GatewayContext,
        workers: WorkerPool,
        sending: Sending,
        order: SumOrder,
        key: MessageKey,
        sum_id: int,
        likely: _Likely | None,
    ) -> None:
        """
        Args:
            context: the gateway's.
            workers: those of its sums.
            sending: what sends to the site that asks.
            order: what is asked for, or likely to be.
            key: in which message it travels.
            sum_id: its number at a worker.
            likely: it has not been asked for yet.
        """
        self._context = context
        self._workers = workers
        self._worker: WorkerHandle | None = None
        self._sending = sending
        self._order = order
        self._key = key
        self._id = sum_id
        comes = None if likely is None else likely.first
        self._missing = {source for source in order.sources if source == comes or not self._was_pushed(source)}
        if len(self._missing) < LEAST_PARTS:
            self._missing.clear()
        self._kept: dict[int, Outgoing] = {}
        self._ready: list[Outgoing] = []
        self._parts: list[Part] = []
        self._shapes: tuple[Shape, ...] = ()
        self._lease: Lease | None = None
        self._open: OpenSum | None = None
        self._transfer: int | None = None
        self._changed = asyncio.Event()
        self._is_running = self._is_over = False
        self._likely = likely

    def confirm(self, order: SumOrder, key: MessageKey) -> bool:
        """It is asked for, by this order: whether what is kept back is of it; else that goes alone."""
        kept = {outgoing.key.source for outgoing in self._kept.values()}
        self._likely = None
        # where it has failed, all has gone alone, and nobody takes anything any more
        if self._is_over or not kept or not kept <= set(order.sources) or order.parties != self._order.parties:
            self.end()
            return False
        # what says whose it is has the room that those take
        fit = order.sources if self._lease is None else self._order.sources
        self._missing = {source for source in order.sources if source in fit and self._may_come(source, kept)}
        self._order, self._key = order, key
        self._changed.set()
        return True

    def _may_come(self, source: Party, kept: set[Party]) -> bool:
        return source not in kept and not self._was_pushed(source)

    def _was_pushed(self, source: Party) -> bool:
        """Whether its message is on its way already, or was there before the order came."""
        order = self._order
        key = MessageKey(order.session, order.name, order.tag, source, order.destination)
        return self._context.mailbox.sessions.pushed(key) is not None

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
        if not self._is_running:
            self._is_running = True
            spawn(self._context.tasks, self._run())
        self._changed.set()
        return True

    def on_whole(self, outgoing: Outgoing) -> None:
        """A message lies whole in its slot now."""
        if outgoing.transfer in self._kept:
            self._is_whole(outgoing)
            self._changed.set()

    def _is_whole(self, outgoing: Outgoing) -> None:
        self._ready.append(outgoing)
        self._workers.arrived()

    def on_sum_failed(self, transfer: int) -> None:
        """Its sum did not get to the other site."""
        if transfer == self._transfer:
            self._transfer = None
            self._send_alone()

    def end(self) -> None:
        """The order is over: whatever has not been delivered by now goes alone."""
        self._is_over = True
        self._changed.set()
        if self._transfer is not None:
            self._sending.withdraw_site_sum(self._transfer)
        self._send_alone()

    def _send_alone(self) -> None:
        """Wait for nobody, and keep nothing back."""
        self._missing.clear()
        self._ready.clear()
        kept, self._kept = list(self._kept), {}
        self._sending.send_alone(kept)

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
        except (CannotAddError, WorkerLostError, MemoryPoolError, NoRoomError, NoSummandError, OSError) as error:
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
            await self._unmap()
            if self._worker is not None:
                self._workers.give_back(self._worker)
            self._workers.leave()
            if self._lease is not None:
                self._lease.release()

    async def _add_all(self) -> None:
        """Add messages as they are there, until all are or the time is over; then the others go alone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._context.config.aggregate.site_wait
        while not self._is_over:
            while self._ready and not self._is_over:
                await self._take_in(self._ready.pop(0))
            if self._likely is None and not self._missing and all(transfer in self._in for transfer in self._kept):
                break
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.0, until - loop.time()))
            except asyncio.TimeoutError:
                break
        if self._likely is not None:
            self._is_over = True
            self._send_alone()
        self._missing.clear()
        late = [transfer for transfer in self._kept if transfer not in self._in]
        for transfer in late:
            del self._kept[transfer]
        self._sending.send_alone(late)

    @property
    def _in(self) -> set[int]:
        return {part.transfer for part in self._parts}

    async def _take_in(self, outgoing: Outgoing) -> None:
        """Add a message; one that cannot be added goes alone."""
        try:
            await self._add(outgoing)
        except CannotAddError as error:
            logger.info("%s goes alone: %s", outgoing.key, error)
            self._kept.pop(outgoing.transfer, None)
            self._sending.send_alone([outgoing.transfer])

    async def _add(self, outgoing: Outgoing) -> None:
        found = self._sending.find(outgoing.key) if self._sending.is_kept_back(outgoing.transfer) else None
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
                self._check(outgoing, summand)
                opened = self._open or self._make_room(summand)
                job = Add(self._id, len(self._parts) + 1, offset + first, keep_mapped=True)
                started = time.monotonic()
                answer = await self._do(job, opened, descriptor)
            finally:
                os.close(descriptor)
        finally:
            lease.release()
        if isinstance(answer, Unfit):
            raise CannotAddError(answer.reason)
        added = planes_bytes(self._shapes)
        self._context.metrics.update_added(Order.EXACT.value, added, time.monotonic() - started)
        self._parts.append(Part(outgoing.key.source, summand.weight, outgoing.transfer))

    def _check(self, outgoing: Outgoing, summand: Summand) -> None:
        if summand.parties != (outgoing.key.source,):
            raise CannotAddError("it says that it is another party's")
        if self._parts and summand.shapes != self._shapes:
            raise CannotAddError("its arrays have other shapes than those that are in the sum")
        if self._parts and (summand.weight is None) != (self._parts[0].weight is None):
            raise CannotAddError("it has a weight and others have none, or the other way round")

    def _make_room(self, summand: Summand) -> OpenSum:
        self._shapes = summand.shapes
        # what takes the most room: which weights and transfers they are is not known yet
        longest = tuple(Part(source, 0.5, MOST_TRANSFER) for source in self._order.sources)
        footer = len(encode_site_sum(SiteSum(self._order.parties, longest, summand.shapes)))
        length = accumulator_bytes(Order.EXACT, planes_bytes(summand.shapes)) + footer
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
        begin = Begin(self._id, "exact", self._order.parties, summand.shapes, lease.slot.offset, lease.slot.length)
        self._open = OpenSum(begin, descriptor)
        return self._open

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
        transfers = [part.transfer for part in self._parts if self._sending.is_kept_back(part.transfer)]
        if self._is_over:
            return
        if len(self._parts) < LEAST_PARTS or len(transfers) != len(self._parts) or self._lease is None:
            # one by itself is no sum; and of one that was given up meanwhile, the sum would be of no use
            self._send_alone()
            return
        footer = encode_site_sum(SiteSum(self._order.parties, tuple(self._parts), self._shapes))
        at = PLANES_AT + planes_bytes(self._shapes)
        lease, self._lease = self._lease, None
        lease.slot.view[at : at + len(footer)] = footer
        total = at + len(footer) - PLANES_AT
        payload = Payload(lease.slot.part(PLANES_AT, total), total)
        mode = self._kept[transfers[0]].mode
        # before it goes: the answer is about them
        self._sending.note_in_sum(transfers)
        self._transfer = self._sending.put_site_sum(self._key, payload, lease, mode)


def _round_of(order: SumOrder) -> _Round:
    return order.session, order.name, order.destination


def _key_of(order: SumOrder) -> MessageKey | None:
    return site_sum_key(order.session, order.name, order.tag, order.sources[0], order.destination)
