"""The sending half of a `fedrdma-x` transfer: a paced window, and only what was lost again."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, Finished, PostChunk, SendFrame, WriteHeader
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.core.sender import SenderState
from fedrdma_fate.core.x_chunking import immediate_of
from fedrdma_fate.core.x_congestion import RateController, Sample
from fedrdma_fate.core.x_flights import Flight, FlightBook
from fedrdma_fate.core.x_pacing import Pacer
from fedrdma_fate.core.x_report import ArrivalMap
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, Report
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind

TRAIN_BYTES = 4 * 1024 * 1024
"""What goes unpaced on a path nothing is known of: what `fedrdma-e` would send at once."""

BURST_SECONDS = 0.001
QUANTUM_SECONDS = 0.0002
RATE_WINDOW_SECONDS = 0.008
REPORT_SLACK_SECONDS = 0.006
UNKNOWN_RTT = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class XSendSettings:
    """Parameters of a sender.

    Attributes:
        tag: what the immediates of this transfer carry: the grant's id modulo 4096.
        reliable: whether the queue pairs are RC (completions move the window) or UC (reports do).
        queue_pairs: how many to spread the chunks over.
        paced: whether the rate is for us to find; a transport with a congestion control of its own gets a full window.
        window_bytes: most bytes in flight; None: twice the bandwidth-delay product.
        mtu_bytes: packet size.
        rtt_hint: round trip as the control channel saw it, seconds.
        idle_timeout: seconds without anything new arriving after which the transfer fails.
        max_resends: how often the receiver may ask for everything, or the header, again.
    """

    tag: int
    reliable: bool = False
    queue_pairs: int = 1
    paced: bool = True
    window_bytes: int | None = None
    mtu_bytes: int = 4096
    rtt_hint: float | None = None
    idle_timeout: float = 60.0
    max_resends: int = 16


class XSender:
    """Sends one payload into one granted slot. Every method returns the actions to carry out, in order."""

    def __init__(self, transfer: int, plan: ChunkPlan, settings: XSendSettings, control: RateController) -> None:
        self.transfer = transfer
        self.plan = plan
        self.settings = settings
        self.control = control
        self.layout = SlotLayout(plan, "fedrdma-x")
        self.state = SenderState.IDLE
        self.resent_bytes = 0
        self.arrived_bytes = 0
        self._arrivals = ArrivalMap(plan.count)
        self._flights = FlightBook(settings.queue_pairs)
        self._pacer = Pacer(TRAIN_BYTES)
        self._next_position = 0
        self._again: deque[int] = deque()
        self._digests: dict[int, int] = {}
        self._digesting: set[int] = set()
        self._header_out = False
        self._epoch = 0
        self._resend_requests = 0
        self._requests: dict[int, int] = {}
        self._next_request = 0
        self._next_queue_pair = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._own_arrived_bytes = 0
        self._train_left = TRAIN_BYTES
        self._probe_backoff = 1
        self._last_progress = 0.0
        self._ready_at: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the transfer is over, well or not."""
        return self.state in (SenderState.DELIVERED, SenderState.FAILED)

    # -- events ---------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Begin. The offer has been sent and the slot was granted."""
        if self.state is not SenderState.IDLE:
            return []
        self.state = SenderState.SENDING
        self._last_progress = now
        return self._pump(now)

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest."""
        if index in self._digesting:
            self._digesting.discard(index)
            self._digests[index] = value
        return self._finish_sending()

    def on_written(self, written_from: int, now: float) -> list[Action]:
        """Another mode's: this one begins when the payload is whole."""
        del written_from, now
        return []

    def on_chunk_ack(self, index: int, now: float) -> list[Action]:
        """Another mode's; ignored."""
        del index, now
        return []

    def on_write_done(self, work_request: int, now: float) -> list[Action]:
        """Reliable queue pairs: a chunk is whole at the receiver. On UC it says nothing, and is ignored."""
        position = self._requests.pop(work_request, None)
        if position is None or self.finished or not self.settings.reliable or not self._arrivals.add(position):
            return []
        flight = self._flights.arrive(position, now, self.control.min_rtt)
        self._own_arrived_bytes += self._length(position)
        self.arrived_bytes += self._length(position)
        self._progress(now)
        rtt = now - flight.sent_at if flight is not None else None
        rate = self._delivery_rate(now, self._own_arrived_bytes)
        self._learn(rtt, rate, 1, 0, now)
        return self._pump(now)

    def on_report(self, report: Report, now: float) -> list[Action]:
        """The receiver says what it has. Stale reports teach nothing and do no harm."""
        if self.finished or self.state is SenderState.IDLE or report.epoch != self._epoch:
            return []
        newest = self._flights.arrive(report.newest, now, self.control.min_rtt)
        try:
            new = list(self._arrivals.merge(report.complete, report.beyond))
        except IndexError as error:
            return self.cancel(ErrorCode.UNEXPECTED_EVENT, f"a report makes no sense: {error}")
        for position in new:
            self._flights.arrive(position, now, self.control.min_rtt)
            self.arrived_bytes += self._length(position)
        lost = [] if self.settings.reliable else self._flights.overtaken()
        self._again.extend(position for position in lost if position not in self._arrivals)
        if new:
            self._progress(now)
        if self.settings.reliable:
            return self._pump(now)
        rtt = None if newest is None or newest.again else now - newest.sent_at - max(report.held, 0.0)
        self._learn(rtt, self._delivery_rate(report.arrived_at, report.received_bytes), len(new), len(lost), now)
        return self._pump(now)

    def on_resend(self, chunks: Iterable[int], now: float) -> list[Action]:
        """The receiver found damage: it has thrown everything away, or (without any chunks) could not read the header.

        This frame must not be lost: it begins a new epoch, and reports of earlier ones no longer count.
        """
        if self.finished or self.state is SenderState.IDLE:
            return []
        self._header_out = False
        if any(True for _ in chunks):
            self._epoch += 1
            self._forget_arrivals()
        return self._count_resend() or self._pump(now)

    def on_delivered(self, now: float) -> list[Action]:
        """The receiver has the payload, whole."""
        if self.finished or self.state is SenderState.IDLE:
            return []
        self._last_progress = now
        self.arrived_bytes = self.plan.total_bytes
        self.state = SenderState.DELIVERED
        return [Finished()]

    def on_refused(self, code: ErrorCode, reason: str) -> list[Action]:
        """The receiver will not deliver it."""
        if self.finished:
            return []
        self.state = SenderState.FAILED
        return [Failed(code, reason)]

    def cancel(self, code: ErrorCode, reason: str) -> list[Action]:
        """Give up, and tell the peer."""
        if self.finished:
            return []
        self.state = SenderState.FAILED
        return [SendFrame(Abort(self.transfer, code.value, reason)), Failed(code, reason)]

    def pause(self) -> None:
        """The data path is gone: nothing in flight is known to have arrived."""
        if self.finished or self.state is SenderState.IDLE:
            return
        self.state = SenderState.PAUSED
        self._again.extend(self._flights.clear())
        self._requests.clear()
        self._digesting.clear()
        self._header_out = False

    def resume(self, now: float, *, same_slot: bool) -> list[Action]:
        """The data path is back; send what is not known to have arrived. With another slot, everything."""
        if self.state is not SenderState.PAUSED:
            return []
        self.state = SenderState.SENDING
        self._last_progress = now
        if not same_slot:
            self._forget_arrivals()
        return self._pump(now)

    def timer(self) -> float | None:
        """When to call `on_timer`."""
        if self.state is not SenderState.SENDING:
            return None
        times = [self._last_progress + self.settings.idle_timeout]
        if self._ready_at is not None:
            times.append(self._ready_at)
        oldest = None if self.settings.reliable else self._flights.oldest_sent_at
        if oldest is not None:
            times.append(oldest + self._patience())
        return min(times)

    def on_timer(self, now: float) -> list[Action]:
        """Send what may go now, and what was under way for too long once more."""
        if self.state is not SenderState.SENDING:
            return []
        if now >= self._last_progress + self.settings.idle_timeout:
            return self.cancel(ErrorCode.IDLE_TIMEOUT, f"nothing arrived for {now - self._last_progress:g} s")
        if not self.settings.reliable:
            self._give_up_overdue(now)
        return self._pump(now)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _progress(self, now: float) -> None:
        self._last_progress = now
        self._probe_backoff = 1

    def _patience(self) -> float:
        """How long a chunk may be under way: tail loss is found by this alone."""
        rtt = self.control.rtt or self.settings.rtt_hint or UNKNOWN_RTT
        return (1.25 * rtt + REPORT_SLACK_SECONDS) * self._probe_backoff

    def _give_up_overdue(self, now: float) -> None:
        oldest, patience = self._flights.oldest_sent_at, self._patience()
        if oldest is None or now < oldest + patience - 1e-9:
            return
        # all that is as late as one would be without the doubling: else a window that has become smaller than what was
        # lost of it would open by one chunk at a time, after twice the wait each
        lost = self._flights.older_than(now - patience / self._probe_backoff)
        self._again.extend(position for position in lost if position not in self._arrivals)
        self._probe_backoff = min(self._probe_backoff * 2, 64)
        if not self.control.known:
            self._train_left = TRAIN_BYTES // 4

    def _learn(self, rtt: float | None, rate: float | None, arrived: int, lost: int, now: float) -> None:
        if not self.settings.paced:
            return
        packets = max(1, -(-self.plan.chunk_bytes // self.settings.mtu_bytes))
        self.control.on_sample(Sample(rtt, rate, arrived, lost, packets), now)

    def _delivery_rate(self, arrived_at: float, received_bytes: int) -> float | None:
        marks = self._marks
        if marks and arrived_at <= marks[-1][0]:
            return None
        marks.append((arrived_at, received_bytes))
        while len(marks) > 2 and marks[1][0] <= arrived_at - RATE_WINDOW_SECONDS:
            marks.popleft()
        since, before = marks[0]
        if received_bytes - before < 4 * min(self.plan.chunk_bytes, self.plan.total_bytes):
            return None
        return (received_bytes - before) / (arrived_at - since)

    def _length(self, position: int) -> int:
        return self.plan.chunk(self.plan.count - 1 - position).length

    def _window(self) -> float:
        if self.settings.window_bytes is not None:
            return self.settings.window_bytes
        return max(self.control.window_bytes, 2 * self.plan.chunk_bytes)

    def _waiting_position(self) -> int | None:
        """What goes next: lost chunks before new ones."""
        while self._again and self._again[0] in self._arrivals:
            self._again.popleft()
        if self._again:
            return self._again[0]
        while self._next_position < self.plan.count and self._next_position in self._arrivals:
            self._next_position += 1
        return self._next_position if self._next_position < self.plan.count else None

    def _pump(self, now: float) -> list[Action]:
        if self.state is not SenderState.SENDING:
            return []
        self._ready_at = None
        actions: list[Action] = []
        if not self.settings.paced:
            self._send_window(actions, now)
        elif self.control.known:
            self._send_paced(actions, now)
        else:
            self._send_train(actions, now)
        return actions + self._finish_sending()

    def _send_window(self, actions: list[Action], now: float) -> None:
        while (position := self._waiting_position()) is not None and self._fits_window(position):
            self._send(position, actions, now)

    def _fits_window(self, position: int) -> bool:
        in_flight = self._flights.bytes_in_flight
        return in_flight == 0 or in_flight + self._length(position) <= self._window()

    def _send_train(self, actions: list[Action], now: float) -> None:
        while (position := self._waiting_position()) is not None:
            length = self._length(position)
            if self._train_left < length and self._flights.bytes_in_flight > 0:
                return
            self._train_left -= length
            self._send(position, actions, now)

    def _send_paced(self, actions: list[Action], now: float) -> None:
        self.control.on_time(now)
        rate = self.control.rate
        self._pacer.burst_bytes = max(int(rate * BURST_SECONDS), self.plan.chunk_bytes)
        self._pacer.set_rate(rate, now)
        quantum = max(int(rate * QUANTUM_SECONDS), 1)
        while (position := self._waiting_position()) is not None:
            length = self._length(position)
            if not self._fits_window(position):
                return
            at = self._pacer.grant_at(length, now)
            if at > now:
                self._ready_at = max(at, self._pacer.grant_at(max(length, quantum), now))
                return
            self._pacer.take(length, now)
            self._send(position, actions, now)

    def _send(self, position: int, actions: list[Action], now: float) -> None:
        again = bool(self._again) and self._again[0] == position
        if again:
            self._again.popleft()
        else:
            self._next_position += 1
        chunk = self.plan.chunk(self.plan.count - 1 - position)
        if again:
            self.resent_bytes += chunk.length
        queue_pair = self._next_queue_pair
        self._next_queue_pair = (queue_pair + 1) % self.settings.queue_pairs
        self._flights.depart(Flight(position, chunk.length, queue_pair, now, again))
        request = self._take_request()
        if self.settings.reliable:
            self._requests[request] = position
        immediate = immediate_of(self.settings.tag, chunk.index)
        post = PostChunk(request, chunk, self.layout.write_offset(chunk), queue_pair, immediate)
        actions.append(post)
        if again and self._next_position == self.plan.count and not self.settings.reliable:
            # another loss would cost another round trip with nothing else to send: twice at once is cheaper
            self._pacer.take(chunk.length, now)
            self.resent_bytes += chunk.length
            actions.append(dataclasses.replace(post, work_request=self._take_request()))
        if chunk.index not in self._digests and chunk.index not in self._digesting:
            self._digesting.add(chunk.index)
            actions.append(ComputeDigest(chunk))

    def _finish_sending(self) -> list[Action]:
        """The header goes by the reliable control queue pair once every digest is known."""
        count = self.plan.count
        if self.state is not SenderState.SENDING or self._header_out or len(self._digests) < count:
            return []
        self._header_out = True
        digest = payload_digest([self._digests[index] for index in range(count)])
        total = self.plan.total_bytes
        header = ChunkHeader(HeaderKind.PAYLOAD, self.transfer, total, 0, total, digest, 0, count)
        return [WriteHeader(self._take_request(), header, self.layout.header_at)]

    def _forget_arrivals(self) -> None:
        """Nothing counts any more: every chunk again, and the header."""
        self._flights.clear()
        self._requests.clear()
        self._arrivals = ArrivalMap(self.plan.count)
        self.arrived_bytes = 0
        self._again = deque(range(self._next_position))
        self._header_out = False

    def _count_resend(self) -> list[Action]:
        self._resend_requests += 1
        if self._resend_requests <= self.settings.max_resends:
            return []
        return self.cancel(ErrorCode.UNEXPECTED_EVENT, f"asked to send again {self._resend_requests} times")

    def _take_request(self) -> int:
        self._next_request += 1
        return self._next_request
