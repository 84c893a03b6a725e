"""One `fedrdma-x` transfer on a shared bottleneck."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import (
    Action,
    ClearHeader,
    ComputeDigest,
    Failed,
    Finished,
    PostChunk,
    SendFrame,
    SendReport,
    WriteHeader,
)
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.core.x.sender import XSender, XSendSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, Delivered, Refused, ResendChunks
from tests.support.sim.bottleneck import Bottleneck, Nic
from tests.support.sim.clock import VirtualClock

_TAG = 1


class XFlow:
    """A sender and a receiver, without payload memory: only time and arrivals count.

    Reports, frames and headers take half a round trip and are not lost here.

    Attributes:
        outcome: how the sender ended, None while it has not.
        ended_at: when, seconds.
        arrivals: (time, bytes) of every chunk that landed, the repeated ones too.
    """

    def __init__(
        self, clock: VirtualClock, link: Bottleneck, plan: ChunkPlan, control: RateController, settings: XSendSettings
    ) -> None:
        self.outcome: Finished | Failed | None = None
        self.ended_at = 0.0
        self.arrivals: list[tuple[float, int]] = []
        self.sender = XSender(1, plan, settings, control)
        self.receiver = XReceiver(1, plan, XReceiveSettings(tag=_TAG))
        self._clock = clock
        self._link = link
        self._nic = Nic()
        self._timers: dict[object, float] = {}

    def start(self) -> None:
        """Begin now."""
        self._send(self.sender.start(self._clock.now))

    def goodput_bps(self, since: float, until: float) -> float:
        """Bits a second that landed in a span of time."""
        return sum(length for at, length in self.arrivals if since <= at < until) * 8 / (until - since)

    def _half_trip(self) -> float:
        return self._link.profile.rtt / 2

    def _send(self, actions: Iterable[Action]) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case PostChunk():
                    self._link.post(self._nic, action.chunk.length, functools.partial(self._landed, action))
                case ComputeDigest(chunk):
                    queue.extend(self.sender.on_digest(chunk.index, chunk.length))
                case WriteHeader(_, header, _):
                    raw = header.encode()
                    self._clock.after(self._half_trip(), functools.partial(self._announced, raw))
                case Finished() | Failed():
                    self.outcome, self.ended_at = action, self._clock.now
                case SendFrame(Abort()):
                    pass
                case _:
                    raise RuntimeError(f"a sender cannot ask for {action}")
        self._set_timer(self.sender)

    def _landed(self, post: PostChunk) -> None:
        self.arrivals.append((self._clock.now, post.chunk.length))
        self._receive(self.receiver.on_chunk(post.immediate, self._clock.now, self._clock.now))
        if self.sender.settings.reliable:
            self._clock.after(self._half_trip(), functools.partial(self._written, post.work_request))

    def _announced(self, raw: bytes) -> None:
        self._receive(self.receiver.on_announced(raw))

    def _written(self, request: int) -> None:
        self._send(self.sender.on_write_done(request, self._clock.now))

    def _receive(self, actions: Iterable[Action]) -> None:
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            match action:
                case ComputeDigest(chunk):
                    queue.extend(self.receiver.on_digest(chunk.index, chunk.length))
                case SendReport() | SendFrame():
                    self._clock.after(self._half_trip(), functools.partial(self._answer, action))
                case ClearHeader() | Finished() | Failed():
                    pass
                case _:
                    raise RuntimeError(f"a receiver cannot ask for {action}")
        self._set_timer(self.receiver)

    def _answer(self, action: SendReport | SendFrame) -> None:
        now = self._clock.now
        match action:
            case SendReport(report):
                self._send(self.sender.on_report(report, now))
            case SendFrame(Delivered()):
                self._send(self.sender.on_delivered(now))
            case SendFrame(ResendChunks(chunks=chunks)):
                self._send(self.sender.on_resend(chunks, now))
            case SendFrame(Refused(code=code, reason=reason)):
                self._send(self.sender.on_refused(ErrorCode(code), reason))

    def _set_timer(self, end: XSender | XReceiver) -> None:
        due = end.timer()
        if due is not None and self._timers.get(end) != due:
            self._timers[end] = due
            self._clock.at(due, functools.partial(self._on_timer, end, due))

    def _on_timer(self, end: XSender | XReceiver, due: float) -> None:
        if self._timers.get(end) != due:
            return
        del self._timers[end]
        if isinstance(end, XSender):
            self._send(end.on_timer(self._clock.now))
        else:
            self._receive(end.on_timer(self._clock.now))
