"""`fedrdma-x` transfers on a shared bottleneck by their two state machines alone: for comparisons of many starts.

No engine, frames or payloads, so a second costs a quarter of what it does with `x_flow.py`. Reports take half a round
trip and are not lost; a transfer is over when the sender knows that all has arrived; there are no repair chunks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

from fedrdma_fate.core.actions import Action, PostChunk, SendReport
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import TAGS, best_chunk_bytes, best_queue_pairs
from fedrdma_fate.core.x.controller import Controller, MakeController
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.core.x.sender import XSender, XSendSettings
from fedrdma_fate.engine.path_memory import KnownPath, PathMemory
from fedrdma_fate.wire.frames import Report
from tests.support.sim.bottleneck import Bottleneck, Nic
from tests.support.sim.clock import VirtualClock

QUEUE_PAIRS = 4
"""As `XFlow` has them."""


class CoreFlow:
    """Sends payloads one after the other, the next when `pause` says; of the path a probe has told the rate.

    Attributes:
        control: what finds the rate of the transfer under way.
        arrived_bytes: payload known to have arrived, of all transfers.
    """

    def __init__(
        self,
        clock: VirtualClock,
        link: Bottleneck,
        payloads: Iterable[int],
        make_controller: MakeController = RateController,
        pause: Callable[[], float] = lambda: 0.0,
        chunk_bytes: int | None = None,
    ) -> None:
        """
        Args:
            clock: virtual time.
            link: the bottleneck.
            payloads: bytes of each transfer; without end.
            make_controller: makes what finds the rate.
            pause: seconds until the next transfer.
            chunk_bytes: of each chunk; None: what suits the path.
        """
        profile = link.profile
        probed = PathState(0.985 * profile.rate_bps / 8, profile.rtt, None)
        self._clock = clock
        self._link = link
        self._nic = Nic()
        self._payloads = iter(payloads)
        self._payload_bytes = 0
        self._pause = pause
        self._chunk_bytes = chunk_bytes
        self._memory = PathMemory(KnownPath(probed, "probed"), make_controller)
        self._count = self._done_bytes = 0
        self._wakes_at = self._reports_at = math.inf
        self._begin()

    @property
    def control(self) -> Controller:
        """What finds the rate of the transfer under way."""
        return self._sender.control

    @property
    def arrived_bytes(self) -> int:
        """Payload known to have arrived, of all transfers."""
        return self._done_bytes + self._sender.arrived_bytes

    @property
    def resent_bytes(self) -> int:
        """Payload of the transfer under way that was taken for lost."""
        return self._sender.lost_bytes

    def start(self) -> None:
        """Send a payload now."""
        self._carry_out(self._sender.start(self._clock.now))

    def _begin(self) -> None:
        mtu_bytes, known = self._link.profile.mtu_bytes, self._memory.state
        assert known is not None
        self._count += 1
        total = self._payload_bytes = next(self._payloads)
        plan = ChunkPlan(total, self._chunk_bytes or best_chunk_bytes(known.rate, known.loss, mtu_bytes, total))
        tag, pairs = self._count % TAGS, best_queue_pairs(known, QUEUE_PAIRS)
        settings = XSendSettings(tag, queue_pairs=pairs, mtu_bytes=mtu_bytes)
        self._sender = XSender(self._count, plan, settings, self._memory.begin())
        self._receiver = XReceiver(self._count, plan, XReceiveSettings(tag))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, PostChunk):
                landed = functools.partial(self._landed, self._count, action.immediate)
                self._link.post(self._nic, action.chunk.length, landed)
        due = self._sender.timer()
        if due is not None and due < self._wakes_at:
            self._wakes_at = due
            self._clock.at(due, functools.partial(self._wake, due))

    def _wake(self, due: float) -> None:
        if due != self._wakes_at:
            return
        self._wakes_at = math.inf
        self._carry_out(self._sender.on_timer(self._clock.now))

    def _landed(self, number: int, immediate: int) -> None:
        if number != self._count:
            return
        now = self._clock.now
        self._tell(self._receiver.on_chunk(immediate, now, now, digest=0))
        due = self._receiver.timer()
        if due is not None and due < self._reports_at:
            self._reports_at = due
            self._clock.at(due, self._report)

    def _report(self) -> None:
        self._reports_at = math.inf
        self._tell(self._receiver.on_timer(self._clock.now))

    def _tell(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, SendReport):
                take = functools.partial(self._on_report, action.report)
                self._clock.after(self._link.answers.half_trip(), take)

    def _on_report(self, report: Report) -> None:
        if report.transfer != self._count:
            return
        self._carry_out(self._sender.on_report(report, self._clock.now))
        if self._sender.arrived_bytes == self._payload_bytes:
            self._memory.end(self._sender.control)
            self._done_bytes += self._payload_bytes
            self._wakes_at = math.inf
            self._begin()
            self._clock.after(self._pause(), self.start)
