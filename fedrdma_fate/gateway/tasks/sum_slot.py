"""The slot that a sum is added up in, the worker that adds there, and where its total goes when one update is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterator, Sequence

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Add, AddLast, Begin, End, Finish, JobAnswer
from fedrdma_fate.aggregate.place import MARK_BYTES, accumulator_bytes, half_in, planes_at
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.aggregate.worker_pool import WorkerPool
from fedrdma_fate.core.fold import Order
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import SumBegan, SumGone, SumMoved
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.spilling import make_room
from fedrdma_fate.gateway.tasks.adding import CannotAddError
from fedrdma_fate.gateway.tasks.returning import EarlierSum
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.memory.shared_slots import hold_range, range_is_held
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, GatewayError, MemoryPoolError
from fedrdma_fate.wire.frames import MessageKey
from fedrdma_fate.wire.summand import Shape, planes_bytes

ROOM_SECONDS = 10.0
"""That a sum waits for the room of its accumulator; then FATE adds, which needs no room here."""

EARLIER_WORKER_SECONDS = 10.0
"""That the worker of an earlier run may take to end, which the kernel kills with its gateway."""
_LOOK_SECONDS = 0.02
"""Between two looks at whether it has."""


class SumSlot:
    """Belongs to the event loop's thread.

    Attributes:
        number: of the sum, in the journal.
        order_name: in what order it adds.
        order: the same.
        shapes: of its arrays, as soon as there is a slot.
        message: holds the slot, as soon as there is one.
        awaited_bytes: that it waits for in receive memory, while it does; else 0.
        is_finished: it lies where its total went, float64.
    """

    def __init__(
        self,
        context: GatewayContext,
        workers: WorkerPool,
        numbers: Iterator[int],
        keys: Sequence[MessageKey],
        client: str,
        earlier: EarlierSum | None = None,
    ) -> None:
        """
        Args:
            context: the gateway's.
            workers: processes that add.
            numbers: those that no sum of the journal has had.
            keys: its messages, in the order of their ranks.
            client: id of the task that asks for it.
            earlier: what an earlier run has done of it; its number and its order hold.
        """
        self._context = context
        self._workers = workers
        self._keys = keys
        self._client = client
        self._is_of_earlier_run = earlier is not None
        self._worker: WorkerHandle | None = None
        self._open: OpenSum | None = None
        self._total_lease: Lease | None = None
        self._total: OpenSum | None = None
        self._former: Message | None = None
        self._numbers = numbers
        self.is_finished = False
        self.awaited_bytes = 0
        self.number = next(numbers) if earlier is None else earlier.kept.began.number
        self.order_name = context.config.aggregate.order if earlier is None else earlier.kept.began.order
        self.order = Order(self.order_name)
        self.shapes: tuple[Shape, ...] = () if earlier is None else earlier.kept.began.shapes
        self.message: Message | None = None if earlier is None else earlier.message

    async def do(self, job: Add | Finish | End, opened: OpenSum, descriptor: int | None = None) -> JobAnswer:
        """Have the worker of this sum do a job; see `WorkerHandle.do`."""
        return await self._chosen_worker().do(job, opened, descriptor)

    def _chosen_worker(self) -> WorkerHandle:
        if self._worker is None:
            self._worker = self._workers.choose()
        return self._worker

    @property
    def worker_process(self) -> int | None:
        """Id of the process that adds to it, where it has one; any thread may ask."""
        return None if (worker := self._worker) is None else worker.process_id

    def leave_if_closed(self) -> None:
        """The gateway stops, and so no worker does anything: the next run goes on."""
        if self._workers.is_closed:
            raise asyncio.CancelledError

    def is_half_in(self, number: int) -> bool:
        """Whether some of this addition is in, and not all."""
        message = self.message
        return message is not None and message.lease is not None and half_in(message.lease.slot.view, number)

    def begin_anew(self) -> None:
        """Nothing is in it."""
        if self.message is not None and self.message.lease is not None:
            self.message.lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)

    async def make_room(self, shapes: tuple[Shape, ...]) -> Message:
        """The slot, which is leased now where there was none, or one of other shapes: of these nothing is in it then.

        Raises:
            CannotAddError: there is no room.
            GatewayError: SUM_LOST.
        """
        if self.message is not None and self.shapes == shapes:
            return self.message
        if self.message is not None:
            await self._begin_elsewhere(self.message)
        pool = self._context.receive_pool
        length = accumulator_bytes(self.order, planes_bytes(shapes))
        # in the next turn of the loop, when the request below stands in the queue
        asyncio.get_running_loop().call_soon(make_room, self._context, pool)
        self.awaited_bytes = length
        try:
            lease = await pool.acquire(length, f"sum:{self.number}", ROOM_SECONDS)
        except MemoryPoolError as error:
            raise CannotAddError(f"no room for the sum: {error.message}") from error
        finally:
            self.awaited_bytes = 0
        lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)
        journal = self._context.journal
        journal.write(
            SumBegan(self.number, self._client, tuple(self._keys), self.order_name, shapes, lease.slot.offset, length)
        )
        when_gone = functools.partial(journal.write, SumGone(self.number))
        self.shapes = shapes
        self.message = Message(
            self._keys[0],
            "object",
            planes_bytes(shapes),
            lease=lease,
            payload_at=planes_at(self.order, planes_bytes(shapes)),
            when_gone=when_gone,
        )
        return self.message

    async def _begin_elsewhere(self, message: Message) -> None:
        """Nothing is in it, and its slot goes back."""
        if self._is_of_earlier_run and message.lease is not None:
            await self._await_earlier_worker(message.lease.slot)
        await self.unmap()
        self.message, self.number = None, next(self._numbers)
        message.discard()

    async def map(self) -> OpenSum:
        """What a worker needs to map the slot.

        Raises:
            CannotAddError: there is no descriptor.
            GatewayError: SUM_LOST.
        """
        if self._open is not None:
            return self._open
        assert self.message is not None
        assert self.message.lease is not None
        slot = self.message.lease.slot
        if self._is_of_earlier_run:
            await self._await_earlier_worker(slot)
        self._open = self._opened(slot, self.number)
        return self._open

    def _opened(self, slot: Slot, number: int) -> OpenSum:
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
        begin = Begin(number, self.order_name, len(self._keys), self.shapes, slot.offset, slot.length)
        return OpenSum(begin, descriptor)

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

    async def unmap(self) -> None:
        """No worker writes to the slot any more."""
        opened, self._open = self._open, None
        if opened is None:
            return
        try:
            with contextlib.suppress(WorkerLostError):
                await self.do(End(self.number), opened)
        finally:
            os.close(opened.descriptor)

    # -- the total ------------------------------------------------------------------------------------------------

    def make_total(self) -> None:
        """Room for the total, as for another sum: nobody waits for it, and nobody makes room.

        Raises:
            CannotAddError: there is none.
        """
        assert self.message is not None
        assert self.message.lease is not None
        if self._total is not None:
            return
        try:
            lease = self._context.receive_pool.lease(self.message.lease.slot.length, f"sum:{self.number}")
        except MemoryPoolError as error:
            raise CannotAddError(error.message) from error
        if lease is None:
            raise CannotAddError("there is no room for the total")
        try:
            # what the journal does not know of is nobody's after a crash, but for a worker that still holds it
            self._total = self._opened(lease.slot, next(self._numbers))
        except CannotAddError:
            lease.release()
            raise
        lease.slot.view[:MARK_BYTES] = bytes(MARK_BYTES)
        self._total_lease = lease

    async def add_last(
        self, offset: int, span: range, descriptor: int, *, keep_mapped: bool, parties: int = 0, is_end: bool = False
    ) -> JobAnswer:
        """Have the worker add a piece of the last update, and write what that makes to the total; see `AddLast`.

        Raises:
            CannotAddError: it cannot.
            GatewayError: SUM_LOST.
        """
        opened, total = await self.map(), self._total
        assert total is not None
        job = AddLast(self.number, total.begin.sum_id, offset, span.start, span.stop, keep_mapped, parties, is_end)
        try:
            return await self._chosen_worker().do(job, opened, descriptor, total)
        except WorkerLostError as error:
            self.leave_if_closed()
            raise CannotAddError(str(error)) from error

    def move(self) -> None:
        """The sum lies where its total went, after `add_last` with `is_end`. `moved` is to be written down next."""
        message, lease = self.message, self._total_lease
        assert message is not None
        assert lease is not None
        for opened in (self._open, self._total):
            # the worker has let go of both
            if opened is not None:
                os.close(opened.descriptor)
        self._open = self._total = self._total_lease = None
        self.is_finished = True
        self.message, self._former = dataclasses.replace(message, lease=lease), message
        # the journal has one sum of this number, and that is not gone
        message.when_gone = None

    def moved(self) -> tuple[SumMoved, ...]:
        """That it lies elsewhere, to be written together with who is in it by that; nothing where it does not."""
        if self._former is None or self.message is None or self.message.lease is None:
            return ()
        slot = self.message.lease.slot
        return (SumMoved(self.number, slot.offset, slot.length),)

    def leave_former(self) -> None:
        """That was written down: where it lay before is free, if it has moved."""
        former, self._former = self._former, None
        if former is not None:
            former.discard()

    async def drop_total(self) -> None:
        """There is none any more, and nothing of it is in the sum. Not to be called while a piece is being added."""
        total, self._total = self._total, None
        lease, self._total_lease = self._total_lease, None
        if total is None or lease is None:
            return
        try:
            with contextlib.suppress(WorkerLostError):
                await self.do(End(total.begin.sum_id), total)
        finally:
            os.close(total.descriptor)
            lease.release()

    def take(self) -> Message:
        """The slot, which belongs to the caller now."""
        message, self.message = self.message, None
        assert message is not None
        return message

    async def let_go(self) -> None:
        """Give back what it still has."""
        await self.drop_total()
        await self.unmap()
        if self._worker is not None:
            self._workers.give_back(self._worker)
            self._worker = None
        message, self.message = self.message, None
        if message is not None and not self._context.leaves_to_next:
            message.discard()
