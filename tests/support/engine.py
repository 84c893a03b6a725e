"""What tests of the engine share: recorded events, and the two halves of a link over a wire in memory."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.engine.events import LinkSettings, Outgoing, Payload, TransferStats
from fedrdma_fate.engine.incoming import IncomingTransfers
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.ports import Completion, CompletionKind, Slot
from fedrdma_fate.wire.datagrams import Datagram, Header, decode_datagram
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import (
    Abort,
    ChunkAck,
    ControlFrame,
    Delivered,
    Grant,
    GrantRecall,
    GrantRequest,
    GrantReturn,
    MessageKey,
    Mode,
    Offer,
    Party,
    Reconcile,
    Refused,
    Report,
    ResendChunks,
    Restart,
)
from tests.support.endpoints import HeapRegion, MemoryWire

FrameType = TypeVar("FrameType", bound=ControlFrame)

SETTINGS = LinkSettings(transport="memory", idle_timeout=60.0)
KEY = MessageKey("s", "model", "0", Party("guest", "1"), Party("host", "2"))


@dataclasses.dataclass
class Recorded:
    """LinkEvents that are kept for the test to look at."""

    frames: list[ControlFrame] = dataclasses.field(default_factory=list)
    returned: list[Slot] = dataclasses.field(default_factory=list)
    wanted: list[GrantRequest] = dataclasses.field(default_factory=list)
    offers: list[Offer] = dataclasses.field(default_factory=list)
    received_offers: list[tuple[Offer, Slot, int]] = dataclasses.field(default_factory=list)
    receive_failures: list[tuple[Offer, ErrorCode, str]] = dataclasses.field(default_factory=list)
    sent_messages: list[tuple[Outgoing, TransferStats]] = dataclasses.field(default_factory=list)
    send_failures: list[tuple[Outgoing, ErrorCode, str]] = dataclasses.field(default_factory=list)
    paths: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    happened: threading.Condition = dataclasses.field(default_factory=threading.Condition)

    def frame(self, frame: ControlFrame) -> None:
        self._note(self.frames, frame)

    def path_up(self, attempt: int) -> None:
        self._note(self.paths, ("up", attempt, ""))

    def path_lost(self, attempt: int, reason: str) -> None:
        self._note(self.paths, ("lost", attempt, reason))

    def offered(self, offer: Offer) -> None:
        self._note(self.offers, offer)

    def grant_wanted(self, request: GrantRequest) -> None:
        self._note(self.wanted, request)

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None:
        del stats
        self._note(self.received_offers, (offer, slot, payload_at))

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None:
        self.returned.append(slot)
        self._note(self.receive_failures, (offer, code, reason))

    def slots_returned(self, slots: Sequence[Slot]) -> None:
        with self.happened:
            self.returned.extend(slots)
            self.happened.notify_all()

    def sent(self, outgoing: Outgoing, stats: TransferStats) -> None:
        self._note(self.sent_messages, (outgoing, stats))

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None:
        self._note(self.send_failures, (outgoing, code, reason))

    def take(self, kind: type[FrameType]) -> list[FrameType]:
        """The frames of a kind, which are then forgotten."""
        found = [frame for frame in self.frames if isinstance(frame, kind)]
        self.frames = [frame for frame in self.frames if not isinstance(frame, kind)]
        return found

    def wait_for(self, events: list[Any], count: int = 1) -> None:
        """Wait until a list holds so many entries.

        Raises:
            AssertionError: it does not within ten seconds.
        """
        with self.happened:
            assert self.happened.wait_for(lambda: len(events) >= count, 10), f"{count} expected, {events} came"

    def _note(self, events: list[Any], event: object) -> None:
        with self.happened:
            events.append(event)
            self.happened.notify_all()


def outgoing(
    body: bytes, transfer: int = 1, mode: Mode = "fedrdma-e", chunk_bytes: int = 1000, key: MessageKey = KEY
) -> Outgoing:
    """A message in a slot of its own."""
    region = HeapRegion(max(len(body), 1))
    region.view[: len(body)] = body
    payload = Payload(region.slot(0, len(body)), len(body))
    return Outgoing(transfer, key, "bytes", payload, ChunkPlan(len(body), chunk_bytes), mode)


def slot_for(message: Outgoing) -> Slot:
    """A receive slot that holds it."""
    return HeapRegion(SlotLayout(message.plan, message.mode).slot_bytes).slot()


class Pair:
    """A sender and a receiver without threads, joined by a wire; the test carries frames and lets time pass."""

    def __init__(self, settings: LinkSettings = SETTINGS) -> None:
        self.sending = Recorded()
        self.receiving = Recorded()
        self.outgoing = OutgoingTransfers(settings, self.sending)
        self.incoming = IncomingTransfers(settings, self.receiving)
        self.wire = MemoryWire()
        self.now = 0.0
        self._next_grant = 0

    def connect(self, wire: MemoryWire | None = None) -> None:
        """A new data path."""
        self.wire = wire or MemoryWire()
        self.incoming.path_up(self.wire.ends[1], self.now)
        self.outgoing.path_up(self.wire.ends[0], self.now)

    def lose_path(self) -> None:
        """Both notice that the data path is gone."""
        self.wire.break_down("the test cut it")
        self.outgoing.path_lost()
        self.incoming.path_lost(self.now)

    def progress(self, most: int = 1000) -> None:
        """Up to so many writes land, and are completed."""
        for completion in self.wire.ends[1].progress(most):
            self._on_completion(completion)
        for completion in self.wire.ends[0].progress():
            self._on_completion(completion)
        for offer in self.receiving.offers:
            self.incoming.on_early_offer(offer, self.now)
        self.receiving.offers.clear()

    def carry(self) -> int:
        """Carry the frames that wait, both ways; how many."""
        to_receiver, self.sending.frames = self.sending.frames, []
        to_sender, self.receiving.frames = self.receiving.frames, []
        for frame in to_receiver:
            self._to_receiver(frame)
        for frame in to_sender:
            self._to_sender(frame)
        return len(to_receiver) + len(to_sender)

    def run(self) -> None:
        """Until nothing more happens; whoever asks for a slot gets one."""
        busy = True
        while busy:
            for request in self.receiving.wanted:
                self.grant(HeapRegion(request.slot_bytes).slot(), request.transfer)
            self.receiving.wanted.clear()
            self.progress()
            busy = self.carry() > 0 or any(end.arriving for end in self.wire.ends) or bool(self.receiving.wanted)

    def let_time_pass(self, seconds: float) -> None:
        """From one due moment to the next, until none is due before so many seconds have passed."""
        ends_at = self.now + seconds
        while True:
            self.run()
            due = [timer for timer in (self.outgoing.timer(), self.incoming.timer()) if timer is not None]
            if not due or min(due) > ends_at:
                return
            self.now = max(self.now, min(due))
            self.outgoing.on_timer(self.now)
            self.incoming.on_timer(self.now)

    def grant(self, slot: Slot, transfer: int = 0) -> int:
        """Grant a slot; its id."""
        self._next_grant += 1
        self.incoming.grant(self._next_grant, slot, transfer)
        return self._next_grant

    def _on_completion(self, completion: Completion) -> None:
        match completion.kind:
            case CompletionKind.WRITE_DONE:
                self.outgoing.on_write_done(completion.work_request, self.now)
            case CompletionKind.IMMEDIATE:
                self.incoming.on_immediate(completion.immediate, self.now)
            case CompletionKind.LANDED:
                self.incoming.on_landed(completion, self.now)
            case CompletionKind.CHUNK_IMMEDIATE:
                self.incoming.on_chunk(completion, self.now)
            case CompletionKind.DATAGRAM:
                self._on_datagram(decode_datagram(completion.data))

    def _on_datagram(self, datagram: Datagram) -> None:
        match datagram:
            case Offer():
                self.receiving.offered(datagram)
            case Grant():
                self.outgoing.on_early_grant(datagram, self.now)
            case Header():
                self.incoming.on_header(datagram, self.now)
            case Report() | Delivered():
                self._to_sender(datagram)

    def _to_receiver(self, frame: ControlFrame) -> None:
        match frame:
            case GrantRequest():
                self.receiving.wanted.append(frame)
            case GrantReturn(grant=grant):
                self.incoming.on_return(grant)
            case Offer():
                self.incoming.on_offer(frame, self.now)
            case Reconcile(transfers=transfers):
                self.incoming.on_reconcile(transfers)
            case Abort(transfer=transfer, code=code, reason=reason):
                self.incoming.on_abort(transfer, ErrorCode(code), reason, self.now)

    def _to_sender(self, frame: ControlFrame) -> None:
        match frame:
            case Grant():
                self.outgoing.on_grant(frame, self.now)
            case GrantRecall(grant=grant):
                self.outgoing.on_recall(grant)
            case Restart(transfer=transfer):
                self.outgoing.on_restart(transfer, self.now)
            case ChunkAck(transfer=transfer, index=index):
                self.outgoing.on_chunk_ack(transfer, index, self.now)
            case Report():
                self.outgoing.on_report(frame, self.now)
            case ResendChunks(transfer=transfer, chunks=chunks):
                self.outgoing.on_resend(transfer, chunks, self.now)
            case Delivered(transfer=transfer):
                self.outgoing.on_delivered(transfer, self.now)
            case Refused(transfer=transfer, code=code, reason=reason):
                self.outgoing.on_refused(transfer, ErrorCode(code), reason, self.now)
