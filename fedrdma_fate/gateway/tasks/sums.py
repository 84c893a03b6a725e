"""Sums of what parties send under one name: each update is added as it comes, and its slot given back at once.

A sum takes messages from the mailbox as a task that pulls them would, and hands their places to a worker
(`aggregate/`). Whatever cannot be added stays a message: it goes back to the mailbox, and the task gets it as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import time
from collections.abc import Sequence

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Add, Begin, End, Finish, Unfit
from fedrdma_fate.aggregate.place import MARK_BYTES, PLANES_AT, accumulator_bytes, half_in
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.core.fold import Fold, Order
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.mailbox import Message
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.memory.shared_slots import hold_range
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey
from fedrdma_fate.wire.summand import (
    END_BYTES,
    NoSummandError,
    Shape,
    Summand,
    decode_footer,
    footer_bytes,
    planes_bytes,
)

logger = logging.getLogger(__name__)

ROOM_SECONDS = 10.0
"""That a sum waits for the room of its accumulator; then FATE adds, which needs no room here."""


class _CannotAddError(Exception):
    """An update is left to FATE, and why.

    Attributes:
        expected: that is as it should be.
    """

    def __init__(self, reason: str, *, expected: bool = False) -> None:
        super().__init__(reason)
        self.expected = expected


@dataclasses.dataclass(frozen=True, slots=True)
class SumOutcome:
    """A sum, of all parties or of some.

    Attributes:
        fold: who is in it.
        shapes: of its arrays.
        message: holds the slot it lies in; belongs to whoever gets this.
    """

    fold: Fold
    shapes: tuple[Shape, ...]
    message: Message


class Sums:
    """All sums of a gateway. Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext) -> None:
        """
        Args:
            context: the gateway's.
        """
        self._context = context
        self._worker = WorkerHandle()
        self._ids = itertools.count(1)

    async def sum_of(self, keys: Sequence[MessageKey], timeout: float | None) -> SumOutcome | NotSummed:
        """Wait for the sum of these messages.

        Args:
            keys: of different sources, in the order of their ranks; the rest alike.
            timeout: seconds; None waits for ever.

        Raises:
            GatewayError: PULL_TIMEOUT; SUM_LOST when an update is half in it and no worker can finish that.
            FedRDMAError: one of the messages will not come, and why.
        """
        if not self._context.config.aggregate.sums:
            return NotSummed("aggregate.sums is false", expected=True)
        if len(keys) < 2:
            return NotSummed("it would be of one party", expected=True)
        self._worker.prepare()
        running = _RunningSum(self._context, self._worker, next(self._ids), keys, timeout)
        future: asyncio.Future[SumOutcome | NotSummed] = asyncio.get_running_loop().create_future()
        spawn(self._context.tasks, running.run(future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # what is being added has still to be finished
            running.abandon()
            future.add_done_callback(_discard)
            raise

    def close(self) -> None:
        """End the worker. May be repeated."""
        self._worker.close()


def _discard(future: asyncio.Future[SumOutcome | NotSummed]) -> None:
    if not future.cancelled() and future.exception() is None and isinstance(outcome := future.result(), SumOutcome):
        outcome.message.discard()


class _RunningSum:
    """One sum, until it is handed over."""

    def __init__(
        self,
        context: GatewayContext,
        worker: WorkerHandle,
        sum_id: int,
        keys: Sequence[MessageKey],
        timeout: float | None,
    ) -> None:
        self._context = context
        self._worker = worker
        self._id = sum_id
        self._keys = keys
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._fold = Fold(len(keys), Order(context.config.aggregate.order))
        self._takes: dict[int, asyncio.Task[Message]] = {}
        self._here: dict[int, Message] = {}
        self._lease: Lease | None = None
        self._open: OpenSum | None = None
        self._shapes: tuple[Shape, ...] = ()
        self._abandoned = asyncio.Event()
        self._expected = False

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self._abandoned.set()

    async def run(self, future: asyncio.Future[SumOutcome | NotSummed]) -> None:
        """Add, and put into `future` what comes of it."""
        try:
            outcome = await self._sum()
        except asyncio.CancelledError:
            # the gateway stops: nobody may write into the slot when it is given back
            self._worker.close()
            future.cancel()
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(outcome)

    async def _sum(self) -> SumOutcome | NotSummed:
        try:
            gone = asyncio.create_task(self._abandoned.wait())
            try:
                while not self._fold.closed:
                    if self._fold.next_up is not None:
                        await self._add_next()
                    else:
                        await self._wait_for_more(gone)
            finally:
                gone.cancel()
            return await self._outcome()
        finally:
            await self._put_back()
            await self._let_go()

    async def _outcome(self) -> SumOutcome | NotSummed:
        fold = self._fold
        if self._abandoned.is_set() or not fold.parties_in:
            return NotSummed(fold.reason, self._expected)
        opened, lease = self._open, self._lease
        assert opened is not None
        assert lease is not None
        try:
            await self._worker.do(Finish(self._id), opened)
        except WorkerLostError as error:
            raise self._lost(error) from error
        await self._unmap()
        if fold.reason:
            told = "of %s updates %s of %s only %s are in the sum, the others are left to FATE: %s"
            name = (self._keys[0].name, self._keys[0].tag)
            logger.warning(told, len(self._keys), *name, len(fold.parties_in), fold.reason)
        self._lease = None
        # who comes for it by `Task.release` gives the slot back
        length = planes_bytes(self._shapes)
        return SumOutcome(
            fold, self._shapes, Message(self._keys[0], "object", length, lease=lease, payload_at=PLANES_AT)
        )

    # -- taking ---------------------------------------------------------------------------------------------------

    async def _wait_for_more(self, gone: asyncio.Task[bool]) -> None:
        """Until an update is here, or nobody waits for it any more."""
        wanted = self._fold.awaited[:1] if self._fold.order is Order.RANK else self._fold.awaited
        for party in wanted:
            if party not in self._takes:
                self._takes[party] = asyncio.create_task(self._context.mailbox.take(self._keys[party], None))
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        waiting = [gone, *self._takes.values()]
        await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self._fold.give_up("the task that waited for it is gone")
            return
        came = [party for party, take in self._takes.items() if take.done()]
        if not came:
            raise self._timed_out()
        if self._lease is None:
            # what waits in the mailbox can be spilled, and the accumulator may need the room
            came = came[:1]
        for party in came:
            self._here[party] = self._takes.pop(party).result()
            self._fold.arrived(party)
        if self._lease is None:
            await self._put_takes_back()

    async def _put_takes_back(self) -> None:
        """Take nothing more; what came just now waits in the mailbox again."""
        takes, self._takes = list(self._takes.values()), {}
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
        here, self._here = self._here, {}
        for message in here.values():
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
        message = self._here[party]
        try:
            weight = await self._add(party, message)
        except _CannotAddError as error:
            self._expected = error.expected
            self._fold.refused(f"{self._keys[party].source}: {error}" if not error.expected else str(error))
            return
        self._fold.added(weight)
        self._context.trace.get(message.key, message.total_bytes)
        del self._here[party]
        message.discard()

    async def _add(self, party: int, message: Message) -> float | None:
        """Add it; its weight.

        Raises:
            _CannotAddError: it is not in the sum, which is as before.
            GatewayError: SUM_LOST.
        """
        if message.small_body() is not None:
            raise _CannotAddError("the updates are small", expected=True)
        if message.missing:
            # a sum of masked updates with a hole is noise there
            raise _CannotAddError("some of it is missing, as both tasks let be")
        try:
            place, descriptor, offset = message.locate()
        except MemoryPoolError as error:
            raise _CannotAddError(str(error)) from error
        try:
            summand, first = _read_summand(message, descriptor, offset)
            self._check(party, summand)
            opened = self._open or await self._make_room(summand)
            number = len(self._fold.parties_in) + 1
            job = Add(self._id, number, offset + first, place != "spilled")
            try:
                answer = await self._worker.do(job, opened, descriptor)
            except WorkerLostError as error:
                lease = self._lease
                if lease is not None and half_in(lease.slot.view, number):
                    raise self._lost(error) from error
                raise _CannotAddError(str(error)) from error
        finally:
            os.close(descriptor)
        if isinstance(answer, Unfit):
            raise _CannotAddError(answer.reason)
        return summand.weight

    def _check(self, party: int, summand: Summand) -> None:
        source = self._keys[party].source
        if summand.parties != (source,):
            raise _CannotAddError(f"it says that it is of {', '.join(map(str, summand.parties[:8]))}")
        if self._open is not None and summand.shapes != self._shapes:
            raise _CannotAddError("its arrays have other shapes than those that are in the sum")
        if objection := self._fold.objection(summand.weight):
            raise _CannotAddError(objection)

    async def _make_room(self, summand: Summand) -> OpenSum:
        pool = self._context.receive_pool
        length = accumulator_bytes(planes_bytes(summand.shapes))
        # in the next turn of the loop, when the request below stands in the queue
        asyncio.get_running_loop().call_soon(make_room, self._context, pool)
        try:
            lease = await pool.acquire(length, f"sum:{self._id}", ROOM_SECONDS)
        except MemoryPoolError as error:
            raise _CannotAddError(f"no room for the sum: {error.message}") from error
        try:
            descriptor = memory_files.open_for_writing(lease.slot.region.fileno)
            try:
                # the next gateway sees by it whether a worker may still write there
                hold_range(descriptor, lease.slot.offset, length)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            lease.release()
            raise _CannotAddError(str(region_unusable("the receive region", error))) from error
        lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)
        order = self._context.config.aggregate.order
        begin = Begin(self._id, order, len(self._keys), summand.shapes, lease.slot.offset, length)
        self._shapes, self._lease, self._open = summand.shapes, lease, OpenSum(begin, descriptor)
        return self._open

    def _lost(self, error: WorkerLostError) -> GatewayError:
        key = self._keys[0]
        return GatewayError(
            ErrorCode.SUM_LOST,
            f"the sum of {key.name}/{key.tag} in {key.session} cannot be finished: {error}.",
            "See the gateway's log, and whether the kernel has ended its worker for lack of memory; run the job again.",
        )

    # -- giving back ----------------------------------------------------------------------------------------------

    async def _unmap(self) -> None:
        """No worker writes to the slot any more."""
        opened, self._open = self._open, None
        if opened is None:
            return
        try:
            with contextlib.suppress(WorkerLostError):
                await self._worker.do(End(self._id), opened)
        finally:
            os.close(opened.descriptor)

    async def _let_go(self) -> None:
        await self._unmap()
        if self._lease is not None:
            self._lease.release()
            self._lease = None


def _read_summand(message: Message, descriptor: int, offset: int) -> tuple[Summand, int]:
    """What its footer says, and where in the payload the first plane begins."""
    total = message.total_bytes
    try:
        if total < END_BYTES or message.kind != "object":
            raise NoSummandError("it has no footer")
        length = footer_bytes(os.pread(descriptor, END_BYTES, offset + total - END_BYTES))
        if length > total:
            raise NoSummandError("its footer is longer than itself")
        return decode_footer(os.pread(descriptor, length, offset + total - length), total)
    except (NoSummandError, OSError) as error:
        raise _CannotAddError(f"it is no summand: {error}") from error
