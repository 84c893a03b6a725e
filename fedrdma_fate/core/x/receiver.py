"""The receiving half of a `fedrdma-x` transfer: keeps the bitmap, reports it, and verifies the whole.

More than 500 lines: everything that decides whether a payload is there is to be seen in one place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from fedrdma_fate.core.actions import Action, ClearHeader, Failed, Finished, SendFrame, SendReport, WipeChunk
from fedrdma_fate.core.damage import can_tell, damaged_chunks
from fedrdma_fate.core.digest import TAGGED, payload_digest
from fedrdma_fate.core.held import Held, chunks_within, ranges_of
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.core.receiver import ReceiverState
from fedrdma_fate.core.verification import ChunkVerification
from fedrdma_fate.core.x.arrival_map import ArrivalMap
from fedrdma_fate.core.x.bounded_loss import (
    LEAST_QUIET_SECONDS,
    LOOK_SECONDS,
    MOST_CHECK_SECONDS,
    MOST_LOOK_SECONDS,
    QUIET_SPACINGS,
    LossBound,
    SpendHoles,
    ToldDigests,
)
from fedrdma_fate.core.x.chunking import TAGS, chunk_of_immediate
from fedrdma_fate.core.x.repair import RepairReceiver
from fedrdma_fate.core.x.repair_code import RepairPlan
from fedrdma_fate.core.x.sending_order import SendingOrder
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import Delivered, DigestRequest, Refused, Report, ResendChunks
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind, decode_header

REPORT_INTERVAL_SECONDS = 0.002
"""At most one report in this time: a tenth of a round trip of 20 ms, and few enough for both ends' processors. Ours."""


REPORT_BYTES = 240 * 1024
"""Or one for so many bytes, where packets are repaired one by one: what has arrived may clock what is sent
(`short_path.py`), and of the window that a buffer of 0.5 MB lets through at 10 Gbit/s it is a quarter. Four batches of
datagrams (`BATCH_BYTES`, `chunking.py`) are as much; of 256 KiB they fell short, and a report came for six. Up to 1
Gbit/s it changes nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class XReceiveSettings:
    """Parameters of a receiver.

    Attributes:
        tag: what the immediates of this transfer carry.
        report_seconds: at most one report in this time, except the last; None: none but at a restart, for where
            completions tell the sender.
        report_bytes: sooner when so many bytes have come; None: not sooner.
        max_resends: how often damage is answered with a request to send again.
        repairs: the repair chunks that come besides.
        first_epoch: see `XSendSettings`.
        asks_digests: the sender tells the digests of its chunks when it is asked.
        tagged: a tag vouches for every chunk that comes.
        bound: which chunks may be missing in the end; None: none.
        tail: see `XSendSettings`.
    """

    tag: int
    report_seconds: float | None = REPORT_INTERVAL_SECONDS
    report_bytes: int | None = None
    max_resends: int = 3
    repairs: RepairPlan | None = None
    first_epoch: int = 0
    asks_digests: bool = False
    tagged: bool = False
    bound: LossBound | None = None
    tail: range = range(0)


class XReceiver:
    """Receives one payload into one slot. Every method returns the actions to carry out, in order.

    Times are in seconds of one clock, that of `arrived_at` too.

    Attributes:
        transfer: its id.
        plan: how the payload is cut.
        settings: parameters.
        layout: what lies where in the slot.
        state: where the transfer stands.
        resends: how often it has asked for damaged chunks, everything, or the header, again.
        epoch: counts how often it has thrown away what had arrived, or some of it.
        placed_bytes: payload bytes known to lie at their place.
        arrived_bytes: all that has come, what came twice, and repair chunks, included.
        lacks_table: it was delivered without its table of tags: those that were told open what has come.
        landed_again: see `ReceivingMachine.landed_again`.
        overtaken_bytes: of chunks of which a later one came first: what can have been lost of what was sent once.
    """

    def __init__(self, transfer: int, plan: ChunkPlan, settings: XReceiveSettings) -> None:
        """
        Raises:
            ValueError: the tag does not fit an immediate value.
        """
        if not 0 <= settings.tag < TAGS:
            raise ValueError(f"tag {settings.tag} does not fit an immediate value")
        self.transfer = transfer
        self.plan = plan
        self.settings = settings
        self.layout = SlotLayout(plan, "fedrdma-x")
        self.state = ReceiverState.RECEIVING
        self.resends = 0
        self.epoch = settings.first_epoch
        self.placed_bytes = 0
        self.arrived_bytes = 0
        self.overtaken_bytes = 0
        self.landed_again = 0
        self._loss_share = 0.0
        self._spend_holes: SpendHoles = lambda _whole, _total, _ranges: True
        self._is_late = False
        self._told_tags: set[int] = set()
        self.lacks_table = False
        self._told = None if settings.bound is None else ToldDigests(settings.bound)
        self._first_new_at: float | None = None
        self._last_new_at = 0.0
        self._looked_at = -math.inf
        self._look_seconds = LOOK_SECONDS
        self._check_due = -math.inf
        self._check_seconds = LOOK_SECONDS
        self._furthest = -1
        self._order = SendingOrder(plan, settings.tail)
        self._repairs = None if settings.repairs is None else RepairReceiver(settings.repairs, self._order)
        self._arrivals = ArrivalMap(plan.count)
        self._verification = ChunkVerification(plan)
        self._header: ChunkHeader | None = None
        self._asked = False
        self._newest = -1
        self._arrived_at = 0.0
        self._received_bytes = self._received_before = 0
        self._reported_bytes = 0
        self._report_due: float | None = None
        self._may_report_at = 0.0

    @property
    def finished(self) -> bool:
        """Whether the transfer is over, well or not."""
        return self.state in (ReceiverState.DELIVERED, ReceiverState.FAILED)

    @property
    def landed(self) -> tuple[int, int]:
        """See `ReceivingMachine.landed`; what goes behind all other chunks is none of it."""
        plan, tail = self.plan, self.settings.tail
        in_turn = plan.count - max(plan.trailer_count, tail.stop if tail else 0)
        if not (complete := min(self._arrivals.complete, in_turn)):
            return 0, 0
        return plan.chunk(plan.count - complete).offset, plan.total_bytes

    @property
    def held(self) -> Held:
        """What it could go on from in the same slot, on another data path."""
        there = [self._order.index(position) for position in self._arrivals]
        if self.settings.tagged:
            there = [index for index in there if self._verification.get(index) == TAGGED]
        return Held(ranges_of(self.plan.chunk(index) for index in there), self.settings.tagged)

    def adopt(self, held: Held) -> list[Action]:
        """This lies in the slot already, from another data path. To be called before anything comes."""
        if self.settings.tagged and not held.tagged:
            return []
        actions: list[Action] = []
        for chunk in chunks_within(self.plan, held.ranges):
            position = self._order.position(chunk.index)
            self._arrivals.add(position)
            self.placed_bytes += chunk.length
            # what it lets pass has not been lost
            self._furthest = max(self._furthest, position)
            if self.settings.tagged or self.plan.trailer_bytes:
                # where there is a table of tags, it has one of what is held, too
                self._verification.set(chunk.index, TAGGED)
            else:
                actions += self._verification.request(chunk)
        return actions

    def on_landed(self, offset: int, length: int, digest: int | None = None) -> list[Action]:
        """Another mode's hint; ignored."""
        del offset, length, digest
        return []

    def on_chunk(
        self,
        immediate: int,
        arrived_at: float,
        now: float,
        digest: int | None = None,
        place: tuple[int, int] | None = None,
        received_bytes: int | None = None,
    ) -> list[Action]:
        """A chunk has landed whole. Those of another tag or outside the plan are ignored: they are late or forged.

        A transport that has seen all bytes of the chunk pass by can say its digest, and where they were written: offset
        in the slot, and length. Where that is not the chunk's place, what lies in that place is none of the payload.
        And how many bytes have come by then, those of chunks that are not whole included.
        """
        tag, index = chunk_of_immediate(immediate)
        if self.finished or tag != self.settings.tag:
            return []
        if index >= self.plan.count:
            return self._on_repair(index - self.plan.count, now, received_bytes)
        chunk = self.plan.chunk(index)
        if place is not None and place != (self.layout.write_offset(chunk), chunk.length):
            return []
        position = self._order.position(index)
        if received_bytes is None:
            received_bytes = self._received_bytes - self._received_before + chunk.length
        self._note_received(received_bytes)
        if position > self._furthest:
            self.overtaken_bytes += (position - self._furthest - 1) * self.plan.chunk_bytes
            self._furthest = position
        self._newest, self._arrived_at = position, arrived_at
        actions: list[Action] = []
        is_new = self._arrivals.add(position)
        if is_new:
            self.placed_bytes += chunk.length
            self._note_new(now)
        else:
            self.landed_again += 1
        if digest is not None:
            # also of one that comes again, for its bytes are those that lie there now
            self._verification.set(index, digest)
        elif is_new:
            actions += self._verification.request(chunk)
        if self.settings.report_seconds is not None:
            if self._report_due is None:
                self._report_due = max(now, self._may_report_at)
            if self.settings.report_bytes and self._received_bytes - self._reported_bytes >= self.settings.report_bytes:
                self._report_due = min(now, self._report_due)
        # not before everything was counted that was found to have come just now: a report that names the moment of the
        # first, and forgets the others, makes what follows look fast
        return actions + (self._recover() if is_new else []) + self._when_full(now)

    def _when_full(self, now: float) -> list[Action]:
        return (self._report_when_due(now) if self._arrivals.full else []) + self._verify_when_complete()

    def _note_received(self, received_bytes: int) -> None:
        """So much has come by this path, all in all."""
        before = self._received_bytes
        self._received_bytes = max(before, self._received_before + received_bytes)
        self.arrived_bytes += self._received_bytes - before

    def _on_repair(self, number: int, now: float, received_bytes: int | None) -> list[Action]:
        if self._repairs is None or not self._repairs.on_repair(number):
            return []
        if received_bytes is None:
            self.arrived_bytes += self.plan.chunk_bytes
        else:
            self._note_received(received_bytes)
        self._last_new_at = now
        return self._recover() + self._when_full(now)

    def _note_new(self, now: float) -> None:
        self._last_new_at = now
        self._look_seconds = LOOK_SECONDS
        if self._first_new_at is None:
            self._first_new_at = now

    def _recover(self) -> list[Action]:
        """Find the lost chunks as soon as the repair chunks suffice."""
        if self._repairs is None:
            return []
        last = self.plan.count - 1
        first = self.plan.count - self._repairs.plan.covered
        # every chunk asks, and to list what is missing takes time
        if not self._repairs.may_suffice(self._arrivals.missing_count(first)):
            return []
        missing = self._arrivals.missing_from(first)
        actions = self._repairs.recover([last - position for position in missing])
        if actions is None:
            return []
        for position in missing:
            chunk = self._order.chunk(position)
            self._arrivals.add(position)
            self.placed_bytes += chunk.length
            actions += self._verification.request(chunk)
        return actions

    def on_announced(self, raw: bytes | memoryview) -> list[Action]:
        """The header's immediate came; `raw` are the HEADER_BYTES at the start of the slot."""
        if self.finished or not any(raw):
            return []
        try:
            header = decode_header(raw)
        except WireError as error:
            return [ClearHeader(self.layout.header_at), *self._ask_again(ErrorCode.HEADER_CORRUPT, error.message)]
        if header.transfer != self.transfer:
            reason = f"the header is of transfer {header.transfer}"
            return [ClearHeader(self.layout.header_at), *self._ask_again(ErrorCode.HEADER_CORRUPT, reason)]
        total, count = self.plan.total_bytes, self.plan.count
        if (header.kind, header.total_bytes, header.count) != (HeaderKind.PAYLOAD, total, count):
            return self._refuse(ErrorCode.UNEXPECTED_EVENT, "the header contradicts the offer")
        clear = ClearHeader(self.layout.header_at)
        if self._asked:
            # the same again by a datagram, while the sender is to say what it speaks for
            return [clear]
        self._header = header
        return [clear, *self._verify_when_complete()]

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest."""
        if self.finished:
            return []
        return [*self._verification.on_digest(index, value), *self._verify_when_complete()]

    def on_chunk_digests(self, told: bytes) -> list[Action]:
        """The sender's digests; unasked they are ignored."""
        if self.finished or not self._asked:
            return []
        self._asked = False
        damaged = damaged_chunks(told, [self._verification.get(index) for index in range(self.plan.count)])
        if damaged is None:
            reason = f"{len(told)} bytes of digests came, of {self.plan.count} chunks"
            return self._refuse(ErrorCode.UNEXPECTED_EVENT, reason)
        if not damaged:
            return self._ask_again(ErrorCode.DIGEST_MISMATCH, "the header's digest is not that of its chunks")
        return self._begin_epoch(damaged)

    @property
    def is_bounded(self) -> bool:
        """Whether something of it may be missing in the end."""
        return self.settings.bound is not None

    def let_miss(
        self,
        share: float,
        spend: SpendHoles = lambda _whole, _total, _ranges: True,
        *,
        is_late: bool = False,
    ) -> None:
        """How much of what may be missing the receiver's task lets be so, and what is asked before it is.

        The task may say so late. Of one that `is_late`, what is still to be sent is not waited for either.
        """
        self._loss_share = share
        self._spend_holes = spend
        self._is_late = is_late

    def on_digest_run(self, first: int, digests: bytes) -> None:
        """The sender tells digests of chunks that may be missing; unasked they are ignored."""
        if self._told is not None and not self.finished:
            self._told.on_run(first, digests)

    def on_tags_told(self, run: range) -> None:
        """The sender has told what opens these chunks."""
        self._told_tags.update(run)

    def restart(self, *, same_slot: bool = True) -> list[Action]:
        """The sender resumes on a new data path; what has arrived stays, and it is told of it.

        To be called when nothing can be written by the old path any more, before anything can by the new one.
        """
        if self.finished:
            return []
        self.state = ReceiverState.RECEIVING
        self._header = None
        self._asked = False
        # the next path counts from 0
        self._received_before = self._received_bytes
        if not same_slot:
            self._forget_arrivals()
        return [ClearHeader(self.layout.header_at), self._make_report(self._arrived_at)]

    def on_abort(self, code: ErrorCode, reason: str) -> list[Action]:
        """The sender gave up."""
        if self.finished:
            return []
        self.state = ReceiverState.FAILED
        return [Failed(code, reason)]

    def timer(self) -> float | None:
        """When to call `on_timer`."""
        if self.finished:
            return None
        times = [due for due in (self._report_due, self._look_due) if due is not None]
        return min(times, default=None)

    def on_timer(self, now: float) -> list[Action]:
        """Report when a report is due, and see whether what is missing may be."""
        if self.finished:
            return []
        actions = self._report_when_due(now)
        look_due = self._look_due
        if look_due is not None and now >= look_due:
            self._looked_at = now
            self._look_seconds = min(2 * self._look_seconds, MOST_LOOK_SECONDS)
            actions += self._deliver_with_holes(now)
        return actions

    @property
    def _look_due(self) -> float | None:
        """When everything was out once, for the header has come, and what was sent is there, or lost.

        Of one that is late at once, and again when something has come.
        """
        is_bounded = self.settings.bound is not None and (self._header is not None or self._is_late)
        if not is_bounded or self._first_new_at is None or self._arrivals.full:
            return None
        if self._is_late:
            return self._looked_at + self._look_seconds
        spacing = (self._last_new_at - self._first_new_at) * self.plan.chunk_bytes / max(1, self.placed_bytes)
        quiet = max(LEAST_QUIET_SECONDS, QUIET_SPACINGS * spacing)
        return max(self._last_new_at + quiet, self._looked_at + self._look_seconds)

    def _deliver_with_holes(self, now: float) -> list[Action]:
        bound = self.settings.bound
        missing_bytes = self.plan.total_bytes - self.placed_bytes
        if not self._is_late:
            missing_bytes += self.plan.trailer_bytes
        # to list what is missing, and to add up digests, takes time, and a peer chooses how often there is cause for it
        if bound is None or now < self._check_due or not bound.has_room_for(missing_bytes, self._loss_share):
            return []
        self._check_due = now + self._check_seconds
        self._check_seconds = min(2 * self._check_seconds, MOST_CHECK_SECONDS)
        missing = [self._order.index(position) for position in self._arrivals.missing_from(0)]
        holes = self._holes(missing)
        if holes is None and self._is_late:
            holes = self._holes_of_late(missing)
        if holes is None or not self._spend(holes):
            return []
        # the last loss is to count for the rate, too
        return [self._make_report(now), *self._deliver(holes)]

    def _holes(self, missing: list[int]) -> list[int] | None:
        """What is missing, and what came damaged, where all that may be; else None."""
        bound, told, header = self.settings.bound, self._told, self._header
        if bound is None or told is None or header is None or not bound.allows(missing, self._loss_share):
            return None
        if self.plan.trailer_bytes:
            # each chunk has a tag, which is looked at when it is opened
            return missing
        known = [self._verification.get(index) for index in range(self.plan.count)]
        damaged = told.damaged(set(missing), known, header.digest)
        if damaged is None or not bound.allows([*missing, *damaged], self._loss_share):
            return None
        return [*missing, *damaged]

    def _spend(self, holes: list[int]) -> bool:
        """Whether these may be missing besides what is of other messages; it is spent then."""
        bound = self.settings.bound
        return bound is not None and self._spend_holes(bound.whole_bytes, self.plan.total_bytes, bound.ranges(holes))

    def _holes_of_late(self, missing: list[int]) -> list[int] | None:
        """What is missing, and what is not known to be right without a header, where all that may be; else None."""
        bound = self.settings.bound
        if bound is None:
            return None
        gone, first = set(missing), self.plan.trailer_count
        lacks_table = any(index < first for index in gone)
        if self.plan.trailer_bytes and not lacks_table:
            # each chunk has a tag, which is looked at when it is opened
            return missing if bound.allows(missing, self._loss_share) else None
        unsure = [index for index in range(first, self.plan.count) if index not in gone and not self._is_sure(index)]
        holes = [index for index in (*missing, *unsure) if index >= first]
        if not bound.allows(holes, self._loss_share):
            return None
        self.lacks_table = lacks_table
        return holes

    def _is_sure(self, index: int) -> bool:
        """Whether what has come of a chunk is known to be right."""
        if self.plan.trailer_bytes:
            return index in self._told_tags
        digest = self._verification.get(index)
        if self.settings.tagged:
            return digest == TAGGED
        return self._told is not None and self._told.agrees(index, digest)

    def _deliver(self, holes: Iterable[int] = ()) -> list[Action]:
        self.state = ReceiverState.DELIVERED
        bound = self.settings.bound
        ranges = () if bound is None else bound.ranges(holes)
        return [Finished(ranges), SendFrame(Delivered(self.transfer))]

    def report(self, now: float) -> Report:
        """What has arrived, whenever that is asked."""
        return self._make_report(now).report

    def _report_when_due(self, now: float) -> list[Action]:
        due = self._report_due
        if due is None or (now < due and not self._arrivals.full):
            return []
        return [self._make_report(now)]

    def _make_report(self, now: float) -> SendReport:
        self._report_due = None
        self._reported_bytes = self._received_bytes
        self._may_report_at = now + (self.settings.report_seconds or 0.0)
        arrivals = self._arrivals
        report = Report(
            transfer=self.transfer,
            epoch=self.epoch,
            complete=arrivals.complete,
            beyond=arrivals.beyond,
            newest=self._newest,
            arrived_at=self._arrived_at,
            held=now - self._arrived_at,
            received_bytes=self._received_bytes,
        )
        return SendReport(report)

    def _verify_when_complete(self) -> list[Action]:
        header = self._header
        if header is None or not self._arrivals.full:
            return []
        self.state = ReceiverState.VERIFYING
        if not self._verification.complete:
            return []
        if payload_digest(self._verification.in_order()) == header.digest:
            return self._deliver()
        if (damaged := self._holes([])) and self._spend(damaged):
            # they may be missing
            return self._deliver(damaged)
        # one digest speaks for the whole payload, so the damaged chunk is not known
        if not (self.settings.asks_digests and can_tell(self.plan)):
            return self._begin_epoch(None)
        self.state = ReceiverState.RECEIVING
        self._header = None
        self._asked = True
        return [SendFrame(DigestRequest(self.transfer))]

    def _begin_epoch(self, damaged: list[int] | None) -> list[Action]:
        """These chunks, or (None) all of them, have to come again."""
        self.resends += 1
        if self.resends > self.settings.max_resends:
            return self._refuse(ErrorCode.DIGEST_MISMATCH, f"the payload came damaged {self.resends} times")
        self.state = ReceiverState.RECEIVING
        self.epoch += 1
        self._header = None
        if damaged is None:
            self._forget_arrivals()
            # which chunk is named says nothing: a million of them would not fit a frame
            return [SendFrame(ResendChunks(self.transfer, (0,)))]
        # whoever guesses what lay there before has one guess at each: after a wrong one it is gone
        wipes: list[Action] = [WipeChunk(self.plan.chunk(index)) for index in damaged]
        # a repair chunk may be what was damaged
        self._repairs = None
        self._arrivals.discard(self._order.position(index) for index in damaged)
        self._verification.invalidate(damaged)
        self.placed_bytes -= self.plan.bytes_of(set(damaged))
        return [*wipes, SendFrame(ResendChunks(self.transfer, tuple(damaged)))]

    def _forget_arrivals(self) -> None:
        # what comes anew comes without them, and one of them may be what was damaged
        self._repairs = None
        self._arrivals = ArrivalMap(self.plan.count)
        self._furthest = -1
        self._first_new_at = None
        self._check_due, self._check_seconds = -math.inf, LOOK_SECONDS
        if self._told is not None:
            self._told.forget()
        self._verification.invalidate(range(self.plan.count))
        self.placed_bytes = 0

    def _ask_again(self, code: ErrorCode, reason: str) -> list[Action]:
        """The header, without any chunk."""
        self.resends += 1
        if self.resends > self.settings.max_resends:
            return self._refuse(code, f"{reason}, {self.resends} times")
        return [SendFrame(ResendChunks(self.transfer, ()))]

    def _refuse(self, code: ErrorCode, reason: str) -> list[Action]:
        self.state = ReceiverState.FAILED
        return [SendFrame(Refused(self.transfer, code.value, reason)), Failed(code, reason)]
