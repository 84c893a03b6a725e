"""Both engines of one `fedrdma-x` transfer in one thread, in virtual time, over a device that costs nothing."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import Chunk, ChunkPlan, SlotLayout
from fedrdma_fate.engine.events import LinkSettings, Outgoing, Payload, TransferStats
from fedrdma_fate.engine.incoming import IncomingTransfers
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, RemoteSlot, Slot
from fedrdma_fate.wire.datagrams import Datagram, Header, decode_datagram
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import (
    ControlFrame,
    Delivered,
    Grant,
    GrantRequest,
    MessageKey,
    Offer,
    Party,
    Report,
)

RTT_SECONDS = 0.02
TURN_SECONDS = 0.0002
"""How often the link's thread looks: what the token bucket wants."""

_GRANT = 1
_TRANSFER = 1
_ANY_DIGEST = 1
_PATIENCE_TURNS = 1_000_000


class SparseRegion:
    """A region whose pages nobody touches, but those with headers: gigabytes cost nothing."""

    def __init__(self, length: int) -> None:
        self._map = mmap.mmap(-1, length)
        self.length = length
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.path = Path("/dev/null")
        self.fileno = -1


class FreeDevice:
    """An endpoint whose writes cost nothing and arrive half a round trip later."""

    transport = "verbs"

    def __init__(self, service: ChunkService, region: SparseRegion) -> None:
        self.chunk_service = service
        self.outbox: list[Completion] = []
        self.done: list[Completion] = []
        self._region = region

    def expose(self, grant: int, slot: Slot) -> RemoteSlot:
        """The slot's offset serves as its address."""
        return RemoteSlot(grant, slot.offset, slot.length)

    def withdraw(self, grant: int) -> None:
        """Nothing to do."""

    def post_write(self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int) -> None:
        """Not used by this mode."""
        raise NotImplementedError

    def post_bytes(
        self, work_request: int, data: bytes, target: RemoteSlot, target_offset: int, immediate: int
    ) -> None:
        """The header: the one thing that is really written."""
        at = target.address + target_offset
        self._region.view[at : at + len(data)] = data
        self.outbox.append(Completion(CompletionKind.IMMEDIATE, immediate=immediate))
        self.done.append(Completion(CompletionKind.WRITE_DONE, work_request))

    def post_chunk(
        self, work_request: int, source: Slot, target: RemoteSlot, target_offset: int, queue_pair: int, immediate: int
    ) -> None:
        """It arrives, with a digest that somebody else has computed."""
        del source, target, target_offset, queue_pair
        self.outbox.append(Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate, digest=_ANY_DIGEST))
        self.done.append(Completion(CompletionKind.WRITE_DONE, work_request))

    def post_datagram(self, data: bytes, copies: int = 1, padding: int = 0) -> bool:
        """It arrives."""
        del copies, padding
        self.outbox.append(Completion(CompletionKind.DATAGRAM, data=data))
        return True

    def poll_set(self) -> Sequence[tuple[int, int]]:
        """Nothing to wait for."""
        return []

    def progress(self) -> Sequence[Completion]:
        """Completions of our own writes."""
        done, self.done = self.done, []
        return done

    def close(self) -> None:
        """Nothing to do."""


class Frames:
    """What a link tells its owner, as far as it concerns one transfer."""

    def __init__(self) -> None:
        self.frames: list[ControlFrame] = []
        self.is_sent = False
        self.failure: tuple[ErrorCode, str] | None = None

    def frame(self, frame: ControlFrame) -> None:
        """For the other side."""
        self.frames.append(frame)

    def sent(self, outgoing: Outgoing, stats: TransferStats) -> None:
        """The sender knows that all is there."""
        del outgoing, stats
        self.is_sent = True

    def send_failed(self, outgoing: Outgoing, code: ErrorCode, reason: str) -> None:
        """It will not be."""
        del outgoing
        self.failure = code, reason

    def receive_failed(self, offer: Offer, slot: Slot, code: ErrorCode, reason: str) -> None:
        """Nor at the receiver."""
        del offer, slot
        self.failure = code, reason

    def received(self, offer: Offer, slot: Slot, payload_at: int, stats: TransferStats) -> None:
        """Nothing to do."""

    def slots_returned(self, slots: Sequence[Slot]) -> None:
        """Nothing to do."""

    def offered(self, offer: Offer) -> None:
        """The frame is enough."""

    def grant_wanted(self, request: GrantRequest) -> None:
        """There is one already."""

    def path_up(self, attempt: int) -> None:
        """Nothing to do."""

    def path_lost(self, attempt: int, reason: str) -> None:
        """Nothing to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkCost:
    """Processor seconds for one chunk: of the sender's link thread, and of the receiver's."""

    send_seconds: float
    receive_seconds: float


class Loopback:
    """One transfer of `count` chunks over a path of known rate."""

    def __init__(self, chunk_bytes: int, count: int, rate: float) -> None:
        """
        Args:
            chunk_bytes: size of a chunk.
            count: how many.
            rate: of the path, bytes a second.
        """
        plan = ChunkPlan(chunk_bytes * count, chunk_bytes)
        service = ChunkService(reliable=False, self_paced=False, queue_pairs=4)
        region = SparseRegion(SlotLayout(plan, "fedrdma-x").slot_bytes)
        self._count = count
        self._region = region
        self._sender, self._receiver = FreeDevice(service, region), FreeDevice(service, region)
        self._at_sender, self._at_receiver = Frames(), Frames()
        settings = LinkSettings("verbs")
        self._out = OutgoingTransfers(settings, self._at_sender)
        self._in = IncomingTransfers(settings, self._at_receiver)
        self._out.memory.learn(PathState(rate, RTT_SECONDS, 0.0), "measured")
        self._under_way: deque[tuple[float, bool, Completion | ControlFrame]] = deque()
        self._outgoing = _outgoing(plan, region)

    def run(self) -> ChunkCost:
        """Send it; what a chunk cost each side.

        Raises:
            FedRDMAError: the transfer failed.
        """
        now, send_seconds, receive_seconds = 0.0, 0.0, 0.0
        self._out.path_up(self._sender, now)
        self._in.path_up(self._receiver, now)
        self._in.grant(_GRANT, Slot(self._region, 0, self._region.length), _TRANSFER)
        self._out.submit(self._outgoing, now)
        for _ in range(_PATIENCE_TURNS):
            self._exchange(now)
            arrived = self._arrived(now)
            began = time.thread_time()
            self._turn_of_sender([what for at_sender, what in arrived if at_sender], now)
            between = time.thread_time()
            self._turn_of_receiver([what for at_sender, what in arrived if not at_sender], now)
            send_seconds += between - began
            receive_seconds += time.thread_time() - between
            self._check()
            if self._at_sender.is_sent:
                return ChunkCost(send_seconds / self._count, receive_seconds / self._count)
            now += TURN_SECONDS
        raise FedRDMAError(ErrorCode.UNEXPECTED_EVENT, "the transfer does not end.")

    def _turn_of_sender(self, arrived: Sequence[Completion | ControlFrame], now: float) -> None:
        for completion in self._sender.progress():
            self._out.on_write_done(completion.work_request, now)
        for what in arrived:
            match _decoded(what):
                case Grant() as grant:
                    self._out.on_grant(grant, now)
                case Report() as report:
                    self._out.on_report(report, now)
                case Delivered(transfer=transfer):
                    self._out.on_delivered(transfer, now)
        due = self._out.timer()
        if due is not None and now >= due:
            self._out.on_timer(now)

    def _turn_of_receiver(self, arrived: Sequence[Completion | ControlFrame], now: float) -> None:
        for what in arrived:
            match what:
                case Completion(kind=CompletionKind.CHUNK_IMMEDIATE):
                    self._in.on_chunk(what, now)
                case Completion(kind=CompletionKind.IMMEDIATE, immediate=immediate):
                    self._in.on_immediate(immediate, now)
                case Completion(kind=CompletionKind.DATAGRAM):
                    if isinstance(header := decode_datagram(what.data), Header):
                        self._in.on_header(header, now)
                case Offer():
                    self._in.on_offer(what, now)
        self._in.on_timer(now)

    def _exchange(self, now: float) -> None:
        """What either side has said or written sets out."""
        due = now + RTT_SECONDS / 2
        for events, device, to_sender in (
            (self._at_sender, self._sender, False),
            (self._at_receiver, self._receiver, True),
        ):
            self._under_way.extend((due, to_sender, what) for what in (*events.frames, *device.outbox))
            events.frames.clear()
            device.outbox.clear()

    def _arrived(self, now: float) -> list[tuple[bool, Completion | ControlFrame]]:
        arrived = []
        while self._under_way and self._under_way[0][0] <= now:
            _, to_sender, what = self._under_way.popleft()
            arrived.append((to_sender, what))
        return arrived

    def _check(self) -> None:
        failure = self._at_sender.failure or self._at_receiver.failure
        if failure is not None:
            raise FedRDMAError(*failure)


def _decoded(what: Completion | ControlFrame) -> Datagram | ControlFrame:
    return decode_datagram(what.data) if isinstance(what, Completion) else what


class _DigestedPayload(Payload):
    """One whose digests are known, as after a put."""

    def digest(self, chunk: Chunk) -> int:
        """The same for every chunk, as the device says it."""
        del chunk
        return _ANY_DIGEST


def _outgoing(plan: ChunkPlan, region: SparseRegion) -> Outgoing:
    payload = _DigestedPayload(Slot(region, 0, region.length), plan.total_bytes)
    key = MessageKey("bench", "payload", "t", Party("guest", "1"), Party("host", "2"))
    return Outgoing(_TRANSFER, key, "object", payload, plan, "fedrdma-x")
