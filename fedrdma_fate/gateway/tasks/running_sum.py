"""One sum of what parties send under one name: each update is added as it comes, and its slot given back at once.

It takes messages from the mailbox as a task that pulls them would, and hands their places to a worker
(`aggregate/`). Whatever cannot be added stays a message: it goes back to the mailbox, and the task gets it as ever.

What the journal has of a sum: whose slot it is, of whom some may be in it, who is. A next run goes on with that when
its task asks again; how far it has come with the one that was being added, the slot itself says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence

from fedrdma_fate.aggregate.jobs import Add, Finish, JobAnswer, Unfit
from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.aggregate.worker_pool import WorkerPool
from fedrdma_fate.client.protocol import NotSummed, Unfinished
from fedrdma_fate.core.fold import Fold, Order
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Pulled, SumAdded, SumAdding, SumClosed, SumMerged, SumMerging
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.summand_grants import ExpectedUpdates
from fedrdma_fate.gateway.tasks.adding import (
    CannotAddError,
    UnfitUpdateError,
    locate,
    note_added,
    note_left_out,
    read_summand,
    timed_out,
)
from fedrdma_fate.gateway.tasks.last_addition import LastAddition
from fedrdma_fate.gateway.tasks.merging import Merging
from fedrdma_fate.gateway.tasks.ordered_sums import OrderedSums
from fedrdma_fate.gateway.tasks.returning import EarlierSum
from fedrdma_fate.gateway.tasks.sum_checkpoints import SumCheckpoints
from fedrdma_fate.gateway.tasks.sum_outcome import SumOutcome, SumProgress
from fedrdma_fate.gateway.tasks.sum_slot import SumSlot
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import MessageKey
from fedrdma_fate.wire.summand import Summand, planes_bytes

logger = logging.getLogger(__name__)


class RunningSum:
    """One sum, until it is handed over.

    Attributes:
        outcome: what comes of it.
    """

    def __init__(
        self,
        context: GatewayContext,
        workers: WorkerPool,
        checkpoints: SumCheckpoints,
        slot: SumSlot,
        keys: Sequence[MessageKey],
        timeout: float | None,
    ) -> None:
        self._context = context
        self._workers = workers
        self._checkpoints = checkpoints
        self._slot = slot
        self._keys = keys
        self._all_keys = frozenset(keys)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._asked = time.monotonic()
        self._fold = Fold(len(keys), slot.order)
        self._takes: dict[int, asyncio.Task[Message]] = {}
        self._sum_takes: dict[MessageKey, asyncio.Task[Message]] = {}
        self._here: dict[int, Message] = {}
        self._first: int | None = None
        self._half: int | None = None
        self._half_weight: float | None = None
        self._abandoned = False
        # set when a message is here or will not come, or nobody waits any more: to wait for each of thousands of them
        # anew after each addition would take the event loop milliseconds
        self._changed = asyncio.Event()
        self._expected = False
        self._expected_updates: ExpectedUpdates | None = None
        self._ordered = OrderedSums(context, keys)
        self._last = LastAddition(context, keys, self._fold, slot, self._ordered)
        self._merging = Merging(context, keys, self._fold, slot, self._ordered, self._last)
        self._first_sum: MessageKey | None = None
        self.outcome: asyncio.Future[SumOutcome | NotSummed] = asyncio.get_running_loop().create_future()

    def go_on_with(self, earlier: EarlierSum) -> None:
        """Before it runs: an earlier run has begun it."""
        kept = earlier.kept
        for added in kept.added:
            self._fold.were_added(dict(added.weights) if isinstance(added, SumMerged) else {added.party: added.weight})
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
            self._slot.order_name,
            len(self._keys),
            added,
            len(self._keys) - added - len(away) - (adding is not None),
            None if adding is None else self._keys[adding].source,
            away,
            self._ordered.count,
            self._ordered.asked,
            planes_bytes(self._slot.shapes),
            self._slot.awaited_bytes,
            self._slot.worker_process,
            time.monotonic() - self._asked,
            self._last.progress,
        )

    def takes_any(self, keys: Sequence[MessageKey]) -> bool:
        """Whether one of these messages belongs to it."""
        return not self._all_keys.isdisjoint(keys)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._abandoned

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self._abandoned = True
        self._changed.set()

    async def run(self) -> None:
        """Add, and put into `outcome` what comes of it."""
        future = self.outcome
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
                        await self._wait_for_more()
            finally:
                self._all_may_come()
            # of one that was refused some may still be being added to a total, which cannot be when the sum is finished
            await self._last.drop()
            return await self._outcome()
        finally:
            await self._put_back()
            self._ordered.close()
            await self._last.drop()
            await self._slot.let_go()

    async def _outcome(self) -> SumOutcome | NotSummed:
        fold = self._fold
        if self._abandoned or not fold.parties_in:
            return NotSummed(fold.reason, self._expected)
        slot = self._slot
        self._context.journal.write(SumClosed(slot.number, fold.reason, self._half, self._half_weight))
        unfinished = None
        if self._half is None and not slot.is_finished:
            try:
                await slot.do(Finish(slot.number), await slot.map())
            except (WorkerLostError, CannotAddError) as error:
                slot.leave_if_closed()
                logger.warning("a sum is left to its task to be finished: %s", error)
                unfinished = Unfinished(slot.order_name)
        elif self._half is not None:
            weight = fold.weight({self._half: self._half_weight})
            unfinished = Unfinished(slot.order_name, self._half, weight)
        await slot.unmap()
        if fold.reason:
            told = "of %s updates %s of %s only %s are in the sum, the others are left to FATE: %s"
            name = (self._keys[0].name, self._keys[0].tag)
            logger.warning(told, len(self._keys), *name, len(fold.parties_in), fold.reason)
        message = slot.take()
        self._context.trace.summed(
            self._keys[0],
            slot.order_name,
            len(self._keys),
            len(fold.parties_in),
            message.total_bytes,
            time.monotonic() - self._asked,
            fold.reason,
        )
        if unfinished is None:
            self._checkpoints.keep(tuple(self._keys), fold, slot.shapes, message)
        # who comes for it by `Task.release` gives the slot back
        return SumOutcome(fold, slot.shapes, message, slot.number, unfinished)

    # -- taking ---------------------------------------------------------------------------------------------------

    async def _wait_for_more(self) -> None:
        """Until an update is here, or nobody waits for it any more; it may be that nothing is new."""
        self._last.look()
        self._ordered.look(self._fold.awaited)
        wanted = self._fold.awaited[:1] if self._fold.order is Order.RANK else self._fold.awaited
        if self._first is not None:
            # some of it may be in
            wanted = (self._first,)
        elif self._first_sum is not None:
            wanted = ()
        for party in wanted:
            if party not in self._takes:
                self._takes[party] = self._begin_take(self._keys[party])
        sums = () if self._first is not None else (self._first_sum,) if self._first_sum else self._ordered.awaited
        for key in sums:
            if key not in self._sum_takes:
                self._sum_takes[key] = self._begin_take(key)
        if not await self._until_changed():
            missing = [self._keys[party] for party in self._fold.awaited]
            raise timed_out(missing, len(self._keys), self._timeout or 0.0)
        if self._abandoned:
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
                if await self._merging.came(key, message, self._stay_in_mailbox):
                    self._workers.arrived()
        came = [party for party, take in self._takes.items() if take.done()]
        if not came and not came_sums:
            # of those that were waited for before
            return
        if came_sums and self._slot.message is None:
            # the same of a sum
            came = []
        if self._slot.message is None:
            # what waits in the mailbox can be spilled, and the accumulator may need the room
            came = came[:1]
        for party in came:
            self._here[party] = self._takes.pop(party).result()
            self._fold.arrived(party)
            self._workers.arrived()
        self._first = self._first_sum = None
        if self._slot.message is None:
            await self._put_takes_back()

    async def _until_changed(self) -> bool:
        """Whether it has within the time that there is."""
        if not self._changed.is_set():
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return False
        self._changed.clear()
        return True

    def _begin_take(self, key: MessageKey) -> asyncio.Task[Message]:
        take = asyncio.create_task(self._take(key))
        take.add_done_callback(lambda _: self._changed.set())
        return take

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

    async def _stay_in_mailbox(self, parties: Sequence[int]) -> None:
        """What comes of these is not taken."""
        await self._undo([take for party in parties if (take := self._takes.pop(party, None)) is not None])

    async def _put_back(self) -> None:
        """What is not in the sum is to be had from the mailbox."""
        await self._put_takes_back()
        here, self._here = [*self._here.values(), *self._merging.take_all()], {}
        for message in here:
            self._context.mailbox.return_(message)

    # -- adding ---------------------------------------------------------------------------------------------------

    async def _add_next(self) -> None:
        party = self._fold.begin()
        if self._fold.together(party):
            for key in await self._merging.merge_next(party):
                if self._expected_updates is not None:
                    self._expected_updates.added(key)
            return
        message = self._here[party]
        try:
            weight = await self._add(party, message)
        except CannotAddError as error:
            reason = str(error) if error.expected else f"{self._keys[party].source}: {error}"
            # where nothing was a summand yet, probably none is, and FATE need not wait for the last of them
            others_may_be = self._slot.message is not None or bool(self._ordered.count)
            if isinstance(error, UnfitUpdateError) and others_may_be and self._fold.order is not Order.RANK:
                self._leave_out(party, reason)
                return
            self._expected = error.expected
            self._fold.refused(reason)
            return
        self._fold.added(weight)
        self._context.trace.get(message.key, message.total_bytes)
        del self._here[party]
        with self._context.journal.together():
            added = SumAdded(self._slot.number, party, weight, message.origin, message.transfer)
            self._context.journal.write(*self._slot.moved(), Pulled(message.key), added)
            message.note_gone()
        self._slot.leave_former()
        message.discard()
        if self._expected_updates is not None:
            self._expected_updates.added(message.key)

    def _leave_out(self, party: int, reason: str) -> None:
        """It is left to FATE, and the sum goes on without it: sums of sites that are on their way are of use."""
        message = self._here.pop(party)
        note_left_out(self._context, message, reason)
        self._fold.left_out(reason)
        if self._expected_updates is not None:
            self._expected_updates.added(self._keys[party])
        # it can be spilled there
        self._context.mailbox.return_(message)

    def _all_may_come(self) -> None:
        """Nothing is held until what came before it has been added."""
        if self._expected_updates is not None:
            self._expected_updates.close()

    async def _add(self, party: int, message: Message) -> float | None:
        """Add it; its weight.

        Raises:
            UnfitUpdateError: it is not in the sum, which is as before, and others may be.
            CannotAddError: the same, and others need not be tried; or only half of it is in, as is noted.
        """
        if message.small_body() is not None:
            raise CannotAddError("the updates are small", expected=True)
        if message.missing:
            # a sum of masked updates with a hole is noise there
            raise UnfitUpdateError("some of it is missing, as both tasks let be")
        place, descriptor, offset = locate(message)
        try:
            summand, first = read_summand(message, descriptor, offset)
            self._check(party, summand)
            slot = await self._slot.make_room(summand.shapes)
            started = time.monotonic()
            answer: JobAnswer | None = await self._last.complete(message, descriptor, offset + first, summand)
            if answer is None:
                opened = await self._slot.map()
                number = self._fold.additions + 1
                self._context.journal.write(SumAdding(self._slot.number, party))
                job = Add(self._slot.number, number, offset + first, place != "spilled")
                try:
                    answer = await self._slot.do(job, opened, descriptor)
                except WorkerLostError as error:
                    self._slot.leave_if_closed()
                    if number > 1 and self._slot.is_half_in(number):
                        self._half, self._half_weight = party, summand.weight
                    raise CannotAddError(str(error)) from error
        finally:
            os.close(descriptor)
        if isinstance(answer, Unfit):
            raise UnfitUpdateError(answer.reason)
        note_added(self._context, self._slot.order_name, slot.total_bytes, message, answer, started)
        return summand.weight

    def _check(self, party: int, summand: Summand) -> None:
        source = self._keys[party].source
        if summand.parties != (source,):
            raise UnfitUpdateError(f"it says that it is of {', '.join(map(str, summand.parties[:8]))}")
        if self._fold.additions and summand.shapes != self._slot.shapes:
            raise UnfitUpdateError("its arrays have other shapes than those that are in the sum")
        if objection := self._fold.objection(summand.weight):
            raise UnfitUpdateError(objection)
