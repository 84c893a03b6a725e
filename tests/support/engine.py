"""What tests of the engine share: recorded events, and the two halves of a link over a wire in memory."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from typing import Any, TypeVar

from fedrdma_fate.core.plan import ChunkPlan, SlotLayout
from fedrdma_fate.engine.events import (
    FrameToSend,
    GrantRequested,
    LinkEvent,
    PathConnected,
    PathLost,
    PayloadReceived,
    PayloadSent,
    ReceiveFailed,
    RecordsRefused,
    SendFailed,
    SlotsReturned,
    SlotsStillOpen,
    TransferAnnounced,
    TransferKept,
    TransferStats,
)
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.sealing_ring import SEALING_RING_BYTES, SealingRing
from fedrdma_fate.engine.settings import LinkSettings
from fedrdma_fate.ports import Completion, Slot
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.datagram_tags import DatagramKeys
from fedrdma_fate.security.key_schedule import DirectionKeys, PathKeys
from fedrdma_fate.security.sealing import PathSealing, Seal
from fedrdma_fate.wire.datagrams import Datagram, decode_datagram
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ControlFrame, GrantRequest, MessageKey, Mode, Offer, Party
from tests.support.endpoints import HeapRegion, MemoryWire

FrameType = TypeVar("FrameType", bound=ControlFrame)

SETTINGS = LinkSettings(transport="memory", idle_timeout=60.0)
DATAGRAM_KEYS = DatagramKeys(send=bytes(range(32)), receive=bytes(range(32, 64)))
"""Of one side; the other has them reversed."""
KEY = MessageKey("s", "model", "0", Party("guest", "1"), Party("host", "2"))


@dataclasses.dataclass
class Recorded:
    """What a link tells its owner, kept for the test to look at."""

    frames: list[ControlFrame] = dataclasses.field(default_factory=list)
    returned: list[Slot] = dataclasses.field(default_factory=list)
    still_open: list[Slot] = dataclasses.field(default_factory=list)
    kept: list[KeptSlot] = dataclasses.field(default_factory=list)
    wanted: list[GrantRequest] = dataclasses.field(default_factory=list)
    wanted_early: list[GrantRequest] = dataclasses.field(default_factory=list)
    offers: list[Offer] = dataclasses.field(default_factory=list)
    received_offers: list[tuple[Offer, Slot, int]] = dataclasses.field(default_factory=list)
    receive_failures: list[tuple[Offer, ErrorCode, str]] = dataclasses.field(default_factory=list)
    sent_messages: list[tuple[Outgoing, TransferStats]] = dataclasses.field(default_factory=list)
    send_failures: list[tuple[Outgoing, ErrorCode, str]] = dataclasses.field(default_factory=list)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)
    paths: list[tuple[str, int, str]] = dataclasses.field(default_factory=list)
    happened: threading.Condition = dataclasses.field(default_factory=threading.Condition)

    def emit(self, event: LinkEvent) -> None:
        """Keep it."""
        with self.happened:
            self._keep(event)
            self.happened.notify_all()

    def _keep(self, event: LinkEvent) -> None:
        match event:
            case FrameToSend(frame):
                self.frames.append(frame)
            case PathConnected(attempt):
                self.paths.append(("up", attempt, ""))
            case PathLost(attempt, reason):
                self.paths.append(("lost", attempt, reason))
            case TransferAnnounced(offer):
                self.offers.append(offer)
            case GrantRequested(request, early):
                (self.wanted_early if early else self.wanted).append(request)
            case PayloadReceived(offer, slot, payload_at):
                self.received_offers.append((offer, slot, payload_at))
            case ReceiveFailed(offer, slot, code, reason):
                self.returned.append(slot)
                self.receive_failures.append((offer, code, reason))
            case SlotsReturned(slots):
                self.returned.extend(slots)
            case SlotsStillOpen(slots):
                self.still_open.extend(slots)
            case TransferKept(kept):
                self.kept.append(kept)
            case PayloadSent(outgoing, stats):
                self.sent_messages.append((outgoing, stats))
            case RecordsRefused(counts):
                self.refused.update(counts)
            case SendFailed(outgoing, code, reason):
                self.send_failures.append((outgoing, code, reason))

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


class StrictLink(Link):
    """A link that does not recover from a bug of ours: the test is to see it."""

    def fail(self) -> None:
        raise


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


def datagram_in(sealed: bytes) -> Datagram:
    """What a sealed datagram says, whoever it is from and however often it came."""
    return decode_datagram(sealed[8:-16])


class Pair:
    """A sender and a receiver without threads, joined by a wire; the test carries frames and lets time pass.

    Attributes:
        now: the time of both links, seconds.
        seal: what is done to chunks before they are posted, on the data paths to come.
        cipher: with which cipher.
        ring_bytes: of memory for it.
        ring: that memory.
        keys: of the sender, on the newest data path.
        connections: data paths so far.
        outgoing: what the sending link has under way, for tests that speak to it alone.
        incoming: the same of the receiving link.
    """

    def __init__(self, settings: LinkSettings = SETTINGS) -> None:
        self.now = 0.0
        self.seal: Seal = "off"
        self.cipher = AES
        self.ring_bytes = SEALING_RING_BYTES
        self.connections = 0
        self.sending = Recorded()
        self.receiving = Recorded()
        self.sender = Link("receiver", settings, self.sending.emit, self.time)
        self.receiver = Link("sender", settings, self.receiving.emit, self.time)
        self.outgoing = self.sender._outgoing
        self.incoming = self.receiver._incoming
        self.wire = MemoryWire()
        self._next_grant = 0

    def time(self) -> float:
        """The clock of both."""
        return self.now

    def connect(self, wire: MemoryWire | None = None) -> None:
        """A new data path."""
        self.wire = wire or MemoryWire()
        self.receiver._datagrams.path_up(self.wire.ends[1], DATAGRAM_KEYS.reversed)
        self.sender._datagrams.path_up(self.wire.ends[0], DATAGRAM_KEYS)
        self.connections += 1
        if self.seal == "off":
            self.incoming.path_up(self.wire.ends[1], self.now)
            self.outgoing.path_up(self.wire.ends[0], self.now)
            return
        self.wire.sealed_by_poster = True
        one_way, other_way = (
            DirectionKeys(b"d" * 32, bytes([number] * 32), b"a" * 32) for number in (self.connections, 200)
        )
        self.keys = PathKeys(one_way, other_way)
        sender = PathSealing.of_keys(self.keys, self.cipher, self.seal)
        self.opener = PathSealing.of_keys(self.keys.reversed, self.cipher, self.seal).opener
        self.ring = SealingRing(HeapRegion(self.ring_bytes))
        self.incoming.path_up(self.wire.ends[1], self.now, self.opener)
        self.outgoing.path_up(self.wire.ends[0], self.now, sender.sealer, self.ring)

    def lose_path(self) -> None:
        """Both notice that the data path is gone."""
        self.wire.break_down("the test cut it")
        for link in (self.sender, self.receiver):
            link._datagrams.path_lost()
        self.outgoing.path_lost()
        self.incoming.path_lost(self.now)

    @property
    def paths_lost(self) -> int:
        """Data paths that broke, of those that were not broken on purpose."""
        return int(bool(self.wire.broken))

    def progress(self, most: int = 1000) -> None:
        """Up to so many writes land, and are completed."""
        self.receiver._take_in(list(filter(self.lets_through, self.wire.ends[1].progress(most))))
        self.sender._take_in(list(filter(self.lets_through, self.wire.ends[0].progress())))
        for offer in self.receiving.offers:
            self.receiver.begin_early(offer)
        self.receiving.offers.clear()

    def lets_through(self, completion: Completion) -> bool:
        """Whether the data path does not lose this; for tests that lose something."""
        del completion
        return True

    def carry(self) -> int:
        """Carry the frames that wait, both ways; how many."""
        to_receiver, self.sending.frames = self.sending.frames, []
        to_sender, self.receiving.frames = self.receiving.frames, []
        for frame in to_receiver:
            self.receiver.frame(frame)
        for frame in to_sender:
            self.sender.frame(frame)
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
        self.receiver.grant(self._next_grant, slot, transfer)
        return self._next_grant
