"""Calls of the own FATE Flow to that of a peer's site: each goes until it is answered, and is carried out once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from typing import Protocol

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, error_from_code
from fedrdma_fate.wire.frames import ControlFrame, FlowAnswer, FlowCall, FlowHeard, FlowRefused, Hello

AWAY_SECONDS = 8.0
"""For a peer that is not connected to come back: less than the 10 s in which FATE Flow gives up and tries again."""

ANSWER_SECONDS = 40.0
"""For an answer: longer than the peer's gateway waits for its FATE Flow, a reconnection included."""

MOST_ASKED = 128
"""Calls to one peer that are not answered: a scheduler makes one after the other, for each of its jobs."""


MOST_ASKED_BYTES = 16 * 1024 * 1024
"""Of the bodies of those calls, which wait ahead of small messages: fewer than get the peer cut off, and what 4 Mbit/s
carry within `ANSWER_SECONDS`."""


class Asks(Protocol):
    """The peer, as far as it is needed here."""

    @property
    def connected(self) -> bool:
        """Whether there is a control channel."""
        ...

    @property
    def hello(self) -> Hello | None:
        """The latest greeting."""
        ...

    def send(self, frame: ControlFrame) -> bool:
        """Queue a frame; whether there is a control channel."""
        ...

    def send_first(self, frame: ControlFrame) -> bool:
        """The same, ahead of what waits."""
        ...


@dataclasses.dataclass(slots=True)
class _Asked:
    """A call that is not answered.

    Attributes:
        frame: it.
        answer: what comes of it.
        settled: set when it has gone once, or cannot go.
        incarnation: of the peer that it went to.
    """

    frame: FlowCall
    answer: asyncio.Future[Answer]
    settled: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    incarnation: str = ""


class AskedCalls:
    """Of one peer. Belongs to the event loop's thread."""

    def __init__(self, site: str, peer: Asks) -> None:
        """
        Args:
            site: name of the peer's.
            peer: where frames go.
        """
        self._site = site
        self._peer = peer
        self._calls: dict[int, _Asked] = {}
        # calls of an earlier run may still be under way there
        self._next = secrets.randbits(40) << 16

    def __len__(self) -> int:
        return len(self._calls)

    async def ask(self, call: SchedulingCall) -> Answer:
        """Have the peer's FATE Flow carry out a call.

        Raises:
            GatewayError: PEER_UNREACHABLE when it did not go; CALLS_UNSUPPORTED when the peer knows none; CALL_IN_DOUBT
                when nobody knows whether it was carried out; LIMIT_REACHED when there are too many; or what the peer's
                gateway says.
        """
        if len(self._calls) >= MOST_ASKED:
            raise GatewayError(
                ErrorCode.LIMIT_REACHED, f"{MOST_ASKED} scheduling calls to {self._site} have no answer yet."
            )
        if sum(len(each.frame.body) for each in self._calls.values()) + len(call.body) > MOST_ASKED_BYTES:
            raise GatewayError(
                ErrorCode.LIMIT_REACHED,
                f"{MOST_ASKED_BYTES} bytes of scheduling calls to {self._site} have no answer yet.",
            )
        self._next += 1
        frame = FlowCall(self._next, call.path, call.headers, call.body)
        asked = self._calls[frame.call] = _Asked(frame, asyncio.get_running_loop().create_future())
        try:
            if self._peer.connected:
                self._send(asked)
            return await self._wait_for(asked)
        finally:
            del self._calls[frame.call]
            if asked.incarnation:
                self._peer.send(FlowHeard(frame.call))

    def online(self) -> None:
        """The control channel is new: what has no answer goes again, where the peer still knows what it had."""
        hello = self._peer.hello
        for asked in list(self._calls.values()):
            if asked.incarnation and hello is not None and asked.incarnation != hello.incarnation:
                self._fail(asked, _in_doubt(f"the gateway of {self._site} was restarted"))
            else:
                self._send(asked)

    def on_answer(self, frame: FlowAnswer) -> None:
        """FATE Flow there has answered."""
        if (asked := self._calls.get(frame.call)) is not None and not asked.answer.done():
            asked.answer.set_result(Answer(frame.status, frame.body))

    def on_refused(self, frame: FlowRefused) -> None:
        """The peer's gateway says why it has no answer."""
        if (asked := self._calls.get(frame.call)) is not None:
            self._fail(asked, error_from_code(frame.code, frame.reason))

    def _send(self, asked: _Asked) -> None:
        hello = self._peer.hello
        if hello is None or not hello.flow_calls:
            self._fail(asked, unsupported(f"the gateway of {self._site} knows no scheduling calls"))
        elif self._peer.send_first(asked.frame):
            asked.incarnation = hello.incarnation
            asked.settled.set()

    async def _wait_for(self, asked: _Asked) -> Answer:
        """The answer, in time."""
        if not await _goes(asked, AWAY_SECONDS):
            raise GatewayError(
                ErrorCode.PEER_UNREACHABLE,
                f"a scheduling call did not go: {self._site} was not connected within {AWAY_SECONDS:g} s.",
            )
        try:
            return await asyncio.wait_for(asked.answer, ANSWER_SECONDS)
        except asyncio.TimeoutError:
            raise _in_doubt(f"{self._site} has not answered within {ANSWER_SECONDS:g} s") from None

    def _fail(self, asked: _Asked, error: FedRDMAError) -> None:
        if not asked.answer.done():
            asked.answer.set_exception(error)
            asked.settled.set()


async def _goes(asked: _Asked, seconds: float) -> bool:
    """Whether a call goes within so many seconds, or it is known that it will not."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asked.settled.wait(), seconds)
    return asked.settled.is_set()


def unsupported(what: str) -> GatewayError:
    """The error for a site that takes no calls."""
    return GatewayError(
        ErrorCode.CALLS_UNSUPPORTED,
        f"{what}.",
        "Run the same fedrdma-fate version there, and set `flow.server` in its gateway's configuration.",
    )


def _in_doubt(what: str) -> GatewayError:
    return GatewayError(
        ErrorCode.CALL_IN_DOUBT,
        f"whether a scheduling call was carried out is not known: {what}.",
        "See the job at that site before it is submitted again.",
    )
