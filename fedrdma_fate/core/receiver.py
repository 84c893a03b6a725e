"""The receiving half of a transfer: finds out that data has come, that it is whole, and says so."""

from __future__ import annotations

import dataclasses
import enum

from fedrdma_fate.core.actions import Action, ClearHeader, CopyStaged, Failed, Finished, SendFrame, WipeChunk
from fedrdma_fate.core.damage import can_tell, damaged_chunks
from fedrdma_fate.core.digest import MISTAGGED, TAGGED, payload_digest
from fedrdma_fate.core.held import Held, chunks_within, ranges_of
from fedrdma_fate.core.plan import ChunkPlan, SlotLayout, sending_order
from fedrdma_fate.core.verification import ChunkVerification
from fedrdma_fate.core.x.bounded_loss import SpendHoles
from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.frames import ChunkAck, Delivered, DigestRequest, Mode, Refused, ResendChunks
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind, decode_header


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
        max_resends: how often in a row damage is answered with a request to send again; a chunk that `fedrdma` has
            taken in begins a new row.
        tagged: every write is seen to land, and a tag vouches for it. What was not is then not looked at: whether it
            has the digest that the peer says would tell the peer what lay there before, perhaps another's.
        asks_digests: the sender tells the digests of its chunks when it is asked.
    """

    mode: Mode
    max_resends: int = 3
    tagged: bool = False
    asks_digests: bool = False


class Receiver:
    """Receives one payload into one slot (paper, sections 3.1 and 3.2). Every method returns the actions to carry out.

    Attributes:
        transfer: its id.
        plan: how the payload is cut.
        settings: parameters.
        layout: what lies where in the slot.
        state: where the transfer stands.
        resends: how often in a row damage was answered with a request to send again.
        landed_again: see `ReceivingMachine.landed_again`.
    """

    def __init__(self, transfer: int, plan: ChunkPlan, settings: ReceiveSettings) -> None:
        self.transfer = transfer
        self.plan = plan
        self.settings = settings
        self.layout = SlotLayout(plan, settings.mode)
        self.state = ReceiverState.RECEIVING
        self.resends = 0
        self._verification = ChunkVerification(plan)
        self._placed: set[int] = set()
        self._landed = 0
        self.landed_again = 0
        self._staged: dict[int, ChunkHeader] = {}
        self._staging_bytes = 0
        self._header: ChunkHeader | None = None
        self._asked = False

    @property
    def finished(self) -> bool:
        """Whether the transfer is over, well or not."""
        return self.state in (ReceiverState.DELIVERED, ReceiverState.FAILED)

    @property
    def placed_bytes(self) -> int:
        """Payload bytes known to lie at their place."""
        return self.plan.bytes_of(self._placed)

    @property
    def landed(self) -> tuple[int, int]:
        """See `ReceivingMachine.landed`."""
        plan, placed = self.plan, self._placed
        while self._landed < plan.count - plan.trailer_count and self._in_turn(self._landed) in placed:
            self._landed += 1
        if not self._landed:
            return 0, 0
        newest = plan.chunk(self._in_turn(self._landed - 1))
        return (newest.offset, plan.total_bytes) if self._is_backwards else (0, newest.offset + newest.length)

    @property
    def _is_backwards(self) -> bool:
        return self.settings.mode == "fedrdma-e"

    def _in_turn(self, position: int) -> int:
        """The chunk of this position, of all from the last to the first where they come so."""
        return self.plan.count - 1 - position if self._is_backwards else self.plan.trailer_count + position

    @property
    def held(self) -> Held:
        """What it could go on from in the same slot, on another data path.

        Where no tag vouches for it, only a hint: the digests will show it.
        """
        if self.settings.tagged and self.settings.mode != "fedrdma":
            return Held(ranges_of(self.plan.chunk(index) for index in self._verification.tagged()), True)
        return Held(ranges_of(self.plan.chunk(index) for index in self._placed))

    def adopt(self, held: Held) -> list[Action]:
        """This lies in the slot already, from another data path. To be called before anything comes."""
        if self.settings.tagged and not held.tagged and self.settings.mode != "fedrdma":
            return []
        # where there is a table of tags, it has one of what is held, too
        has_tags = self.settings.tagged or self.plan.trailer_bytes > 0
        for chunk in chunks_within(self.plan, held.ranges):
            self._placed.add(chunk.index)
            if has_tags and self.settings.mode != "fedrdma":
                self._verification.set(chunk.index, TAGGED)
        return []

    def on_landed(self, offset: int, length: int, digest: int | None = None) -> list[Action]:
        """A hint of transports that see each write land: check a chunk while it is warm. Never needed.

        A transport that gives hints gives them for every chunk, also for one that is written over. One that has seen
        all bytes of the chunk pass by can say its digest.
        """
        if self.settings.mode == "fedrdma" and offset == self.layout.staged_chunk_at:
            self._staging_bytes = 0 if digest == MISTAGGED else length
        if self.finished or self.settings.mode == "fedrdma":
            return []
        chunk = self.plan.chunk_at(offset - self.layout.payload_at)
        if chunk is None or chunk.length != length:
            return []
        self.landed_again += chunk.index in self._placed
        self._placed.add(chunk.index)
        self._verification.invalidate([chunk.index])
        if digest is None:
            return self._verification.request(chunk)
        self._verification.set(chunk.index, digest)
        return self._verify_when_complete()

    def on_chunk(
        self,
        immediate: int,
        arrived_at: float,
        now: float,
        digest: int | None = None,
        place: tuple[int, int] | None = None,
        received_bytes: int | None = None,
    ) -> list[Action]:
        """Another mode's; ignored."""
        del immediate, arrived_at, now, digest, place, received_bytes
        return []

    def on_announced(self, raw: bytes | memoryview) -> list[Action]:
        """An immediate came: `raw` are the HEADER_BYTES at `layout.header_at`.

        Zeros mean that an earlier announcement has shown this header already, and it was read and cleared.
        """
        if not any(raw):
            return []
        try:
            header = decode_header(raw)
        except WireError as error:
            return self.on_bad_header(error.message)
        return self.on_header(header)

    def on_header(self, header: ChunkHeader) -> list[Action]:
        """A header that parses was found at `layout.header_at`."""
        if self.finished:
            return []
        if header.transfer != self.transfer:
            # left in the slot by an earlier transfer, perhaps over ours
            return self.on_bad_header(f"the header is of transfer {header.transfer}")
        problem = self._contradiction(header)
        if problem:
            return self._refuse(ErrorCode.UNEXPECTED_EVENT, problem)
        clear = ClearHeader(self.layout.header_at)
        if header.kind is HeaderKind.CHUNK:
            return [clear, *self._on_chunk_header(header)]
        if self._asked:
            # another, while the sender is to say what the first spoke for
            return [clear]
        if unseen := self._unseen():
            return [clear, *self._resend(unseen, ErrorCode.DIGEST_MISMATCH, "the payload came with chunks left out")]
        self._header = header
        self.state = ReceiverState.VERIFYING
        questions = [question for chunk in self.plan for question in self._verification.request(chunk)]
        return [clear, *questions, *self._verify_when_complete()]

    def on_bad_header(self, reason: str) -> list[Action]:
        """Something that is not a valid header was announced."""
        if self.finished:
            return []
        clear = ClearHeader(self.layout.header_at)
        if self.state is ReceiverState.VERIFYING or self._staged:
            # a good one came before it, and is being looked into
            return [clear]
        missing = self._not_placed()[:1] if self.settings.mode == "fedrdma" else []
        return [clear, *self._resend(missing, ErrorCode.HEADER_CORRUPT, reason)]

    def on_digest(self, index: int, value: int) -> list[Action]:
        """The answer to ComputeDigest: of the chunk at its final place."""
        if self.finished:
            return []
        asked_again = self._verification.on_digest(index, value)
        known = self._verification.get(index)
        if asked_again or known is None:
            return asked_again
        staged = self._staged.pop(index, None)
        if staged is not None:
            return self._on_staged_digest(staged, known)
        return self._verify_when_complete()

    def on_chunk_digests(self, told: bytes) -> list[Action]:
        """The sender's digests; unasked they are ignored."""
        if self.finished or not self._asked:
            return []
        self._asked = False
        damaged = damaged_chunks(told, [self._verification.get(index) for index in range(self.plan.count)])
        if damaged is None:
            reason = f"{len(told)} bytes of digests came, of {self.plan.count} chunks"
            return self._refuse(ErrorCode.UNEXPECTED_EVENT, reason)
        # whoever guesses what lay there before has one guess at each: after a wrong one it is gone
        wipes: list[Action] = [WipeChunk(self.plan.chunk(index)) for index in damaged]
        return wipes + self._resend(damaged, ErrorCode.DIGEST_MISMATCH, "the payload came with another digest")

    @property
    def is_bounded(self) -> bool:
        """Nothing may be missing."""
        return False

    def let_miss(self, share: float, spend: SpendHoles, *, is_late: bool = False) -> None:
        """Of no use here."""

    def on_digest_run(self, first: int, digests: bytes) -> None:
        """Another mode's; ignored."""

    def restart(self, *, same_slot: bool = True) -> list[Action]:
        """The sender resumes on a new data path: forget what was seen of a half-done attempt.

        To be called when nothing can be written by the old path any more, before anything can by the new one.
        """
        if self.finished:
            return []
        self.state = ReceiverState.RECEIVING
        self._header = None
        self._asked = False
        # a chunk that fedrdma has taken in is not written again, and stays, unless it stayed behind in another slot
        kept: set[int] = set()
        if same_slot:
            # nor is one written over in part whose bytes are only placed when a tag has vouched for them
            kept = self._placed if self.settings.mode == "fedrdma" else self._verification.tagged()
        self._verification.invalidate(index for index in range(self.plan.count) if index not in kept)
        self._staged.clear()
        self._staging_bytes = 0
        if not same_slot:
            self._placed.clear()
        return [ClearHeader(self.layout.header_at)]

    def timer(self) -> float | None:
        """When to call `on_timer`: never, a receiver only answers."""
        return None

    def on_timer(self, now: float) -> list[Action]:
        """Nothing is ever due."""
        del now
        return []

    def on_abort(self, code: ErrorCode, reason: str) -> list[Action]:
        """The sender gave up."""
        if self.finished:
            return []
        self.state = ReceiverState.FAILED
        return [Failed(code, reason)]

    def cancel(self, code: ErrorCode, reason: str) -> list[Action]:
        """Give up, and tell the sender."""
        return [] if self.finished else self._refuse(code, reason)

    def _contradiction(self, header: ChunkHeader) -> str:
        """What in a header contradicts the offer, or an empty string."""
        mode, plan = self.settings.mode, self.plan
        if (header.total_bytes, header.count) != (plan.total_bytes, plan.count):
            found = f"{header.total_bytes} bytes in {header.count} chunks"
            return f"the header says {found}, the offer {plan.total_bytes} in {plan.count}"
        by_chunk = mode == "fedrdma" and plan.count > 0
        if by_chunk != (header.kind is HeaderKind.CHUNK):
            return f"a {header.kind.name.lower()} header in mode {mode}"
        if header.index >= (plan.count if by_chunk else 1):
            return f"a {header.kind.name.lower()} header with index {header.index}, of {plan.count} chunks"
        offset, length = 0, plan.total_bytes
        if by_chunk:
            chunk = plan.chunk(header.index)
            offset, length = chunk.offset, chunk.length
        if (header.offset, header.length) != (offset, length):
            return f"the header says {header.length} bytes at {header.offset}, the plan {length} at {offset}"
        if self._header is not None and header != self._header:
            return "a second header that contradicts the first"
        return ""

    def _on_chunk_header(self, header: ChunkHeader) -> list[Action]:
        if header.index in self._staged:
            # sent again while it is being checked: the answer is on its way
            return []
        if header.index in self._placed:
            # its ACK was lost with the link
            return [SendFrame(ChunkAck(self.transfer, header.index))]
        chunk = self.plan.chunk(header.index)
        staged_bytes, self._staging_bytes = self._staging_bytes, 0
        if self.settings.tagged and staged_bytes != chunk.length:
            return self._resend([header.index], ErrorCode.DIGEST_MISMATCH, f"chunk {header.index} did not come")
        self._staged[header.index] = header
        copy = CopyStaged(self.layout.staged_chunk_at, self.layout.payload_at + chunk.offset, chunk.length)
        return [copy, *self._verification.request(chunk)]

    def _on_staged_digest(self, header: ChunkHeader, value: int) -> list[Action]:
        if value != header.digest:
            reason = f"chunk {header.index} came with another digest"
            return self._resend([header.index], ErrorCode.DIGEST_MISMATCH, reason)
        self._placed.add(header.index)
        self.resends = 0
        actions: list[Action] = [SendFrame(ChunkAck(self.transfer, header.index))]
        if len(self._placed) == self.plan.count:
            actions += self._deliver()
        return actions

    def _unseen(self) -> list[int]:
        """Chunks that no tag vouches for, where one has to."""
        if not self.settings.tagged:
            return []
        return [index for index in range(self.plan.count) if self._verification.get(index) != TAGGED]

    def _verify_when_complete(self) -> list[Action]:
        header = self._header
        if header is None or not self._verification.complete:
            return []
        if payload_digest(self._verification.in_order()) == header.digest:
            return self._deliver()
        # one digest speaks for the whole payload, so the damaged chunk is not known
        self._header = None
        self.state = ReceiverState.RECEIVING
        if self.settings.asks_digests and can_tell(self.plan):
            self._asked = True
            return [SendFrame(DigestRequest(self.transfer))]
        reason = "the payload came with another digest"
        return self._resend(list(range(self.plan.count)), ErrorCode.DIGEST_MISMATCH, reason)

    def _deliver(self) -> list[Action]:
        self.state = ReceiverState.DELIVERED
        self._placed.update(range(self.plan.count))
        return [Finished(), SendFrame(Delivered(self.transfer))]

    def _resend(self, chunks: list[int], code: ErrorCode, reason: str) -> list[Action]:
        self.resends += 1
        if self.resends > self.settings.max_resends:
            return self._refuse(code, f"{reason}, {self.resends} times")
        self._verification.invalidate(chunks)
        self._placed.difference_update(chunks)
        return [SendFrame(ResendChunks(self.transfer, tuple(chunks)))]

    def _refuse(self, code: ErrorCode, reason: str) -> list[Action]:
        self.state = ReceiverState.FAILED
        return [SendFrame(Refused(self.transfer, code.value, reason)), Failed(code, reason)]

    def _not_placed(self) -> list[int]:
        """What `fedrdma` has still to take in, in the order it is sent."""
        missing = (index for index in range(self.plan.count) if index not in self._placed)
        return sending_order(self.plan, self.settings.mode, missing)
