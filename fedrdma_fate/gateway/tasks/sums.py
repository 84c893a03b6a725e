"""Sums of what parties send under one name: each update is added as it comes, and its slot given back at once.

A sum takes messages from the mailbox as a task that pulls them would, and hands their places to a worker
(`aggregate/`). Whatever cannot be added stays a message: it goes back to the mailbox, and the task gets it as ever.

What the journal has of a sum: whose slot it is, of whom some may be in it, who is. A next run goes on with that when
its task asks again; how far it has come with the one that was being added, the slot itself says.

More than 500 lines: a sum, from the first message that it takes to its outcome, is one state, and each step shows which
of its messages have to go back where it ends there.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import secrets
import time
from collections.abc import Sequence

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Add, Begin, End, Finish, JobAnswer, Unfit
from fedrdma_fate.aggregate.place import MARK_BYTES, accumulator_bytes, half_in, planes_at
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.aggregate.worker_pool import WorkerPool, most_workers
from fedrdma_fate.client.protocol import NotSummed, Unfinished
from fedrdma_fate.core.fold import Fold, Order
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import (
    EndedTogether,
    Pulled,
    SumAdded,
    SumAdding,
    SumBegan,
    SumClosed,
    SumGone,
    SumMerged,
    SumMerging,
)
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.gateway.summand_grants import ExpectedUpdates
from fedrdma_fate.gateway.tasks.adding import CannotAddError, read_site_sum, read_summand
from fedrdma_fate.gateway.tasks.ordered_sums import OrderedSums
from fedrdma_fate.gateway.tasks.returning import EarlierSum
from fedrdma_fate.gateway.tasks.sum_checkpoints import SumCheckpoints
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.memory.shared_slots import hold_range, range_is_held
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MOST_PARTIES, MessageKey, Party
from fedrdma_fate.wire.site_sum import SiteSum
from fedrdma_fate.wire.summand import Shape, Summand, planes_bytes

logger = logging.getLogger(__name__)

ROOM_SECONDS = 10.0
"""That a sum waits for the room of its accumulator; then FATE adds, which needs no room here."""


MOST_AWAITED = 4 * MOST_PARTIES
"""Updates of all sums at a time: for each, something waits here. More are left to FATE, which waits for one."""

EARLIER_WORKER_SECONDS = 10.0
"""That the worker of an earlier run may take to end, which the kernel kills with its gateway."""
_LOOK_SECONDS = 0.02
"""Between two looks at whether it has."""

_ID_BITS = 48
"""Of the number of the first sum: no two of a journal have the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class SumOutcome:
    """A sum, of all parties or of some.

    Attributes:
        fold: who is in it.
        shapes: of its arrays.
        message: holds the slot it lies in; belongs to whoever gets this.
        number: of the sum, in the journal.
        unfinished: what is still to be done, where no worker could.
    """

    fold: Fold
    shapes: tuple[Shape, ...]
    message: Message
    number: int
    unfinished: Unfinished | None


@dataclasses.dataclass(frozen=True, slots=True)
class SumProgress:
    """How far a sum has come.

    Attributes:
        key: of its first message, by rank.
        order: in what order it adds.
        parties: how many belong to it.
        added: how many are in it.
        waiting: how many are here, and not in it yet.
        adding: who is being added.
        missing: whose updates are not here.
        update_bytes: of one update; 0 before the first one is here.
        seconds: since it was asked for.
    """

    key: MessageKey
    order: str
    parties: int
    added: int
    waiting: int
    adding: Party | None
    missing: tuple[Party, ...]
    update_bytes: int
    seconds: float


class Sums:
    """All sums of a gateway. Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext) -> None:
        """
        Args:
            context: the gateway's.
        """
        self._context = context
        configured = context.config.aggregate.workers
        most = most_workers(None if configured == "auto" else configured)
        self._workers = WorkerPool(most, context.metrics.sum_worker_restarted)
        self._checkpoints = SumCheckpoints(context)
        self._running: dict[int, _RunningSum] = {}
        self._ids = itertools.count(secrets.randbits(_ID_BITS))
        self._runs = itertools.count()

    async def sum_of(
        self, keys: Sequence[MessageKey], timeout: float | None, client: str, earlier: EarlierSum | None = None
    ) -> SumOutcome | NotSummed:
        """Wait for the sum of these messages.

        Args:
            keys: of different sources, in the order of their ranks; the rest alike.
            timeout: seconds; None waits for ever.
            client: id of the task that asks.
            earlier: what an earlier run has done of it.

        Raises:
            GatewayError: PULL_TIMEOUT; SUM_LOST when something of an earlier run still writes to it.
            FedRDMAError: one of the messages will not come, and why.
        """
        if earlier is None and not self._context.config.aggregate.sums:
            return NotSummed("aggregate.sums is false", expected=True)
        if len(keys) < 2:
            return NotSummed("it would be of one party", expected=True)
        awaited = sum(running.parties for running in self._running.values())
        if earlier is None and awaited + len(keys) > MOST_AWAITED:
            return NotSummed(
                f"the sums of this gateway are of {awaited} updates already, {MOST_AWAITED} is the limit",
                expected=False,
            )
        self._workers.enter()
        running = _RunningSum(self._context, self._workers, self._checkpoints, next(self._ids), keys, timeout, client)
        if earlier is not None:
            running.go_on_with(earlier)
        future: asyncio.Future[SumOutcome | NotSummed] = asyncio.get_running_loop().create_future()
        number = next(self._runs)
        self._running[number] = running
        future.add_done_callback(lambda _: self._ended(number))
        spawn(self._context.tasks, running.run(future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # what is being added has still to be finished
            running.abandon()
            future.add_done_callback(_discard)
            raise

    def _ended(self, number: int) -> None:
        del self._running[number]
        self._workers.leave()

    def progress(self) -> list[SumProgress]:
        """How far each has come, the oldest first; any thread may ask."""
        return [running.progress() for running in tuple(self._running.values())]

    @property
    def worker_restarts(self) -> int:
        """How often the process that adds had to be started again."""
        return self._workers.restarts

    @property
    def worker_processes(self) -> list[int]:
        """Ids of the processes that add, where some run."""
        return self._workers.process_ids

    def close(self) -> None:
        """End the workers. May be repeated."""
        self._workers.close()

    @property
    def workers(self) -> WorkerPool:
        """The processes that add, for what else is to be added here."""
        return self._workers


def _discard(future: asyncio.Future[SumOutcome | NotSummed]) -> None:
    if not future.cancelled() and future.exception() is None and isinstance(outcome := future.result(), SumOutcome):
        outcome.message.discard()


class _RunningSum:
    """One sum, until it is handed over."""

    def __init__(
        self,
        context: GatewayContext,
        workers: WorkerPool,
        checkpoints: SumCheckpoints,
        sum_id: int,
        keys: Sequence[MessageKey],
        timeout: float | None,
        client: str,
    ) -> None:
        self._context = context
        self._workers = workers
        self._checkpoints = checkpoints
        self._worker: WorkerHandle | None = None
        self._id = sum_id
        self._keys = keys
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._client = client
        self._asked = time.monotonic()
        self._order = context.config.aggregate.order
        self._fold = Fold(len(keys), Order(self._order))
        self._takes: dict[int, asyncio.Task[Message]] = {}
        self._sum_takes: dict[MessageKey, asyncio.Task[Message]] = {}
        self._here: dict[int, Message] = {}
        self._slot: Message | None = None
        self._open: OpenSum | None = None
        self._first: int | None = None
        self._half: int | None = None
        self._half_weight: float | None = None
        self._shapes: tuple[Shape, ...] = ()
        self._abandoned = asyncio.Event()
        self._expected = False
        self._expected_updates: ExpectedUpdates | None = None
        self._ordered = OrderedSums(context, keys)
        self._site_sums: dict[int, tuple[Message, SiteSum]] = {}
        self._first_sum: MessageKey | None = None
        self._is_of_earlier_run = False

    def go_on_with(self, earlier: EarlierSum) -> None:
        """Before it runs: an earlier run has begun it."""
        kept = earlier.kept
        self._is_of_earlier_run = True
        self._id, self._order = kept.began.number, kept.began.order
        self._fold = Fold(len(self._keys), Order(self._order))
        for added in kept.added:
            self._fold.were_added(dict(added.weights) if isinstance(added, SumMerged) else {added.party: added.weight})
        self._slot, self._shapes = earlier.message, kept.began.shapes
        if isinstance(kept.adding, SumMerging):
            self._first_sum = kept.adding.key
        elif kept.adding is not None:
            self._first = kept.adding.party
        if kept.closed is not None:
            self._half, self._half_weight = kept.closed.half, kept.closed.weight
            if kept.closed.reason:
                self._fold.give_up(kept.closed.reason)

    @property
    def parties(self) -> int:
        """How many belong to it."""
        return len(self._keys)

    def progress(self) -> SumProgress:
        """How far it has come; any thread may ask."""
        fold, mailbox = self._fold, self._context.mailbox
        missing = [self._keys[party] for party in fold.awaited]
        away = tuple(key.source for key in missing if not mailbox.has(key))
        added, adding = len(fold.parties_in), fold.adding
        return SumProgress(
            self._keys[0],
            self._order,
            len(self._keys),
            added,
            len(self._keys) - added - len(away) - (adding is not None),
            None if adding is None else self._keys[adding].source,
            away,
            planes_bytes(self._shapes),
            time.monotonic() - self._asked,
        )

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self._abandoned.set()

    async def run(self, future: asyncio.Future[SumOutcome | NotSummed]) -> None:
        """Add, and put into `future` what comes of it."""
        try:
            outcome = await self._sum()
        except asyncio.CancelledError:
            # the gateway stops: nobody may write into the slot when it is given back
            self._workers.close()
            future.cancel()
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(outcome)

    async def _sum(self) -> SumOutcome | NotSummed:
        try:
            gone = asyncio.create_task(self._abandoned.wait())
            if self._fold.order is not Order.RANK:
                # by rank one may have to wait for another that has not been sent yet
                self._expected_updates = self._context.summand_grants.expect(self._keys)
            if self._fold.order is Order.EXACT and not self._fold.closed:
                self._ordered.place(self._fold.awaited, self._first_sum)
            try:
                while not self._fold.closed:
                    if self._fold.next_up is not None:
                        await self._add_next()
                    else:
                        await self._wait_for_more(gone)
            finally:
                gone.cancel()
                self._all_may_come()
            return await self._outcome()
        finally:
            await self._put_back()
            self._ordered.close()
            await self._let_go()

    async def _outcome(self) -> SumOutcome | NotSummed:
        fold = self._fold
        if self._abandoned.is_set() or not fold.parties_in:
            return NotSummed(fold.reason, self._expected)
        slot = self._slot
        assert slot is not None
        self._context.journal.write(SumClosed(self._id, fold.reason, self._half, self._half_weight))
        unfinished = None
        if self._half is None:
            try:
                await self._do(Finish(self._id), self._open or await self._map(slot))
            except (WorkerLostError, CannotAddError) as error:
                self._leave_if_closed()
                logger.warning("a sum is left to its task to be finished: %s", error)
                unfinished = Unfinished(self._order)
        else:
            weight = fold.weight({self._half: self._half_weight})
            unfinished = Unfinished(self._order, self._half, weight)
        await self._unmap()
        if fold.reason:
            told = "of %s updates %s of %s only %s are in the sum, the others are left to FATE: %s"
            name = (self._keys[0].name, self._keys[0].tag)
            logger.warning(told, len(self._keys), *name, len(fold.parties_in), fold.reason)
        self._slot = None
        self._context.trace.summed(
            self._keys[0],
            self._order,
            len(self._keys),
            len(fold.parties_in),
            slot.total_bytes,
            time.monotonic() - self._asked,
            fold.reason,
        )
        if unfinished is None:
            self._checkpoints.keep(tuple(self._keys), fold, self._shapes, slot)
        # who comes for it by `Task.release` gives the slot back
        return SumOutcome(fold, self._shapes, slot, self._id, unfinished)

    # -- taking ---------------------------------------------------------------------------------------------------

    async def _wait_for_more(self, gone: asyncio.Task[bool]) -> None:
        """Until an update is here, or nobody waits for it any more."""
        wanted = self._fold.awaited[:1] if self._fold.order is Order.RANK else self._fold.awaited
        if self._first is not None:
            # some of it may be in
            wanted = (self._first,)
        elif self._first_sum is not None:
            wanted = ()
        for party in wanted:
            if party not in self._takes:
                self._takes[party] = asyncio.create_task(self._take(self._keys[party]))
        sums = () if self._first is not None else (self._first_sum,) if self._first_sum else self._ordered.awaited
        for key in sums:
            if key not in self._sum_takes:
                self._sum_takes[key] = asyncio.create_task(self._take(key))
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        waiting = [gone, *self._takes.values(), *self._sum_takes.values()]
        await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self._fold.give_up("the task that waited for it is gone")
            return
        came_sums = [key for key, take in self._sum_takes.items() if take.done()]
        for key in came_sums:
            try:
                message = self._sum_takes.pop(key).result()
            except FedRDMAError as error:
                # its parties come alone, or tell by themselves why they do not
                logger.info("the sum of a site, %s, does not come: %s", key, error)
                self._ordered.withdraw(key)
            else:
                await self._sum_came(key, message)
        came = [party for party, take in self._takes.items() if take.done()]
        if not came and not came_sums:
            raise self._timed_out()
        if came_sums and self._slot is None:
            # the same of a sum
            came = []
        if self._slot is None:
            # what waits in the mailbox can be spilled, and the accumulator may need the room
            came = came[:1]
        for party in came:
            self._here[party] = self._takes.pop(party).result()
            self._fold.arrived(party)
        self._first = self._first_sum = None
        if self._slot is None:
            await self._put_takes_back()

    async def _take(self, key: MessageKey) -> Message:
        """A message; that it was pulled is written down when it is in."""
        mailbox = self._context.mailbox
        return await mailbox.take(key, None, lambda _message: mailbox.sessions.note_pull(key, is_recorded=False))

    async def _put_takes_back(self) -> None:
        """Take nothing more; what came just now waits in the mailbox again."""
        takes = [*self._takes.values(), *self._sum_takes.values()]
        self._takes, self._sum_takes = {}, {}
        await self._undo(takes)

    async def _undo(self, takes: Sequence[asyncio.Task[Message]]) -> None:
        for take in takes:
            take.cancel()
        if takes:
            await asyncio.wait(takes)
        for take in takes:
            if not take.cancelled() and take.exception() is None:
                self._context.mailbox.return_(take.result())

    async def _put_back(self) -> None:
        """What is not in the sum is to be had from the mailbox."""
        await self._put_takes_back()
        here, self._here = [*self._here.values(), *(message for message, _ in self._site_sums.values())], {}
        self._site_sums = {}
        for message in here:
            self._context.mailbox.return_(message)

    def _timed_out(self) -> GatewayError:
        missing = [str(self._keys[party].source) for party in self._fold.awaited]
        key = self._keys[0]
        return GatewayError(
            ErrorCode.PULL_TIMEOUT,
            f"of the sum of {key.name}/{key.tag} in {key.session}, {len(missing)} of {len(self._keys)} updates did not "
            f"come within {self._timeout:g} s: {', '.join(missing[:8])}.",
            "See in `fedrdma status` whether their peers are connected, and in the other sites' logs whether they were "
            "pushed.",
        )

    # -- adding ---------------------------------------------------------------------------------------------------

    async def _add_next(self) -> None:
        party = self._fold.begin()
        if self._fold.together(party):
            await self._merge_next(party)
            return
        message = self._here[party]
        try:
            weight = await self._add(party, message)
        except CannotAddError as error:
            self._expected = error.expected
            self._fold.refused(f"{self._keys[party].source}: {error}" if not error.expected else str(error))
            return
        self._fold.added(weight)
        self._context.trace.get(message.key, message.total_bytes)
        del self._here[party]
        with self._context.journal.together():
            self._context.journal.write(
                Pulled(message.key), SumAdded(self._id, party, weight, message.origin, message.transfer)
            )
            message.note_gone()
        message.discard()
        if self._expected_updates is not None:
            self._expected_updates.added(message.key)

    # -- sums of sites --------------------------------------------------------------------------------------------

    async def _sum_came(self, key: MessageKey, message: Message) -> None:
        """The sum of a site is here: where each of its parties is still awaited, it is next; else they come alone."""
        try:
            site_sum = self._ordered.check(key, message)
            parties = self._ordered.parties_of(site_sum)
            if not set(parties) <= set(self._fold.awaited):
                raise CannotAddError("a party in it is in the sum, or here, already")
        except CannotAddError as error:
            self._refuse_site_sum(key, message, error)
            return
        # what comes of them alone from now on stays in the mailbox, until this is in or is not
        await self._undo([take for party in parties if (take := self._takes.pop(party, None)) is not None])
        self._fold.arrived_together(parties)
        self._site_sums[parties[0]] = message, site_sum

    async def _merge_next(self, first: int) -> None:
        message, site_sum = self._site_sums.pop(first)
        key, parties, journal = message.key, self._fold.together(first), self._context.journal
        try:
            await self._merge(message, site_sum, len(parties))
        except CannotAddError as error:
            self._fold.refused_together()
            self._refuse_site_sum(key, message, error)
            return
        except BaseException:
            # the next run goes on, or nobody does
            self._context.mailbox.return_(message)
            raise
        weights = {party: part.weight for party, part in zip(parties, site_sum.parts, strict=True)}
        transfers = tuple(part.transfer for part in site_sum.parts)
        keys = [self._keys[party] for party in parties]
        self._fold.added_together(weights)
        for each in keys:
            self._context.trace.get(each, message.total_bytes)
        with journal.together():
            journal.write(
                *(Pulled(each) for each in (key, *keys)),
                SumMerged(self._id, tuple(weights.items()), message.origin, transfers),
                EndedTogether(message.origin, transfers),
            )
            message.note_gone()
        message.discard()
        for each in keys:
            self._context.mailbox.sessions.note_pull(each, is_recorded=False)
            self._context.mailbox.discard(each)
            if self._expected_updates is not None:
                self._expected_updates.added(each)
        self._ordered.merged(key, transfers)

    async def _merge(self, message: Message, site_sum: SiteSum, parties: int) -> None:
        """Add it.

        Raises:
            CannotAddError: it is not in the sum, which is as before.
        """
        try:
            place, descriptor, offset = message.locate()
        except MemoryPoolError as error:
            raise CannotAddError(str(error)) from error
        try:
            _, first = read_site_sum(message, descriptor, offset)
            if self._slot is not None and site_sum.shapes != self._shapes:
                raise CannotAddError("its arrays have other shapes than those that are in the sum")
            if objection := self._fold.objection(site_sum.parts[0].weight):
                raise CannotAddError(objection)
            slot = self._slot or await self._make_room(site_sum.shapes)
            opened = self._open or await self._map(slot)
            number = self._fold.additions + 1
            self._context.journal.write(SumMerging(self._id, message.key))
            started = time.monotonic()
            job = Add(self._id, number, offset + first, place != "spilled", parties)
            try:
                answer = await self._do(job, opened, descriptor)
            except WorkerLostError as error:
                self._leave_if_closed()
                raise CannotAddError(str(error)) from error
        finally:
            os.close(descriptor)
        if isinstance(answer, Unfit):
            raise CannotAddError(answer.reason)
        self._context.metrics.update_added(self._order, slot.total_bytes, time.monotonic() - started)

    def _half_lost(self, error: CannotAddError) -> GatewayError:
        key = self._keys[0]
        return GatewayError(
            ErrorCode.SUM_LOST,
            f"the sum of {key.name}/{key.tag} in {key.session} cannot go on: some of a site's sum is in it, and "
            f"the rest cannot be added: {error}.",
            "See in the log why; run the job again, with aggregate.site_sums: false if need be.",
        )

    def _refuse_site_sum(self, key: MessageKey, message: Message, error: CannotAddError) -> None:
        """It is of no use, and its parties come alone.

        Raises:
            GatewayError: SUM_LOST where some of it is in the sum.
        """
        number, slot = self._fold.additions + 1, self._slot
        if slot is not None and slot.lease is not None and half_in(slot.lease.slot.view, number):
            if number > 1:
                self._context.mailbox.return_(message)
                raise self._half_lost(error) from error
            # nothing else is in: whoever comes first begins anew
            slot.lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)
        self._context.journal.write(SumMerging(self._id, None))
        logger.warning("the sum of a site, %s, is not used: %s", key, error)
        self._context.journal.write(Pulled(key))
        message.discard()
        self._ordered.withdraw(key)

    def _all_may_come(self) -> None:
        """Nothing is held until what came before it has been added."""
        if self._expected_updates is not None:
            self._expected_updates.close()

    async def _add(self, party: int, message: Message) -> float | None:
        """Add it; its weight.

        Raises:
            CannotAddError: it is not in the sum, which is as before, or only half of it, as is noted.
        """
        if message.small_body() is not None:
            raise CannotAddError("the updates are small", expected=True)
        if message.missing:
            # a sum of masked updates with a hole is noise there
            raise CannotAddError("some of it is missing, as both tasks let be")
        try:
            place, descriptor, offset = message.locate()
        except MemoryPoolError as error:
            raise CannotAddError(str(error)) from error
        try:
            summand, first = read_summand(message, descriptor, offset)
            self._check(party, summand)
            slot = self._slot or await self._make_room(summand.shapes)
            opened = self._open or await self._map(slot)
            number = self._fold.additions + 1
            self._context.journal.write(SumAdding(self._id, party))
            started = time.monotonic()
            job = Add(self._id, number, offset + first, place != "spilled")
            try:
                answer = await self._do(job, opened, descriptor)
            except WorkerLostError as error:
                self._leave_if_closed()
                assert slot.lease is not None
                if number > 1 and half_in(slot.lease.slot.view, number):
                    self._half, self._half_weight = party, summand.weight
                raise CannotAddError(str(error)) from error
        finally:
            os.close(descriptor)
        if isinstance(answer, Unfit):
            raise CannotAddError(answer.reason)
        self._context.metrics.update_added(self._order, slot.total_bytes, time.monotonic() - started)
        return summand.weight

    async def _do(self, job: Add | Finish | End, opened: OpenSum, descriptor: int | None = None) -> JobAnswer:
        """Have the worker of this sum do a job; see `WorkerHandle.do`."""
        if self._worker is None:
            self._worker = self._workers.choose()
        return await self._worker.do(job, opened, descriptor)

    def _check(self, party: int, summand: Summand) -> None:
        source = self._keys[party].source
        if summand.parties != (source,):
            raise CannotAddError(f"it says that it is of {', '.join(map(str, summand.parties[:8]))}")
        if self._slot is not None and summand.shapes != self._shapes:
            raise CannotAddError("its arrays have other shapes than those that are in the sum")
        if objection := self._fold.objection(summand.weight):
            raise CannotAddError(objection)

    def _leave_if_closed(self) -> None:
        """The gateway stops, and so no worker does anything: the next run goes on."""
        if self._workers.is_closed:
            raise asyncio.CancelledError

    async def _make_room(self, shapes: tuple[Shape, ...]) -> Message:
        pool = self._context.receive_pool
        length = accumulator_bytes(self._fold.order, planes_bytes(shapes))
        # in the next turn of the loop, when the request below stands in the queue
        asyncio.get_running_loop().call_soon(make_room, self._context, pool)
        try:
            lease = await pool.acquire(length, f"sum:{self._id}", ROOM_SECONDS)
        except MemoryPoolError as error:
            raise CannotAddError(f"no room for the sum: {error.message}") from error
        lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)
        journal = self._context.journal
        journal.write(
            SumBegan(self._id, self._client, tuple(self._keys), self._order, shapes, lease.slot.offset, length)
        )
        when_gone = functools.partial(journal.write, SumGone(self._id))
        self._shapes = shapes
        self._slot = Message(
            self._keys[0],
            "object",
            planes_bytes(shapes),
            lease=lease,
            payload_at=planes_at(self._fold.order, planes_bytes(shapes)),
            when_gone=when_gone,
        )
        return self._slot

    async def _map(self, message: Message) -> OpenSum:
        """What a worker needs to map the slot.

        Raises:
            CannotAddError: there is no descriptor.
            GatewayError: SUM_LOST.
        """
        assert message.lease is not None
        slot = message.lease.slot
        if self._is_of_earlier_run:
            await self._await_earlier_worker(slot)
        try:
            descriptor = memory_files.open_for_writing(slot.region.fileno)
            try:
                # the next gateway sees by it whether a worker may still write there
                hold_range(descriptor, slot.offset, slot.length)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            raise CannotAddError(str(region_unusable("the receive region", error))) from error
        begin = Begin(self._id, self._order, len(self._keys), self._shapes, slot.offset, slot.length)
        self._open = OpenSum(begin, descriptor)
        return self._open

    async def _await_earlier_worker(self, slot: Slot) -> None:
        """That of an earlier run may not write there any more when ours does."""
        until = time.monotonic() + EARLIER_WORKER_SECONDS
        while range_is_held(slot):
            if time.monotonic() > until:
                key = self._keys[0]
                raise GatewayError(
                    ErrorCode.SUM_LOST,
                    f"the sum of {key.name}/{key.tag} in {key.session} cannot go on: a process of an earlier run of "
                    "the gateway still has it mapped.",
                    "Look for a process `fedrdma_fate.aggregate.worker_process` that does not end; run the job again.",
                )
            await asyncio.sleep(_LOOK_SECONDS)

    # -- giving back ----------------------------------------------------------------------------------------------

    async def _unmap(self) -> None:
        """No worker writes to the slot any more."""
        opened, self._open = self._open, None
        if opened is None:
            return
        try:
            with contextlib.suppress(WorkerLostError):
                await self._do(End(self._id), opened)
        finally:
            os.close(opened.descriptor)

    async def _let_go(self) -> None:
        await self._unmap()
        if self._worker is not None:
            self._workers.give_back(self._worker)
            self._worker = None
        slot, self._slot = self._slot, None
        if slot is not None and not self._context.leaves_to_next:
            slot.discard()
