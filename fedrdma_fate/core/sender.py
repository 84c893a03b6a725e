"""The sending half of a transfer: one state machine, three orders of sending.

* `fedrdma` (paper, section 3.1): first to last, header with every chunk, the next only after the chunk's ACK.
* `fedrdma-e` (section 3.2): last to first, one at a time, one header behind the first chunk.
* `grpc`: first to last, a window of chunks in flight, one header at the end.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import (
    Action,
    ChunkArrived,
    ComputeDigest,
    Failed,
    Finished,
    SendFrame,
    WriteChunk,
    WriteHeader,
)
from fedrdma_fate.core.damage import can_tell, pack_digests
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.held import Ranges, chunks_within, ranges_of
from fedrdma_fate.core.idle_time import IdleTime
from fedrdma_fate.core.plan import Chunk, ChunkPlan, SlotLayout, sending_order
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, ChunkDigests, Mode, Report
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind

GRPC_WINDOW = 16
"""Chunks of `grpc` in flight: enough to keep a stream busy, HTTP/2 does the rest."""

SLOWEST_BYTES_PER_SECOND = 1_000_000
"""A write shows no progress before it is whole, so the idle time-out grants its bytes the time of a link this slow."""


class SenderState(enum.Enum):
    """Where a sending transfer stands."""

    IDLE = "idle"
    SENDING = "sending"
    PAUSED = "paused"
    AWAITING_DELIVERY = "awaiting-delivery"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class SendSettings:
    """Parameters of a sender.

    Attributes:
        mode: transfer mode.
        idle_timeout: seconds without any progress after which the transfer fails, not counting the time that the
            writes in flight take at SLOWEST_BYTES_PER_SECOND.
        max_resends: how many requests to send again are met without a chunk arriving in between that had not arrived
            before; a receiver of ours refuses the transfer long before.
        tells_arrivals: whether to ask for ChunkArrived.
    """

    mode: Mode
    idle_timeout: float = 60.0
    max_resends: int = 16
    tells_arrivals: bool = False


class SenderBase:
    """What all senders do alike: how a transfer fails, and that it pauses.

    Attributes:
        transfer: its id.
        state: where the transfer stands.
    """

    def __init__(self, transfer: int) -> None:
        self.transfer = transfer
        self.state = SenderState.IDLE

    @property
    def waiting_since(self) -> float | None:
        """Since when chunks are under way, or lost, and none has arrived; None where the transport sees to them."""
        return None

    @property
    def finished(self) -> bool:
        """Whether the transfer is over, well or not."""
        return self.state in (SenderState.DELIVERED, SenderState.FAILED)

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
        self._forget_in_flight()

    def _forget_in_flight(self) -> None:
        """What was in flight is to be sent again, unless the peer has it after all."""
        raise NotImplementedError


class Sender(SenderBase):
    """Sends one payload into one granted slot. Every method returns the actions to carry out, in order.

    Times are in seconds of one clock.

    Attributes:
        plan: how the payload is cut.
        settings: parameters.
        layout: what lies where in the slot.
        resent_bytes: of chunks that were sent again.
        told_digests: the receiver was told those of its chunks.
    """

    def __init__(self, transfer: int, plan: ChunkPlan, settings: SendSettings, written_from: int = 0) -> None:
        """
        Args:
            transfer: id.
            plan: how the payload is cut.
            settings: parameters.
            written_from: the payload is still being written, from its end to its start, and lies there from here on.
        """
        super().__init__(transfer)
        self.plan = plan
        self.settings = settings
        self.layout = SlotLayout(plan, settings.mode)
        self.resent_bytes = 0
        self.told_digests = False
        self._digests: dict[int, int] = {}
        self._digesting: set[int] = set()
        self._written_from = written_from
        self._to_send: deque[int] = deque()
        self._in_flight: dict[int, int] = {}
        self._headers_in_flight: set[int] = set()
        self._arrived: set[int] = set()
        self._ever_arrived: set[int] = set()
        self._posted: set[int] = set()
        self._awaiting_digest: int | None = None
        self._fruitless_resends = 0
        self._next_work_request = 0
        self._last_progress = 0.0
        self._idle = IdleTime(settings.idle_timeout)

    @property
    def arrived_bytes(self) -> int:
        """Payload bytes known to lie in the receiver's slot."""
        return self.plan.bytes_of(self._arrived)

    @property
    def arrived_ranges(self) -> Ranges:
        """Which bytes of the payload those are."""
        return ranges_of(self.plan.chunk(index) for index in self._arrived if index >= self.plan.trailer_count)

    @property
    def in_flight_bytes(self) -> int:
        """Payload bytes written and not yet acknowledged."""
        return sum(self.plan.chunk(index).length for index in self._in_flight.values())

    def note_held(self, ranges: Ranges) -> None:
        """Before the start: these bytes lie in the slot, and are not sent."""
        self._arrived.update(chunk.index for chunk in chunks_within(self.plan, ranges))
        self._ever_arrived.update(self._arrived)

    def start(self, now: float) -> list[Action]:
        """Begin. The offer has been sent and the slot was granted. Does nothing once cancelled.

        Raises:
            RuntimeError: it had begun already.
        """
        if self.finished:
            return []
        self._expect(SenderState.IDLE)
        # the header speaks for what is not sent as well
        held = [action for index in sorted(self._arrived) for action in self._digest(self.plan.chunk(index))]
        return self._go_on((index for index in range(self.plan.count) if index not in self._arrived), now) + held

    def on_written(self, written_from: int, now: float) -> list[Action]:
        """The payload lies there from here on. Waiting for its owner is not waiting for the network."""
        self._written_from = min(self._written_from, written_from)
        if self.state is not SenderState.SENDING:
            return []
        self._last_progress = now
        return self._pump()

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest; one more than was asked for does no harm. It is not progress of the network."""
        if not 0 <= index < self.plan.count:
            return []
        self._digesting.discard(index)
        self._digests[index] = value
        if self.state is not SenderState.SENDING:
            return []
        if self._awaiting_digest == index:
            self._awaiting_digest = None
            return [self._chunk_header(self.plan.chunk(index)), *self._digest_ahead()]
        return self._finish_sending()

    def on_write_done(self, work_request: int, now: float) -> list[Action]:
        """A chunk or header write is complete at the receiver. A completion from before a pause is ignored."""
        if self.finished:
            return []
        if work_request in self._headers_in_flight:
            self._headers_in_flight.discard(work_request)
            self._last_progress = now
            return []
        if work_request not in self._in_flight:
            return []
        self._last_progress = now
        if self.settings.mode == "fedrdma":
            # it lies in the staging area, which is free for the next one only after the ACK
            return []
        return self._on_arrived(self._in_flight.pop(work_request))

    def on_chunk_ack(self, index: int, now: float) -> list[Action]:
        """`fedrdma`: the receiver has read the chunk out of the staging area. A stale ACK is ignored."""
        if self.finished or self.settings.mode != "fedrdma" or index not in self._in_flight.values():
            return []
        self._empty_staging()
        self._last_progress = now
        return self._on_arrived(index)

    def on_chunk_nack(self, immediate: int, missing_bytes: int) -> None:
        """Another mode's; ignored."""
        del immediate, missing_bytes

    def on_report(self, report: Report, now: float) -> list[Action]:
        """Another mode's; ignored."""
        del report, now
        return []

    def on_resend(self, chunks: Iterable[int], now: float) -> list[Action]:
        """The receiver found damage in these chunks, or (without any) in the header."""
        if self.finished or self.state is SenderState.IDLE:
            return []
        wanted = set(chunks)
        if any(not 0 <= index < self.plan.count for index in wanted):
            return self.cancel(
                ErrorCode.UNEXPECTED_EVENT, f"the receiver asked for chunks {min(wanted)} to {max(wanted)} again"
            )
        self._arrived -= wanted
        if self.state is SenderState.PAUSED:
            return []
        self._fruitless_resends += 1
        if self._fruitless_resends > self.settings.max_resends:
            return self.cancel(
                ErrorCode.UNEXPECTED_EVENT, f"asked to send again {self._fruitless_resends} times in a row"
            )
        if self.settings.mode == "fedrdma":
            # the receiver may not know which chunk it was that came damaged: it is the one in the staging area
            wanted.update(self._in_flight.values())
            self._empty_staging()
        self._in_flight = {request: index for request, index in self._in_flight.items() if index not in wanted}
        return self._go_on(wanted, now)

    def on_digest_request(self) -> list[Action]:
        """The receiver has all of it, and a wrong digest. Each counts as a request to send again: it is as much."""
        if self.finished or self.state is SenderState.IDLE or not can_tell(self.plan):
            return []
        if len(self._digests) < self.plan.count or self.settings.mode == "fedrdma":
            return []
        self._fruitless_resends += 1
        if self._fruitless_resends > self.settings.max_resends:
            return self.cancel(
                ErrorCode.UNEXPECTED_EVENT, f"asked to send again {self._fruitless_resends} times in a row"
            )
        self.told_digests = True
        digests = [self._digests[index] for index in range(self.plan.count)]
        return [SendFrame(ChunkDigests(self.transfer, pack_digests(digests)))]

    def on_delivered(self, now: float) -> list[Action]:
        """The receiver has the payload, whole. This may come before the completion of the last write."""
        if self.finished or self.state is SenderState.IDLE:
            return []
        self._last_progress = now
        self._arrived.update(range(self.plan.count))
        self.state = SenderState.DELIVERED
        return [Finished()]

    def resume(self, now: float, *, same_slot: bool) -> list[Action]:
        """The data path is back; send what had not arrived. With another slot, everything. Does nothing when finished.

        Raises:
            RuntimeError: it was not paused.
        """
        if self.finished:
            return []
        self._expect(SenderState.PAUSED)
        if not same_slot:
            self._arrived.clear()
            self._ever_arrived.clear()
        return self._go_on((index for index in range(self.plan.count) if index not in self._arrived), now)

    def timer(self) -> float | None:
        """When to call `on_timer`, or None.

        A paused transfer waits for its peer, which has a time-out of its own; one that has sent what there is, for the
        owner of the payload.
        """
        if self._to_send and not self._in_flight and not self._is_written(self._to_send[0]):
            return None
        if self.state in (SenderState.SENDING, SenderState.AWAITING_DELIVERY):
            return self._idle.due(self._last_progress, self.in_flight_bytes, SLOWEST_BYTES_PER_SECOND)
        return None

    @property
    def fails_at(self) -> float | None:
        """When it fails, as it looks now; None where it does not."""
        return self.timer()

    def on_moving(self, now: float) -> None:
        """Bytes move on its way, though none of its writes is whole."""
        self._idle.moved_at = now

    def on_timer(self, now: float) -> list[Action]:
        """Fail when nothing at all has moved for the idle time-out."""
        due = self.timer()
        if due is None or now < due:
            return []
        done = f"{self.arrived_bytes} of {self.plan.total_bytes} bytes"
        return self.cancel(ErrorCode.IDLE_TIMEOUT, f"no progress for {now - self._last_progress:g} s after {done}")

    def _forget_in_flight(self) -> None:
        self._in_flight.clear()
        self._headers_in_flight.clear()
        self._awaiting_digest = None
        # a driver that drops its work with the data path is asked again
        self._digesting.clear()

    def _expect(self, state: SenderState) -> None:
        if self.state is not state:
            raise RuntimeError(f"transfer {self.transfer} is {self.state.value}, not {state.value}")

    def _go_on(self, indices: Iterable[int], now: float) -> list[Action]:
        self.state = SenderState.SENDING
        self._last_progress = now
        self._to_send = deque(sending_order(self.plan, self.settings.mode, {*self._to_send, *indices}))
        return self._pump()

    def _on_arrived(self, index: int) -> list[Action]:
        self._arrived.add(index)
        if index not in self._ever_arrived:
            # the same one again and again is no progress, however often it is asked for
            self._ever_arrived.add(index)
            self._fruitless_resends = 0
        arrived: list[Action] = [ChunkArrived(self.plan.chunk(index))] if self.settings.tells_arrivals else []
        return arrived + self._pump()

    def _empty_staging(self) -> None:
        self._in_flight.clear()
        self._awaiting_digest = None

    @property
    def _window(self) -> int:
        return GRPC_WINDOW if self.settings.mode == "grpc" else 1

    def _pump(self) -> list[Action]:
        actions: list[Action] = []
        while self._to_send and len(self._in_flight) < self._window and self._is_written(self._to_send[0]):
            actions += self._post(self.plan.chunk(self._to_send.popleft()))
        return actions + self._finish_sending()

    def _is_written(self, index: int) -> bool:
        return self.plan.chunk(index).offset >= self._written_from

    def _post(self, chunk: Chunk) -> list[Action]:
        if chunk.index in self._posted:
            self.resent_bytes += chunk.length
        self._posted.add(chunk.index)
        write = WriteChunk(self._take_work_request(), chunk, self.layout.write_offset(chunk))
        self._in_flight[write.work_request] = chunk.index
        if self.settings.mode != "fedrdma":
            return [write, *self._digest(chunk)]
        if chunk.index in self._digests:
            return [write, self._chunk_header(chunk), *self._digest_ahead()]
        self._awaiting_digest = chunk.index
        return [write, *self._digest(chunk)]

    def _finish_sending(self) -> list[Action]:
        """Once every chunk is out: the payload header, and then the wait for delivery."""
        if self.state is not SenderState.SENDING or self._to_send:
            return []
        headed_by_chunk = self.settings.mode == "fedrdma" and self.plan.count > 0
        # fedrdma-e posts its header right behind chunk 1, on the same ordered path; the others wait for their chunks.
        if self._in_flight and self.settings.mode != "fedrdma-e":
            return []
        if len(self._digests) < self.plan.count:
            return []
        self.state = SenderState.AWAITING_DELIVERY
        return [] if headed_by_chunk else [self._payload_header()]

    def _digest(self, chunk: Chunk) -> list[Action]:
        if chunk.index in self._digests or chunk.index in self._digesting:
            return []
        self._digesting.add(chunk.index)
        return [ComputeDigest(chunk)]

    def _digest_ahead(self) -> list[Action]:
        """The next chunk's digest, computed while this one is on its way."""
        if not self._to_send or not self._is_written(self._to_send[0]):
            return []
        return self._digest(self.plan.chunk(self._to_send[0]))

    def _chunk_header(self, chunk: Chunk) -> WriteHeader:
        digest = self._digests[chunk.index]
        return self._header(HeaderKind.CHUNK, chunk.offset, chunk.length, digest, chunk.index)

    def _payload_header(self) -> WriteHeader:
        digest = payload_digest([self._digests[index] for index in range(self.plan.count)])
        return self._header(HeaderKind.PAYLOAD, 0, self.plan.total_bytes, digest, 0)

    def _header(self, kind: HeaderKind, offset: int, length: int, digest: int, index: int) -> WriteHeader:
        header = ChunkHeader(kind, self.transfer, self.plan.total_bytes, offset, length, digest, index, self.plan.count)
        work_request = self._take_work_request()
        self._headers_in_flight.add(work_request)
        return WriteHeader(work_request, header, self.layout.header_at)

    def _take_work_request(self) -> int:
        self._next_work_request += 1
        return self._next_work_request
