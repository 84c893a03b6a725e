"""The receiving half of a transfer: finds out that data has come, that it is whole, and says so."""

from __future__ import annotations

import dataclasses
import enum

from fedrdma_fate.core.actions import Action, ClearHeader, ComputeDigest, CopyStaged, Failed, Finished, SendFrame
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.plan import Chunk, ChunkPlan, SlotLayout
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ChunkAck, Delivered, Mode, Refused, ResendChunks
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind


class ReceiverState(enum.Enum):
    """Where a receiving transfer stands."""

    RECEIVING = "receiving"
    VERIFYING = "verifying"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class ReceiveSettings:
    """Parameters of a receiver.

    Attributes:
        mode: transfer mode.
        max_resends: how often damage is answered with a request to send again.
    """

    mode: Mode
    max_resends: int = 3


class Receiver:
    """Receives one payload into one slot. Every method returns the actions to carry out, in order."""

    def __init__(self, transfer: int, plan: ChunkPlan, settings: ReceiveSettings) -> None:
        self.transfer = transfer
        self.plan = plan
        self.settings = settings
        self.layout = SlotLayout(plan, settings.mode)
        self.state = ReceiverState.RECEIVING
        self.resends = 0
        self._digests: dict[int, int] = {}
        self._placed: set[int] = set()
        self._staged: ChunkHeader | None = None
        self._header: ChunkHeader | None = None

    @property
    def finished(self) -> bool:
        return self.state in (ReceiverState.DELIVERED, ReceiverState.FAILED)

    @property
    def placed_bytes(self) -> int:
        """Payload bytes known to lie at their place."""
        return sum(self.plan.chunk(index).length for index in self._placed)

    def on_landed(self, offset: int, length: int) -> list[Action]:
        """A hint of transports that see writes arrive: check a chunk while it is warm. Never needed, never trusted."""
        if self.state is not ReceiverState.RECEIVING or self.settings.mode == "fedrdma":
            return []
        chunk = self._chunk_at(offset - self.layout.payload_at)
        if chunk is None or chunk.length != length:
            return []
        self._placed.add(chunk.index)
        return [ComputeDigest(chunk)]

    def on_header(self, header: ChunkHeader) -> list[Action]:
        """A header that parses was found at `layout.header_at`."""
        if self.finished:
            return []
        problem = self._contradiction(header)
        if problem:
            return self._refuse(ErrorCode.UNEXPECTED_EVENT, problem)
        clear = ClearHeader(self.layout.header_at)
        if header.kind is HeaderKind.CHUNK:
            return [clear, *self._on_chunk_header(header)]
        self._header = header
        self.state = ReceiverState.VERIFYING
        missing = [chunk for chunk in self.plan if chunk.index not in self._digests]
        if not missing:
            return [clear, *self._verify()]
        return [clear, *(ComputeDigest(chunk) for chunk in missing)]

    def on_bad_header(self, reason: str) -> list[Action]:
        """Something that is not a valid header was announced."""
        if self.finished:
            return []
        clear = ClearHeader(self.layout.header_at)
        if self.settings.mode == "fedrdma":
            return [clear, *self._resend(self._not_placed()[:1], reason)]
        return [clear, *self._resend([0] if self.plan.count else [], reason)]

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest: of the chunk at its final place."""
        if self.finished:
            return []
        staged = self._staged
        if staged is not None and staged.index == index:
            self._staged = None
            return self._on_staged_digest(staged, value)
        self._digests[index] = value
        if self.state is ReceiverState.VERIFYING and len(self._digests) == self.plan.count:
            return self._verify()
        return []

    def restart(self) -> None:
        """The sender starts over in this slot: forget what was seen of a half-done attempt."""
        if self.finished:
            return
        self.state = ReceiverState.RECEIVING
        self._header = None
        self._staged = None
        if self.settings.mode != "fedrdma":
            self._digests.clear()

    def on_abort(self, code: ErrorCode, reason: str) -> list[Action]:
        """The sender gave up."""
        if self.finished:
            return []
        self.state = ReceiverState.FAILED
        return [Failed(code, reason)]

    def _contradiction(self, header: ChunkHeader) -> str:
        expected = (self.transfer, self.plan.total_bytes, self.plan.count)
        found = (header.transfer, header.total_bytes, header.count)
        if found != expected:
            return f"header names (transfer, bytes, chunks) {found}, the offer {expected}"
        if header.kind is HeaderKind.PAYLOAD:
            return "" if header.length == self.plan.total_bytes else f"payload header of {header.length} bytes"
        if self.settings.mode != "fedrdma":
            return f"a chunk header in mode {self.settings.mode}"
        if not 0 <= header.index < self.plan.count:
            return f"header of chunk {header.index} of {self.plan.count}"
        chunk = self.plan.chunk(header.index)
        if (chunk.offset, chunk.length) != (header.offset, header.length):
            planned = f"{chunk.length} bytes at {chunk.offset}"
            return f"chunk {header.index} is {planned}, its header says {header.length} at {header.offset}"
        return ""

    def _on_chunk_header(self, header: ChunkHeader) -> list[Action]:
        if header.index in self._placed:
            # its ACK was lost with the link
            return [SendFrame(ChunkAck(self.transfer, header.index))]
        self._staged = header
        chunk = self.plan.chunk(header.index)
        copy = CopyStaged(self.layout.staged_chunk_at, self.layout.payload_at + chunk.offset, chunk.length)
        return [copy, ComputeDigest(chunk)]

    def _on_staged_digest(self, header: ChunkHeader, value: int) -> list[Action]:
        if value != header.digest:
            return self._resend([header.index], f"chunk {header.index} came with another digest")
        self._digests[header.index] = value
        self._placed.add(header.index)
        actions: list[Action] = [SendFrame(ChunkAck(self.transfer, header.index))]
        if len(self._placed) == self.plan.count:
            actions += self._deliver()
        return actions

    def _verify(self) -> list[Action]:
        header = self._header
        assert header is not None
        if payload_digest([self._digests[index] for index in range(self.plan.count)]) == header.digest:
            return self._deliver()
        # One digest speaks for the whole payload, so the damaged chunk is not known: all of them again.
        self._digests.clear()
        self._placed.clear()
        self._header = None
        self.state = ReceiverState.RECEIVING
        return self._resend(list(range(self.plan.count)), "the payload came with another digest")

    def _deliver(self) -> list[Action]:
        self.state = ReceiverState.DELIVERED
        self._placed.update(range(self.plan.count))
        return [Finished(), SendFrame(Delivered(self.transfer))]

    def _resend(self, chunks: list[int], reason: str) -> list[Action]:
        self.resends += 1
        if self.resends > self.settings.max_resends:
            return self._refuse(ErrorCode.DIGEST_MISMATCH, f"{reason}, {self.resends} times")
        for index in chunks:
            self._digests.pop(index, None)
            self._placed.discard(index)
        return [SendFrame(ResendChunks(self.transfer, tuple(chunks)))]

    def _refuse(self, code: ErrorCode, reason: str) -> list[Action]:
        self.state = ReceiverState.FAILED
        return [SendFrame(Refused(self.transfer, code.value, reason)), Failed(code, reason)]

    def _not_placed(self) -> list[int]:
        return [index for index in range(self.plan.count) if index not in self._placed]

    def _chunk_at(self, offset: int) -> Chunk | None:
        if not 0 <= offset < self.plan.total_bytes:
            return None
        body = self.plan.total_bytes - self.plan.enable_bytes
        if self.plan.enable_bytes and offset == body:
            return self.plan.chunk(self.plan.count - 1)
        return self.plan.chunk(offset // self.plan.chunk_bytes) if offset % self.plan.chunk_bytes == 0 else None
