"""The sending half of a `fedrdma-x` transfer: a paced window, and only what was lost again.

More than 500 lines: everything that decides when a chunk goes is to be seen in one place.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec

from fedrdma_fate.core.actions import (
    Action,
    ChunkArrived,
    Finished,
    PostChunk,
    SendFrame,
    TellDigests,
    WriteHeader,
)
from fedrdma_fate.core.damage import can_tell, pack_digests
from fedrdma_fate.core.held import Ranges, chunks_within, ranges_of
from fedrdma_fate.core.idle_time import IdleTime
from fedrdma_fate.core.path import Sample
from fedrdma_fate.core.plan import Chunk, ChunkPlan, SlotLayout
from fedrdma_fate.core.sender import SenderBase, SenderState
from fedrdma_fate.core.x.arrival_map import ArrivalMap
from fedrdma_fate.core.x.bounded_loss import DigestTelling, LossBound
from fedrdma_fate.core.x.chunking import chunk_of_immediate, immediate_of
from fedrdma_fate.core.x.controller import LEAST_SHARED_RATE, Controller
from fedrdma_fate.core.x.estimators import (
    DELIVERY_WINDOW_SECONDS,
    LEAST_ESTIMATE_SECONDS,
    LEAST_PRECISE_SECONDS,
    DeliveryRateEstimator,
    chunk_loss,
)
from fedrdma_fate.core.x.flight_recorder import FlightRecorder
from fedrdma_fate.core.x.header import HeaderSender
from fedrdma_fate.core.x.lateness import REPEATED_FACTOR, Lateness
from fedrdma_fate.core.x.loss_detection import (
    REORDERING_THRESHOLD_CHUNKS,
    RTT_FACTOR,
    UNKNOWN_RTT_SECONDS,
    InFlight,
    RetransmitTimeout,
    SentChunk,
)
from fedrdma_fate.core.x.pacing import BURST_SECONDS, LEAST_WAIT_SECONDS, Pacer
from fedrdma_fate.core.x.probe_queue import LEAST_QUEUE_BYTES
from fedrdma_fate.core.x.repair import RepairSender
from fedrdma_fate.core.x.repair_code import ACCEPTED_LOSS, RepairPlan, copies_of_last, copies_of_repeat
from fedrdma_fate.core.x.send_queue import SendQueue
from fedrdma_fate.core.x.sending_order import SendingOrder
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ChunkDigests, Report

TRAIN_BYTES = 4 * 1024 * 1024
"""Of the packet train that goes unpaced on a path nothing is known of, for its dispersion to show the rate (Dovrolis et
al., "What do packet dispersion techniques measure?", INFOCOM 2001): what `fedrdma-e` would send at once."""

UNANSWERED_TRAIN_BYTES = int(LEAST_QUEUE_BYTES)
"""Of the same while the path probe is unanswered, for the path may be slow: at 5 Mbit/s 4 MiB take 7 s, for which
acknowledgements of the data path stand in the same queue. No more than the path probe's own train."""

UNANSWERED_TRAIN_CHUNKS = 8
"""But so many chunks, twice what a delivery rate takes."""


@dataclasses.dataclass(frozen=True, slots=True)
class XSendSettings:
    """Parameters of a sender.

    Attributes:
        tag: what the immediates of this transfer carry: the grant's id modulo 4096.
        reliable: whether the queue pairs are RC (completions move the window) or UC (reports do).
        queue_pairs: how many to spread the chunks over.
        paced: whether the rate is for us to find; a transport with a congestion control of its own gets a full window.
        window_bytes: most bytes in flight; None: twice the bandwidth-delay product.
        most_chunks: most chunks in flight; those beyond would only wait in front of the queue pairs. None: any number.
        mtu_bytes: packet size.
        repairs_packets: of a chunk that is sent again only the missing packets go; the receiver counts packets.
        rtt_hint: round trip as the control channel saw it, seconds.
        idle_timeout: seconds without anything new arriving after which the transfer fails.
        max_resends: how often the receiver may ask for everything, or the header, again.
        repairs: the repair chunks to send behind the payload, on UC.
        repairs_if_lossy: they are for a loss that is only supposed: none go where the transfer has found none.
        most_bytes: most bytes in flight, however many would do the path good; None: any number.
        tells_arrivals: whether to ask for ChunkArrived.
        first_epoch: that of the first reports: where a transfer may begin anew, what tells them from those of before.
        is_probing: the path probe has been sent and is not answered: of a path that nothing is known of it may be slow.
        first_burst_bytes: what may go at once at the start; None: what suits the path. Where the receiver has many
            senders that begin together, less than a chunk.
        bound: which chunks may be missing in the end, so that digests are told (of what is sealed, tags); None: none.
        tail: indices of those that go behind all others of the payload.
    """

    tag: int
    reliable: bool = False
    queue_pairs: int = 1
    paced: bool = True
    window_bytes: int | None = None
    most_chunks: int | None = None
    mtu_bytes: int = 4096
    repairs_packets: bool = False
    rtt_hint: float | None = None
    idle_timeout: float = 60.0
    max_resends: int = 16
    repairs: RepairPlan | None = None
    repairs_if_lossy: bool = False
    most_bytes: int | None = None
    tells_arrivals: bool = False
    first_epoch: int = 0
    is_probing: bool = False
    first_burst_bytes: int | None = None
    bound: LossBound | None = None
    tail: range = range(0)


LEAST_DELIVERY_CHUNKS = 4
"""Chunks that must arrive for a delivery rate to mean something. Ours: of fewer the spacing of single chunks shows."""

TRAIN_FACTOR = 2
"""After a train that arrived whole, with no rate to be seen for it was all found at one moment, the next is so many
times as long: as BBR's Startup sends twice as much in each round (draft, section 5.3.1)."""

TRAIN_DIVISOR = 4
"""After a train of which nothing arrived in time, so much less goes unpaced: 1 MiB. Ours: the buffer may be small."""

SAMPLE_DIVISOR = 4
"""But no more than this part of a payload is waited for, so that small ones teach something, too."""

FIRST_BURST_BYTES = int(1.5 * LEAST_QUEUE_BYTES)
"""But no more than this at the start, on a path whose rate is known, for the buffer may hold 0.5 MB: enough that the
spacing of its arrivals shows a rate that was underrated."""

WAKE_SECONDS = 0.0002
"""It is asked for what the rate gives in this time at once. Ours: a thread that woke for each chunk of 16 KiB would do
so every 13 us at 10 Gbit/s."""

SHORT_PATH_WAIT_SECONDS = 0.01
"""A chunk may take so long on a path too short to be paced: what the two hosts' threads wait for their turn is longer
than the round trip, and a window that is sent again for nothing costs more than a loss at the very end does."""

SHORT_PATH_TAIL_BYTES = 256 * 1024
"""But not the last so many bytes, where nothing follows by which a loss is told (as RFC 8985, section 7, probes for a
tail loss): sent again for nothing, they cost a fifth of a millisecond at 10 Gbit/s."""

MOST_COPIED_BYTES = int(LEAST_QUEUE_BYTES)
"""No copies go of what is sent again while more than this waits for it: so much is not lost by chance, of which copies
are independent, but in a buffer that was full, and would fill it again."""

CUT_SILENCE_SECONDS = 0.004
"""So long after something came nothing has, two times from report to report: the rest of a burst is lost, and not late.
Of what only takes longer than before, chunks keep coming one after the other. Ours."""

SILENT_BACKOFF = 2
"""Once the time-out has doubled further than this, nothing arrives any more: two time-outs in a row, where QUIC calls
congestion persistent after three (kPersistentCongestionThreshold, RFC 9002, section 7.6.1)."""

SILENT_WINDOW_CHUNKS = 4
"""Chunks in flight while nothing arrives: enough to find out when it does again. BBR.MinPipeCwnd."""


class XSender(SenderBase):
    """Sends one payload into one granted slot. Every method returns the actions to carry out, in order.

    Times are in seconds of one clock; those in reports are of the receiver's, and only their differences count.

    Attributes:
        plan: how the payload is cut.
        settings: parameters.
        control: finds the rate.
        layout: what lies where in the slot.
        resent_bytes: sent besides the payload: chunks again, copies, repair chunks.
        arrived_bytes: payload bytes known to lie in the receiver's slot.
        delivered_bytes: likewise, of what was sent before that was said; what comes anew after damage counts again.
        told_digests: the receiver was told them; what it asks for next is just what it names.
        lost_bytes: of chunks that were taken for lost, so far.
    """

    def __init__(
        self, transfer: int, plan: ChunkPlan, settings: XSendSettings, control: Controller, written_from: int = 0
    ) -> None:
        """
        Args:
            transfer: its id.
            plan: how the payload is cut.
            settings: parameters.
            control: finds the rate.
            written_from: the payload is still being written, from its end to its start, and lies there from here on.
        """
        super().__init__(transfer)
        self.plan = plan
        self.settings = settings
        self.control = control
        control.chunk_bytes = plan.chunk_bytes
        control.counts_packets = settings.repairs_packets
        self.layout = SlotLayout(plan, "fedrdma-x")
        self.resent_bytes = 0
        self.arrived_bytes = self.lost_bytes = self.delivered_bytes = 0
        self.told_digests = False
        self._packets = max(1, -(-plan.chunk_bytes // settings.mtu_bytes))
        self._arrivals = ArrivalMap(plan.count)
        self._idle = IdleTime(settings.idle_timeout)
        self._in_flight = InFlight(settings.queue_pairs, FlightRecorder() if control.needs_rate_samples else None)
        first_burst = FIRST_BURST_BYTES if control.known else TRAIN_BYTES
        self._pacer = Pacer(first_burst if settings.first_burst_bytes is None else settings.first_burst_bytes)
        self._order = SendingOrder(plan, settings.tail)
        self._queue = SendQueue(self._order, written_from)
        self._header = HeaderSender(transfer, plan)
        self._epoch = settings.first_epoch
        self._resend_requests = 0
        self._requests: dict[int, int] = {}
        self._waiting: dict[int, SentChunk] = {}
        self._missing_bytes: dict[int, int] = {}
        self._overdue_bytes = 0
        self._request_numbers = itertools.count(1)
        self._turns = itertools.cycle(range(settings.queue_pairs))
        self._application_limited_until = 0.0
        self._most_rate = math.inf
        self._bounded_until = 0.0
        self._delivery = DeliveryRateEstimator(LEAST_DELIVERY_CHUNKS * plan.longest_bytes)
        self._own_arrived_bytes = 0
        self._latest_trip = math.inf
        self._first_train_bytes = TRAIN_BYTES
        if settings.is_probing:
            self._first_train_bytes = max(UNANSWERED_TRAIN_BYTES, UNANSWERED_TRAIN_CHUNKS * plan.chunk_bytes)
        self._train_bytes = self._train_left = self._first_train_bytes
        self._trained_at = -math.inf
        self._was_idle = False
        self._timeout = RetransmitTimeout()
        self._repairs = None if settings.repairs is None else RepairSender(settings.repairs, self._order)
        self._ready_at: float | None = None
        self._lateness = Lateness()
        self._telling = None if settings.bound is None else DigestTelling(plan)

    @property
    def arrived_ranges(self) -> Ranges:
        """Which bytes of the payload lie in the receiver's slot."""
        chunks = (self._queue.chunk(position) for position in self._arrivals)
        return ranges_of(chunk for chunk in chunks if chunk.index >= self.plan.trailer_count)

    # -- events ---------------------------------------------------------------------------------------------------

    def note_held(self, ranges: Ranges) -> None:
        """Before the start: these bytes lie in the slot, and are not sent."""
        for chunk in chunks_within(self.plan, ranges):
            if self._arrivals.add(self._order.position(chunk.index)):
                self.arrived_bytes += chunk.length

    def start(self, now: float) -> list[Action]:
        """Begin. The offer has been sent and the slot was granted."""
        if self.state is not SenderState.IDLE:
            return []
        self.state = SenderState.SENDING
        self._timeout.last_progress = now
        # the header speaks for what is not sent as well
        digests = [action for at in self._arrivals for action in self._header.on_chunk_sent(self._queue.chunk(at))]
        return self._pump(now) + digests

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest."""
        if self._header.on_digest(index, value) and self._telling is not None:
            self._telling.on_digest(index)
        return self._finish_sending()

    def on_written(self, written_from: int, now: float) -> list[Action]:
        """The payload lies there from here on. Waiting for its owner is not waiting for the network."""
        self._look(now)
        if self._awaits_owner:
            self._timeout.last_progress = now
        self._queue.written_from = min(self._queue.written_from, written_from)
        return self._pump(now)

    def on_chunk_ack(self, index: int, now: float) -> list[Action]:
        """Another mode's; ignored."""
        del index, now
        return []

    def on_write_done(self, work_request: int, now: float) -> list[Action]:
        """Reliable queue pairs: a chunk is whole at the receiver. On UC it says nothing, and is ignored."""
        waiting = self._waiting.pop(work_request, None)
        if waiting is not None:
            waiting.left_at = now
        position = self._requests.pop(work_request, None)
        if position is None or self.finished or not self.settings.reliable or not self._arrivals.add(position):
            return []
        self._look(now)
        sent = self._in_flight.on_acknowledged(position, now, self.control.min_rtt)
        length = self._length(position)
        self._own_arrived_bytes += length
        self.arrived_bytes += length
        self.delivered_bytes += length
        self._timeout.on_progress(now)
        # who comes late to it took it for longer under way than it was
        rtt = None if sent is None or self._lateness.seconds(now) else now - sent.sent_at
        rate = self._delivery_rate(now, self._own_arrived_bytes)
        self._learn(rtt, rate, 1, (), now)
        return self._tell_arrived([position]) + self._pump(now)

    def on_chunk_nack(self, immediate: int, missing_bytes: int) -> None:
        """Of the chunk of this immediate only so many bytes are missing, and only they would go again.

        Of one that was never sent nobody can know that.
        """
        tag, index = chunk_of_immediate(immediate)
        position = self._order.position(index)
        was_sent = 0 <= position < self._queue.sent
        if tag == self.settings.tag and was_sent and position not in self._arrivals:
            self._missing_bytes[position] = min(max(missing_bytes, 1), self._length(position))

    def on_report(self, report: Report, now: float) -> list[Action]:
        """The receiver says what it has. Stale reports teach nothing and do no harm."""
        if self.finished or self.state is SenderState.IDLE or report.epoch != self._epoch:
            return []
        self._look(now)
        newest, sent = self._in_flight.on_acknowledged(report.newest, now, self.control.min_rtt), self._queue.sent
        try:
            new = list(self._arrivals.merge(report.complete, report.beyond))
        except IndexError as error:
            return self.cancel(ErrorCode.UNEXPECTED_EVENT, f"a report makes no sense: {error}")
        certain, is_first = newest is not None, newest is not None and not newest.is_retransmission
        for position in new:
            self._missing_bytes.pop(position, None)
            came = self._in_flight.on_acknowledged(position, now, self.control.min_rtt)
            if came is not None:
                certain, is_first = True, is_first or not came.is_retransmission
            self.arrived_bytes += self._length(position)
            # who says that it has what was never sent is not to look like a fast path for that
            self.delivered_bytes += self._length(position) if position < sent else 0
        lost = [] if self.settings.reliable else self._in_flight.detect_lost()
        self._queue.retransmit(position for position in lost if position not in self._arrivals)
        self.lost_bytes += self._bytes_to_repeat(lost)
        if new:
            self._timeout.on_progress(now, certain=certain)
        if is_first:
            self._timeout.on_first_sending()
        elif self._in_flight.spurious_trip is not None:
            self._timeout.on_spurious(self._in_flight.spurious_trip, self._round_trip)
        self._in_flight.spurious_trip = None
        arrived = self._tell_arrived(new) + self._digests_of(position for position in new if position >= sent)
        if self.settings.reliable:
            return arrived + self._pump(now)
        rtt = None if newest is None else self._trip_of(newest, report.held, now)
        if self._in_flight.shorter_trip is not None:
            rtt = self._latest_trip = self._in_flight.shorter_trip
            self._in_flight.shorter_trip = None
            # it was made for a longer one, and what came too early for that one was no earlier sending
            self._timeout.on_first_sending()
        rate = self._delivery_rate(report.arrived_at, report.received_bytes)
        # who comes late to a report does not know when it came
        is_told = report.newest >= 0 and not self._lateness.seconds(now)
        way_back = now - report.arrived_at - max(report.held, 0.0) if is_told else None
        self._learn(rtt, rate, len(new), lost, now, way_back)
        return arrived + self._pump(now)

    def on_resend(self, chunks: Iterable[int], now: float) -> list[Action]:
        """The receiver found damage: it has thrown everything away, or (without any chunks) could not read the header.

        Where it was told the digests, it has thrown away what it names. This frame must not be lost: it begins a new
        epoch, and reports of earlier ones no longer count.
        """
        if self.finished or self.state is SenderState.IDLE:
            return []
        self._header.is_sent = False
        wanted, told = set(chunks), self.told_digests
        self.told_digests = False
        if told and any(not 0 <= index < self.plan.count for index in wanted):
            return self.cancel(
                ErrorCode.UNEXPECTED_EVENT, f"the receiver asked for chunks {min(wanted)} to {max(wanted)} again"
            )
        arrived: list[Action] = []
        if wanted:
            self._epoch += 1
            if told:
                arrived = self._keep_all_but(wanted)
            else:
                self._forget_arrivals()
        return self._count_resend() or arrived + self._pump(now)

    def on_digest_request(self) -> list[Action]:
        """The receiver has all of it, and a wrong digest."""
        digests = self._header.digests()
        if self.finished or self.state is SenderState.IDLE or digests is None or not can_tell(self.plan):
            return []
        if refused := self._count_resend():
            return refused
        self.told_digests = True
        return [SendFrame(ChunkDigests(self.transfer, pack_digests(digests)))]

    def bound_rate(self, most: float, now: float) -> list[Action]:
        """The receiver lets no more than this through, in bytes a second: it has others to serve. Infinite: all."""
        self._look(now)
        self._note_bound(now)
        self._most_rate = max(most, LEAST_SHARED_RATE)
        self.control.on_bound(self._most_rate)
        return self._pump(now)

    def _note_bound(self, now: float) -> None:
        """What arrives of what goes now, for as long as samples are taken of it, is no faster than the bound."""
        if self._most_rate < self.control.rate:
            self._bounded_until = now + self.control.rtt + DELIVERY_WINDOW_SECONDS + self._sample_seconds

    @property
    def _sample_seconds(self) -> float:
        return max(DELIVERY_WINDOW_SECONDS, self.control.least_sample_bytes / self._rate)

    def on_delivered(self, now: float) -> list[Action]:
        """The receiver has the payload, whole."""
        if self.finished or self.state is SenderState.IDLE:
            return []
        self._timeout.last_progress = now
        self.arrived_bytes = self.plan.total_bytes
        self.state = SenderState.DELIVERED
        return [Finished()]

    def resume(self, now: float, *, same_slot: bool) -> list[Action]:
        """The data path is back; send what is not known to have arrived. With another slot, everything."""
        if self.state is not SenderState.PAUSED:
            return []
        self.state = SenderState.SENDING
        self._delivery.restart()
        self._timeout.on_progress(now)
        if self._telling is not None:
            self._telling.again()
        if not same_slot:
            self._forget_arrivals()
        return self._pump(now)

    @property
    def waiting_since(self) -> float | None:
        """Since when chunks are under way, or lost, and none has arrived; None where nobody waits for one."""
        is_waiting = self.state is SenderState.SENDING and not self._awaits_owner and not self._arrivals.full
        return self._timeout.last_progress if is_waiting and not self.settings.reliable else None

    @property
    def _fails_at(self) -> float:
        """Compared with the time as it is: a difference may be rounded down, and the timer be due for ever."""
        return self._idle.due(self._timeout.last_progress, self._in_flight.bytes_in_flight)

    @property
    def fails_at(self) -> float | None:
        """When it fails, where whether its bytes move is to be looked at then; None on paths that may lose them."""
        is_waiting = self.state is SenderState.SENDING and not self._awaits_owner
        return self._fails_at if is_waiting and self.settings.reliable else None

    def on_moving(self, now: float) -> None:
        """Bytes move on its way, though no chunk is whole."""
        self._idle.moved_at = now

    def timer(self) -> float | None:
        """When to call `on_timer`."""
        if self.state is not SenderState.SENDING or self._awaits_owner:
            return None
        times = [self._fails_at]
        if self._ready_at is not None:
            times.append(self._ready_at)
        oldest = None if self.settings.reliable else self._in_flight.oldest_sent_at
        if oldest is not None:
            times.append(self._timeout.deadline(self._waited_from(oldest), self._longest_wait(oldest)))
        return min(times)

    def on_timer(self, now: float) -> list[Action]:
        """Send what may go now, and what was under way for too long once more."""
        if self.state is not SenderState.SENDING or self._awaits_owner:
            return []
        if now >= self._fails_at:
            idle = now - self._timeout.last_progress
            return self.cancel(ErrorCode.IDLE_TIMEOUT, f"nothing arrived for {idle:g} s")
        self._look(now)
        if not self.settings.reliable:
            self._detect_overdue(now)
        return self._pump(now)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Something is looked at: whether the host is late, before anything is sent that was due."""
        if now > self._lateness.looked_at:
            self._lateness.on_event(self.timer(), now)

    def _forget_in_flight(self) -> None:
        self._queue.retransmit(self._in_flight.clear())
        self._requests.clear()
        self._waiting.clear()
        # the next path has been told nothing of what the receiver lacks, and sends all of a chunk
        self._missing_bytes.clear()
        self._header.pause()
        if self.settings.reliable:
            # who carried a chunk acknowledged it, and not who receives it: of what was acknowledged last, that one may
            # not have been told when the path ended. What it has, its report says, ahead of its grant
            self._forget_arrivals()

    @property
    def _round_trip(self) -> float:
        """The latest, 0 while none is known."""
        known = min(self.control.rtt or math.inf, self._latest_trip)
        return known if known < math.inf else self.settings.rtt_hint or 0.0

    @property
    def _rate(self) -> float:
        """What to pace at: what the path carries, and the receiver lets through."""
        return min(self.control.rate, self._most_rate)

    def _trip_of(self, sent: SentChunk, held: float, now: float) -> float | None:
        """The round trip that this chunk took; None for one sent again, which is told for the time-out only.

        Which of its sendings was acknowledged is not known (Karn), so it takes no less than this: while only such ones
        are under way, a queue that has drained meanwhile would keep the time-out long. As long as no round trip is
        known it is told: where of all that went first nothing came, it may be all that ever tells.
        """
        # whoever says that it has held its report for longer than the chunk is gone has said nothing
        trip = max(now - sent.sent_at - max(held, 0.0), 0.0)
        if sent.is_retransmission:
            self._latest_trip = min(self._latest_trip, trip)
            self._timeout.on_trip(trip)
            return None if self.control.rtt else trip
        self._latest_trip = trip
        # who comes late to a report took it for longer under way than it was: no sign of a queue
        return None if self._lateness.seconds(now) else trip

    def _longest_wait(self, oldest_sent_at: float) -> float:
        """How long a chunk under way may take, as a round trip.

        What went unpaced cannot have come before the rate lets it. And as long as there is more to send, those by which
        a loss is told have to follow on the same queue pair.
        """
        if not self.control.known:
            return max(self._round_trip, UNKNOWN_RTT_SECONDS)
        if self.control.report_clocked:
            is_tail = self._queue.all_sent and self._in_flight.bytes_in_flight <= SHORT_PATH_TAIL_BYTES
            return self._round_trip if is_tail else max(self._round_trip, SHORT_PATH_WAIT_SECONDS)
        rate, wait = self._rate, self._round_trip + self.control.report_delay
        if oldest_sent_at <= self._trained_at:
            wait = max(wait, self._in_flight.bytes_in_flight / rate / RTT_FACTOR)
        if self._queue.all_sent:
            return wait
        following = (REORDERING_THRESHOLD_CHUNKS + 1) * self.settings.queue_pairs
        return wait + following * self.plan.chunk_bytes / rate

    def _waited_from(self, oldest_sent_at: float) -> float:
        """Of a train whose rate is not known the end may come late, as long as anything comes."""
        return oldest_sent_at if self.control.known else max(oldest_sent_at, self._timeout.last_progress)

    def _detect_overdue(self, now: float) -> None:
        oldest, timeout = self._in_flight.oldest_sent_at, self._timeout
        if oldest is None:
            return
        wait = self._longest_wait(oldest)
        if not timeout.is_over(self._waited_from(oldest), wait, now):
            return
        # all that is as late as one would be without the backoff: else a window that has become smaller than what was
        # lost of it would open by one chunk at a time, after twice the wait each
        waited = timeout.base_seconds(wait)
        if self._is_cut(oldest, now):
            # one burst is one event (RFC 9002, section 6.2.1): what has had the time to come will not
            waited = min(waited, wait + CUT_SILENCE_SECONDS)
        lost = self._in_flight.detect_overdue(now - waited)
        self._queue.retransmit(position for position in lost if position not in self._arrivals)
        overdue_bytes = self._bytes_to_repeat(lost)
        self._overdue_bytes += overdue_bytes
        self.lost_bytes += overdue_bytes
        timeout.on_timeout(now, wait)
        if self.settings.paced:
            self.control.on_overdue(len(lost), now)
        self._delivery.restart()
        if not self.control.known:
            self._train_bytes = self._train_left = self._first_train_bytes // TRAIN_DIVISOR

    def _is_cut(self, oldest_sent_at: float, now: float) -> bool:
        """Whether of a burst at the end the first chunks came, and then no more: by a full buffer all others are lost.

        While there is more to send, what goes behind it tells.
        """
        if not self._queue.all_sent or not self.control.known:
            return False
        silence = max(CUT_SILENCE_SECONDS, LEAST_DELIVERY_CHUNKS * self.plan.chunk_bytes / self._rate)
        return oldest_sent_at < self._timeout.last_progress <= now - silence

    def _delivery_rate(self, arrived_at: float, received_bytes: int) -> float | None:
        wanted = min(self.control.least_sample_bytes, self.plan.total_bytes // SAMPLE_DIVISOR)
        self._delivery.least_bytes = max(LEAST_DELIVERY_CHUNKS * self.plan.longest_bytes, wanted)
        control, least_seconds = self.control, 0.0
        if control.settled:
            least_seconds = LEAST_PRECISE_SECONDS
        elif control.known and self.plan.total_bytes >= SAMPLE_DIVISOR * LEAST_ESTIMATE_SECONDS * control.bandwidth:
            least_seconds = LEAST_ESTIMATE_SECONDS
        return self._delivery.rate(arrived_at, received_bytes, least_seconds)

    def _bytes_to_repeat(self, lost: Sequence[int]) -> int:
        return sum(self._missing_bytes.get(position) or self._length(position) for position in lost)

    def _learn(
        self,
        rtt: float | None,
        rate: float | None,
        arrived: int,
        lost: Sequence[int],
        now: float,
        way_back: float | None = None,
    ) -> None:
        if not self.settings.paced:
            return
        is_limited = now < self._application_limited_until and self.control.known
        is_bounded = now < self._bounded_until
        if rate is not None and is_limited and rate < self.control.rate:
            # there was nothing to send: that says nothing of the path
            rate = None
        if rate is not None and is_bounded and rate < self.control.bandwidth:
            # it was not to go any faster, which says as little; more than is known came of a probe below its gain
            rate = None
        in_flight = self._in_flight
        flight = None
        if in_flight.recorder is not None:
            flight = in_flight.recorder.take(in_flight.bytes_in_flight, self.control.min_rtt)
        repairs_packets = self.settings.repairs_packets
        lost_bytes, self._overdue_bytes = self._overdue_bytes + self._bytes_to_repeat(lost), 0
        sample = Sample(rtt, rate, arrived, len(lost), self._packets, repairs_packets, lost_bytes, flight, way_back)
        self.control.on_sample(sample, now)

    def _tell_arrived(self, positions: Iterable[int]) -> list[Action]:
        if not self.settings.tells_arrivals:
            return []
        return [ChunkArrived(self._queue.chunk(position)) for position in positions]

    def _length(self, position: int) -> int:
        return self._queue.chunk(position).length

    def _cost(self, position: int, chunk: Chunk) -> int:
        """Bytes that posting the chunk at a position sends."""
        return self._missing_bytes.get(position, chunk.length)

    def _window(self) -> float:
        if self._timeout.backoff > SILENT_BACKOFF:
            # nothing arrives any more: enough to find out when it does again
            return SILENT_WINDOW_CHUNKS * self.plan.chunk_bytes
        window = self.settings.window_bytes or max(self.control.window_bytes, 2 * self.plan.chunk_bytes)
        most_chunks, most_bytes = self.settings.most_chunks, self.settings.most_bytes
        if most_bytes is not None:
            window = min(window, most_bytes)
        return window if most_chunks is None else min(window, most_chunks * self.plan.chunk_bytes)

    @property
    def _awaits_owner(self) -> bool:
        """Whether there is nothing to do before more of the payload is written."""
        return self._queue.is_application_limited and not len(self._in_flight)

    def _pump(self, now: float) -> list[Action]:
        if self.state is not SenderState.SENDING:
            return []
        self._ready_at = None
        actions: list[Action] = []
        self._note_bound(now)
        if not self.settings.paced or (self.control.report_clocked and math.isinf(self._most_rate)):
            self._send_window(actions, now)
        elif self.control.known:
            self._send_paced(actions, now)
        else:
            self._send_train(actions, now)
        if self._queue.is_application_limited:
            self._note_little_to_send(now)
        return actions + self._finish_sending()

    def _note_little_to_send(self, now: float, late: float = 0.0) -> None:
        """What arrives of what goes now is less than the path carries, also where it is told of so late."""
        idle_seconds = DELIVERY_WINDOW_SECONDS + self._sample_seconds
        self._application_limited_until = now + late + self.control.rtt + idle_seconds

    def _catch_up(self, late: float, now: float) -> float:
        """How much of what was not sent goes at once."""
        # what a reliable queue pair loses is told to nobody: nothing shows that there is room for more than a train
        most = min(self.control.catch_up_bytes, LEAST_QUEUE_BYTES if self.settings.reliable else math.inf)
        missed = min(self._rate * late, most)
        self.control.on_catch_up(REPEATED_FACTOR * late, now)
        return missed

    def _send_window(self, actions: list[Action], now: float) -> None:
        window, burst = self._window(), self.control.burst_bytes if self.settings.paced else math.inf
        left = burst
        while (position := self._queue.head(self._arrivals)) is not None:
            chunk = self._queue.chunk(position)
            cost = self._cost(position, chunk)
            if not self._fits(cost, window):
                return
            if left <= 0:
                # a window in a round trip, or what is reported before: a rate that was underrated must not hold it up
                self._ready_at = now + max(self.control.min_rtt * burst / window, LEAST_WAIT_SECONDS)
                return
            left -= cost
            self._send(position, chunk, actions, now)

    def _fits(self, length: int, window: float) -> bool:
        in_flight = self._in_flight.bytes_in_flight
        return in_flight == 0 or in_flight + length <= window

    def _send_train(self, actions: list[Action], now: float) -> None:
        while (position := self._queue.head(self._arrivals)) is not None:
            chunk = self._queue.chunk(position)
            cost = self._cost(position, chunk)
            if self._train_left < cost:
                if self._in_flight.bytes_in_flight > 0:
                    return
                self._lengthen_train(cost)
            self._train_left -= cost
            self._trained_at = now
            self._was_idle = True
            self._send(position, chunk, actions, now)

    def _lengthen_train(self, least_bytes: int) -> None:
        """All of it has come, and told nothing: a chunk in each round trip would look like a path as slow as that."""
        self._train_bytes = min(max(TRAIN_FACTOR * self._train_bytes, least_bytes), max(TRAIN_BYTES, least_bytes))
        self._train_left = self._train_bytes
        # nothing was sent between the two
        self._delivery.restart()

    def _send_paced(self, actions: list[Action], now: float) -> None:
        self.control.on_time(now)
        rate = self._rate
        burst = max(min(rate * BURST_SECONDS, self.control.burst_bytes), rate * WAKE_SECONDS)
        late = self._lateness.take()
        if late and math.isinf(self._most_rate):
            # others who are held to shares of a link may be as late
            burst = max(burst, self._catch_up(late, now))
        self._pacer.burst_bytes = max(int(burst), self.plan.chunk_bytes)
        self._pacer.set_rate(rate, now)
        if late:
            self._note_little_to_send(now, REPEATED_FACTOR * late)
        if self._was_idle:
            # as at the start: a buffer that holds a train need not hold 1 ms of a fast path's rate
            self._pacer.bound(max(FIRST_BURST_BYTES, self.plan.chunk_bytes))
        self._was_idle = False
        wake_bytes = max(int(rate * WAKE_SECONDS), 1)
        window = self._window()
        while (position := self._queue.head(self._arrivals)) is not None:
            chunk = self._queue.chunk(position)
            length = self._cost(position, chunk)
            if not self._fits(length, window):
                return
            at = self._pacer.grant_at(length, now)
            if at > now:
                self._ready_at = max(at, self._pacer.grant_at(max(length, wake_bytes), now))
                return
            self._pacer.take(length, now)
            self._send(position, chunk, actions, now)
        self._was_idle = self._queue.all_sent
        if self._queue.all_sent and self._repairs is not None:
            self._send_repairs(self._repairs, actions, now)

    def _send_repairs(self, repairs: RepairSender, actions: list[Action], now: float) -> None:
        """They wait for nothing but the pace: a window is for what is reported."""
        if self.settings.repairs_if_lossy and chunk_loss(self.control.loss, self._packets) <= ACCEPTED_LOSS:
            self._repairs = None
            return
        length = self.plan.chunk_bytes
        while repairs.next_number is not None:
            at = self._pacer.grant_at(length, now)
            if at > now:
                self._ready_at = at
                return
            self._pacer.take(length, now)
            self.resent_bytes += length
            actions.append(repairs.take(now, self.settings.tag, next(self._request_numbers), next(self._turns)))

    def _send(self, position: int, chunk: Chunk, actions: list[Action], now: float) -> None:
        is_retransmission, cost = self._queue.take(), self._cost(position, chunk)
        if is_retransmission:
            self.resent_bytes += cost
        elif self._repairs is not None:
            actions += self._repairs.on_first_sent(chunk)
        queue_pair = next(self._turns)
        if self._in_flight.recorder is not None:
            self._in_flight.recorder.is_limited = now < self._application_limited_until
        sent = SentChunk(position, cost, queue_pair, now, is_retransmission)
        request = next(self._request_numbers)
        if self.settings.reliable:
            self._requests[request] = position
        elif self.settings.repairs_packets:
            self._waiting[request], sent.left_at = sent, math.inf
        self._in_flight.on_sent(sent)
        immediate = immediate_of(self.settings.tag, chunk.index)
        post = PostChunk(request, chunk, self.layout.write_offset(chunk), queue_pair, immediate)
        actions.append(post)
        for _ in range(self._copies(position, is_retransmission, now) - 1):
            self._pacer.take(cost, now)
            self.resent_bytes += cost
            actions.append(msgspec.structs.replace(post, work_request=next(self._request_numbers)))
        actions += self._header.on_chunk_sent(chunk)

    def _copies(self, position: int, is_retransmission: bool, now: float) -> int:
        """How often the chunk goes at once."""
        if self._repairs is not None and self._repairs.may_recover(now, self._round_trip):
            return 1
        is_last = position >= self.plan.count - REORDERING_THRESHOLD_CHUNKS * self.settings.queue_pairs
        if self.settings.reliable or not (self._queue.all_sent if is_retransmission else is_last):
            return 1
        if is_retransmission and self._queue.retransmissions * self.plan.chunk_bytes > MOST_COPIED_BYTES:
            return 1
        lost = chunk_loss(self.control.loss, self._packets)
        return copies_of_repeat(lost) if is_retransmission else copies_of_last(lost)

    def _digests_of(self, unsent: Iterable[int]) -> list[Action]:
        """The receiver has these from before, by a path of which this end knows nothing any more, and they do not go.

        The header speaks for them all the same. Of what is sealed before it goes it has nothing that counts.
        """
        if self.settings.tells_arrivals:
            return []
        chunks = [chunk for each in unsent if (chunk := self._queue.chunk(each)).offset >= self._queue.written_from]
        return [action for chunk in chunks for action in self._header.on_chunk_sent(chunk)]

    def _finish_sending(self) -> list[Action]:
        """The header goes once every digest is known."""
        if self.state is not SenderState.SENDING:
            return []
        runs = [] if self._telling is None else self._telling.take()
        told: list[Action] = [TellDigests(run.start, self._header.digests_of(run)) for run in runs]
        header = self._header.take()
        if header is None:
            return told
        return [*told, WriteHeader(next(self._request_numbers), header, self.layout.header_at)]

    def _keep_all_but(self, damaged: set[int]) -> list[Action]:
        """The receiver, which had everything, has all but these, and wants no repair chunks any more."""
        self._repairs = None
        self._in_flight.clear()
        self._requests.clear()
        self._waiting.clear()
        self._missing_bytes.clear()
        positions = sorted(self._order.position(index) for index in damaged)
        new = set(self._arrivals.merge(self.plan.count, b"")).difference(positions)
        self._arrivals.discard(positions)
        self._queue.retransmit_only(positions)
        self.arrived_bytes = sum(chunk.length for chunk in self.plan if chunk.index not in damaged)
        return self._tell_arrived(sorted(new))

    def _forget_arrivals(self) -> None:
        """Nothing counts any more: every chunk again, and the header; the receiver wants no repair chunks any more."""
        self._repairs = None
        self._in_flight.clear()
        self._requests.clear()
        self._waiting.clear()
        self._missing_bytes.clear()
        self._arrivals = ArrivalMap(self.plan.count)
        self.arrived_bytes = 0
        self._queue.retransmit_all()
        self._header.is_sent = False

    def _count_resend(self) -> list[Action]:
        self._resend_requests += 1
        if self._resend_requests <= self.settings.max_resends:
            return []
        return self.cancel(ErrorCode.UNEXPECTED_EVENT, f"asked to send again {self._resend_requests} times")
