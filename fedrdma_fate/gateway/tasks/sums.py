"""All sums of a gateway that tasks have asked for; `running_sum.py` is one of them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence

import msgspec

from fedrdma_fate.aggregate.skmsg import make_notices
from fedrdma_fate.aggregate.worker_pool import WorkerPool, most_workers
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.core.sum_tree import LEAST_PARTS
from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.tasks.adding import timed_out
from fedrdma_fate.gateway.tasks.returning import EarlierSum
from fedrdma_fate.gateway.tasks.running_sum import RunningSum
from fedrdma_fate.gateway.tasks.sum_checkpoints import SumCheckpoints
from fedrdma_fate.gateway.tasks.sum_outcome import SumOutcome, SumProgress
from fedrdma_fate.gateway.tasks.sum_slot import SumSlot
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MOST_PARTIES, MessageKey

MOST_AWAITED = 4 * MOST_PARTIES
"""Updates of all sums at a time: for each, something waits here. More are left to FATE, which waits for one."""

MOST_KEY_BYTES = 4 << 20
"""Of the names of a sum's messages, as the journal has them: in one record when it begins, which has to be shorter than
those behind which nobody reads, and once more in those that have to be there together when all of it is merged. A
thousand parties have some 200 bytes each."""

_ID_BITS = 48
"""Of the number of the first sum: no two of a journal have the same."""


class Sums:
    """All sums of a gateway. Belongs to the event loop's thread.

    Attributes:
        notices: how workers are told of updates.
    """

    def __init__(self, context: GatewayContext) -> None:
        """
        Args:
            context: the gateway's.
        """
        self._context = context
        configured = None if (configured := context.config.aggregate.workers) == "auto" else configured
        self.notices = make_notices(context.config.aggregate.notices, context.metrics.notice_taken)
        self._workers = WorkerPool(
            most_workers(configured),
            context.metrics.sum_worker_restarted,
            by_estimate=configured is None,
            notices=self.notices,
        )
        self._checkpoints = SumCheckpoints(context)
        self._running: dict[int, RunningSum] = {}
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
            GatewayError: PULL_TIMEOUT; DUPLICATE_PULL where another sum takes one of the messages; SUM_LOST when
                something of an earlier run still writes to it.
            FedRDMAError: one of the messages will not come, and why.
        """
        if earlier is None and not self._context.config.aggregate.sums:
            return NotSummed("aggregate.sums is false", expected=True)
        if len(keys) < LEAST_PARTS:
            return NotSummed("it would be of one party", expected=True)
        awaited = sum(running.parties for running in self._running.values())
        if earlier is None and awaited + len(keys) > MOST_AWAITED:
            return NotSummed(
                f"the sums of this gateway are of {awaited} updates already, {MOST_AWAITED} is the limit",
                expected=False,
            )
        if earlier is None and (names := len(msgspec.msgpack.encode(tuple(keys)))) > MOST_KEY_BYTES:
            return NotSummed(
                f"the names of its messages take {names} bytes in the journal, {MOST_KEY_BYTES} is the limit",
                expected=False,
            )
        await self._until_nobody_takes(keys, timeout)
        self._workers.enter()
        slot = SumSlot(self._context, self._workers, self._ids, keys, client, earlier)
        running = RunningSum(self._context, self._workers, self._checkpoints, slot, keys, timeout)
        if earlier is not None:
            running.go_on_with(earlier)
        future = running.outcome
        number = next(self._runs)
        self._running[number] = running
        future.add_done_callback(lambda _: self._ended(number))
        spawn(self._context.tasks, running.run())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # what is being added has still to be finished
            running.abandon()
            future.add_done_callback(_discard)
            raise

    async def _until_nobody_takes(self, keys: Sequence[MessageKey], timeout: float | None) -> None:
        """A sum of a message that another one takes would end that: what sites are asked for has the same name in both.

        Raises:
            GatewayError: DUPLICATE_PULL where that goes on; PULL_TIMEOUT where nobody waits for it any more, and it is
                not over within `timeout`.
        """
        while (other := next((each for each in self._running.values() if each.takes_any(keys)), None)) is not None:
            if not other.is_abandoned:
                raise GatewayError(
                    ErrorCode.DUPLICATE_PULL,
                    f"a sum of {keys[0].name}/{keys[0].tag} in {keys[0].session} that takes some of the same updates "
                    "is under way.",
                    "Ask for each sum once, and give each job a session of its own.",
                )
            _, left = await asyncio.wait((other.outcome,), timeout=timeout)
            if left:
                raise timed_out(keys, len(keys), timeout or 0.0)

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
