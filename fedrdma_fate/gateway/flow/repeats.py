"""FATE Flow gives a call up after 10 s and makes it again: the second is the first, where nobody has its answer yet."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fedrdma_fate.gateway.background import TimerHandle
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError

REPEAT_SECONDS = 10.0
"""After an answer that nobody took, for the call to be made again: FATE Flow does so at once."""

MOST_CALLS = 256
"""Under way or answered and not taken; a scheduler makes one after the other, for each of its jobs."""

MOST_BYTES = 32 * 1024 * 1024
"""Of the bodies of those calls, and of answers that are not taken; FATE Flow's have some kB."""


@dataclasses.dataclass(slots=True)
class _Abandoned:
    """A call whose caller has gone.

    Attributes:
        work: what comes of it.
        timer: forgets it, once it is answered.
    """

    work: asyncio.Task[Answer]
    timer: TimerHandle | None = None

    @property
    def answer_bytes(self) -> int:
        """Of the answer, where there is one."""
        work = self.work
        return len(work.result().body) if work.done() and not work.cancelled() and work.exception() is None else 0


class Repeats:
    """Belongs to the event loop's thread."""

    def __init__(self, carry: Callable[[SchedulingCall], Awaitable[Answer]]) -> None:
        """
        Args:
            carry: carries a call out; raises FedRDMAError.
        """
        self._carry = carry
        # with the bytes of their bodies
        self._under_way: dict[asyncio.Task[Answer], int] = {}
        self._abandoned: dict[SchedulingCall, _Abandoned] = {}

    async def outcome(self, call: SchedulingCall, gone: Coroutine[Any, Any, object]) -> Answer:
        """What comes of a call, as long as somebody waits for it.

        Args:
            call: it.
            gone: ends when nobody waits any more.

        Raises:
            FedRDMAError: nothing comes of it.
            EOFError: nobody waits any more; who makes the very same call again gets the answer.
        """
        try:
            work = self.begin(call)
        except FedRDMAError:
            gone.close()
            raise
        leaving = asyncio.ensure_future(gone)
        try:
            await asyncio.wait([work, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                # also where the answer has come meanwhile: nobody takes it now
                self.abandon(call, work)
                raise EOFError
            return work.result()
        finally:
            leaving.cancel()
            await asyncio.wait([leaving])
            if not leaving.cancelled():
                leaving.exception()

    @property
    def _bytes(self) -> int:
        kept = sum(len(call.body) + each.answer_bytes for call, each in self._abandoned.items())
        return kept + sum(self._under_way.values())

    def begin(self, call: SchedulingCall) -> asyncio.Task[Answer]:
        """What comes of a call: of the very same one that was abandoned, where there is one.

        Raises:
            GatewayError: LIMIT_REACHED.
        """
        if (known := self._abandoned.pop(call, None)) is not None:
            if known.timer is not None:
                known.timer.cancel()
            return known.work
        if len(self._under_way) + len(self._abandoned) >= MOST_CALLS:
            raise GatewayError(ErrorCode.LIMIT_REACHED, f"{MOST_CALLS} scheduling calls are under way.")
        if self._bytes + len(call.body) > MOST_BYTES:
            raise GatewayError(ErrorCode.LIMIT_REACHED, f"{MOST_BYTES} bytes of scheduling calls are under way.")
        work = asyncio.ensure_future(self._work(call))
        self._under_way[work] = len(call.body)
        work.add_done_callback(self._under_way.pop)
        # so that nobody says that it was never looked at
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return work

    def abandon(self, call: SchedulingCall, work: asyncio.Task[Answer]) -> None:
        """The caller of `begin` went away without the answer."""
        if call in self._abandoned:
            # one of the two is enough: who repeats one gets its answer
            return
        self._abandoned[call] = _Abandoned(work)
        work.add_done_callback(lambda _done: self._expire(call, work))

    def close(self) -> None:
        """End what is under way."""
        for work in list(self._under_way):
            work.cancel()
        for each in self._abandoned.values():
            if each.timer is not None:
                each.timer.cancel()
        self._abandoned.clear()

    async def _work(self, call: SchedulingCall) -> Answer:
        return await self._carry(call)

    def _expire(self, call: SchedulingCall, work: asyncio.Task[Answer]) -> None:
        """It is answered, and perhaps still abandoned: not for long."""
        known = self._abandoned.get(call)
        if known is not None and known.work is work:
            known.timer = asyncio.get_running_loop().call_later(REPEAT_SECONDS, self._abandoned.pop, call, None)
