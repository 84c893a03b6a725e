"""Calls of a peer's FATE Flow to the own one: each is carried out once, however often it comes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable

from fedrdma_fate.gateway.background import spawn
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.obs.complaints import cut
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MOST_REASON_CHARACTERS, ControlFrame, FlowAnswer, FlowCall, FlowRefused

logger = logging.getLogger(__name__)

MOST_SERVED = 64
"""Calls of one peer that FATE Flow works on; it has a thread for each."""

MOST_KEPT_ANSWERS = 256
"""Of one peer, until it has heard them: twice what a peer of this version asks at once."""

MOST_KEPT_BYTES = 16 * 1024 * 1024
"""Of those answers; FATE Flow's have some hundred bytes."""

KEPT_SECONDS = 120.0
"""For which an answer is kept that nobody has heard: whoever asked has given up long before."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """An answer, and until when it is kept."""

    frame: FlowAnswer | FlowRefused
    until: float

    @property
    def size(self) -> int:
        """Bytes that count."""
        return len(self.frame.body) if isinstance(self.frame, FlowAnswer) else 0


class ServedCalls:
    """Of one peer. Belongs to the event loop's thread."""

    def __init__(
        self,
        carry_out: Callable[[SchedulingCall], Awaitable[Answer]],
        send: Callable[[ControlFrame], bool],
        tasks: set[asyncio.Task[None]],
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            carry_out: checks a call, and has the own FATE Flow carry it out; raises FedRDMAError.
            send: queues a frame to the peer, if there is a control channel.
            tasks: keeps background work alive.
            clock: seconds, of any origin.
        """
        self._carry_out = carry_out
        self._send = send
        self._tasks = tasks
        self._clock = clock
        self._working = 0
        self._wanted: dict[int, bool] = {}
        self._answers: dict[int, _Kept] = {}
        self._kept_bytes = 0
        self._incarnation = object()

    @property
    def under_way(self) -> int:
        """Calls that FATE Flow works on."""
        return self._working

    @property
    def kept(self) -> int:
        """Answers that are remembered."""
        return len(self._answers)

    def on_call(self, frame: FlowCall) -> None:
        """A call has come, perhaps again."""
        self._forget_old()
        if (known := self._answers.get(frame.call)) is not None:
            self._send(known.frame)
        elif frame.call in self._wanted:
            return
        elif self._working >= MOST_SERVED or len(self._answers) + self._working >= MOST_KEPT_ANSWERS:
            # not remembered: it was not carried out, and may come again
            self._send(FlowRefused(frame.call, ErrorCode.LIMIT_REACHED.value, "too many scheduling calls at once."))
        else:
            self._wanted[frame.call] = True
            self._working += 1
            spawn(self._tasks, self._serve(frame, self._incarnation))

    def on_heard(self, call: int) -> None:
        """The peer has the answer, or wants it no more."""
        if call in self._wanted:
            self._wanted[call] = False
        if (kept := self._answers.pop(call, None)) is not None:
            self._kept_bytes -= kept.size

    def forget(self) -> None:
        """The peer was restarted: nobody waits for what the run before has asked, and ids may come again."""
        self._incarnation = object()
        self._wanted = {}
        self._answers = {}
        self._kept_bytes = 0

    async def _serve(self, frame: FlowCall, incarnation: object) -> None:
        answer: FlowAnswer | FlowRefused
        try:
            given = await self._carry_out(SchedulingCall(frame.path, frame.headers, frame.body))
            answer = FlowAnswer(frame.call, given.status, given.body)
        except FedRDMAError as error:
            # what a call says may stand in the message, and need not be what can be encoded
            answer = FlowRefused(frame.call, error.code.value, cut(error.message, MOST_REASON_CHARACTERS // 2))
        except Exception:
            logger.exception("a scheduling call died")
            answer = FlowRefused(frame.call, ErrorCode.UNEXPECTED_EVENT.value, "an internal error of the gateway.")
        finally:
            self._working -= 1
        if incarnation is self._incarnation and self._wanted.pop(frame.call):
            self._keep(answer)
            self._send(answer)

    def _keep(self, answer: FlowAnswer | FlowRefused) -> None:
        kept = _Kept(answer, self._clock() + KEPT_SECONDS)
        if self._kept_bytes + kept.size > MOST_KEPT_BYTES:
            # that it was carried out is remembered all the same
            refused = FlowRefused(answer.call, ErrorCode.LIMIT_REACHED.value, "many answers are not heard yet.")
            kept = _Kept(refused, kept.until)
        self._answers[answer.call] = kept
        self._kept_bytes += kept.size

    def _forget_old(self) -> None:
        """Answers are kept in the order in which they came."""
        now = self._clock()
        while self._answers and next(iter(self._answers.values())).until < now:
            self.on_heard(next(iter(self._answers)))
