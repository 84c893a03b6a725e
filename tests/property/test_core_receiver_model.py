"""Every event in every state of the receiver, on a real slot, with digests answered in any order and however late.

The medium may damage any write and repeat any header; it keeps the one promise of a reliably connected path, that a
header lands behind what was posted before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedrdma_fate.core.actions import Action, ClearHeader, ComputeDigest, CopyStaged, Failed, Finished, SendFrame
from fedrdma_fate.core.digest import chunk_digest, payload_digest
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiverState, ReceiveSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ChunkAck, Delivered, Mode, Refused, ResendChunks
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind

TRANSFER = 7
CHOICES = st.integers(0, 10**6)


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    total = draw(st.integers(0, 12))
    chunk = draw(st.integers(max(1, total // 4), 13))
    return ChunkPlan(total, chunk, draw(st.integers(0, min(chunk, max(0, total - 1)))))


@dataclasses.dataclass
class Computation:
    """A digest under way; `early` is that of the bytes as they were when it was asked for."""

    chunk: Chunk
    early: int
    slot: bytearray


class ReceiverMachine(RuleBasedStateMachine):
    """Fires events at a receiver and checks what it delivers."""

    @initialize(plan=plans(), mode=st.sampled_from(["grpc", "fedrdma", "fedrdma-e"]), hints=st.booleans())
    def begin(self, plan: ChunkPlan, mode: Mode, hints: bool) -> None:
        self.plan, self.mode, self.hints = plan, mode, hints
        self.by_chunk = mode == "fedrdma" and plan.count > 0
        self.payload = bytes(range(1, plan.total_bytes + 1))
        self.receiver = Receiver(TRANSFER, plan, ReceiveSettings(mode))
        self.layout = self.receiver.layout
        self.slot = bytearray(self.layout.slot_bytes)
        self.written: set[int] = set()
        self.computations: list[Computation] = []
        self.ends: list[Action] = []
        self.acknowledged: set[int] = set()

    # -- the medium -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.plan.count and not self.by_chunk)
    @rule(choice=CHOICES, damaged=st.booleans())
    def write_a_chunk(self, choice: int, damaged: bool) -> None:
        """Each chunk is written once in an attempt; over again only where the receiver sees it."""
        chunk = self.plan.chunk(choice % self.plan.count)
        if self.receiver.finished or (chunk.index in self.written and not self.hints):
            return
        at = self.layout.write_offset(chunk)
        self.slot[at : at + chunk.length] = self.data(chunk, damaged)
        self.written.add(chunk.index)
        if self.hints:
            self.carry_out(self.receiver.on_landed(at, chunk.length))

    @precondition(lambda self: self.by_chunk)
    @rule(choice=CHOICES, damaged=st.booleans())
    def write_and_announce_a_staged_chunk(self, choice: int, damaged: bool) -> None:
        chunk = self.plan.chunk(choice % self.plan.count)
        at = self.layout.write_offset(chunk)
        self.slot[at : at + chunk.length] = self.data(chunk, damaged)
        self.announce(self.chunk_header(chunk).encode())

    @precondition(lambda self: not self.by_chunk)
    @rule()
    def announce_the_payload(self) -> None:
        if len(self.written) == self.plan.count:
            self.announce(self.payload_header().encode())

    @rule(position=st.integers(0, HEADER_BYTES - 1), flip=st.integers(1, 255))
    def announce_a_damaged_header(self, position: int, flip: int) -> None:
        raw = bytearray(self.payload_header().encode())
        raw[position] ^= flip
        self.announce(bytes(raw))

    @rule()
    def announce_what_was_read_already(self) -> None:
        self.announce(bytes(HEADER_BYTES))

    @rule(offset=st.integers(-5, 5000), length=st.integers(0, 20))
    def hint_at_nonsense(self, offset: int, length: int) -> None:
        chunk = self.plan.chunk_at(offset - self.layout.payload_at)
        if chunk is None or chunk.length != length:
            assert self.receiver.on_landed(offset, length) == []

    @rule(
        field=st.sampled_from(["transfer", "total_bytes", "offset", "length", "index", "count"]),
        value=st.one_of(st.integers(0, 20), st.just(2**32 - 1)),
    )
    def announce_a_lie(self, field: str, value: int) -> None:
        honest = self.chunk_header(self.plan.chunk(0)) if self.by_chunk else self.payload_header()
        lie = dataclasses.replace(honest, **{field: value})
        if lie != honest and not self.receiver.finished:
            self.announce(lie.encode())
            assert self.receiver.finished or field == "transfer" or (field, self.by_chunk) == ("index", False)

    @rule(same_slot=st.booleans())
    def restart(self, same_slot: bool) -> None:
        self.written.clear()
        if not same_slot:
            self.slot = bytearray(self.layout.slot_bytes)
            self.acknowledged.clear()
        self.carry_out(self.receiver.restart(same_slot=same_slot))

    # -- the driver -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.computations)
    @rule(choice=CHOICES, early=st.booleans())
    def answer_a_digest(self, choice: int, early: bool) -> None:
        done = self.computations.pop(choice % len(self.computations))
        value = done.early if early else self.digest_of(done.chunk, done.slot)
        self.carry_out(self.receiver.on_digest(done.chunk.index, value))

    @rule(index=st.integers(-1, 14))
    def answer_a_digest_nobody_asked_for(self, index: int) -> None:
        if all(computation.chunk.index != index for computation in self.computations):
            self.carry_out(self.receiver.on_digest(index, 0))

    @rule(choice=CHOICES)
    def give_up_now_and_then(self, choice: int) -> None:
        if choice % 16 == 0:
            self.carry_out(self.receiver.on_abort(ErrorCode.IDLE_TIMEOUT, "stalled"))
        elif choice % 16 == 1:
            self.carry_out(self.receiver.cancel(ErrorCode.GATEWAY_STOPPING, "stopping"))

    # -- inside ---------------------------------------------------------------------------------------------------

    def data(self, chunk: Chunk, damaged: bool) -> bytes:
        piece = self.payload[chunk.offset : chunk.offset + chunk.length]
        return bytes([piece[0] ^ 0x80]) + piece[1:] if damaged else piece

    def digest_of(self, chunk: Chunk, slot: bytearray) -> int:
        at = self.layout.payload_at + chunk.offset
        return chunk_digest(bytes(slot[at : at + chunk.length]))

    def chunk_header(self, chunk: Chunk) -> ChunkHeader:
        digest = chunk_digest(self.data(chunk, damaged=False))
        total, count = self.plan.total_bytes, self.plan.count
        return ChunkHeader(HeaderKind.CHUNK, TRANSFER, total, chunk.offset, chunk.length, digest, chunk.index, count)

    def payload_header(self) -> ChunkHeader:
        digest = payload_digest([chunk_digest(self.data(chunk, damaged=False)) for chunk in self.plan])
        total, count = self.plan.total_bytes, self.plan.count
        return ChunkHeader(HeaderKind.PAYLOAD, TRANSFER, total, 0, total, digest, 0, count)

    def announce(self, raw: bytes) -> None:
        at = self.layout.header_at
        self.slot[at : at + HEADER_BYTES] = raw
        self.carry_out(self.receiver.on_announced(raw))

    def carry_out(self, actions: Iterable[Action]) -> None:
        was_over = bool(self.ends)
        for action in actions:
            assert not was_over, "an action after the end"
            match action:
                case ComputeDigest(chunk):
                    assert all(chunk != other.chunk for other in self.computations), "two answers could be mixed up"
                    self.computations.append(Computation(chunk, self.digest_of(chunk, self.slot), self.slot))
                case CopyStaged(source, target, length):
                    assert max(source, target) + length <= len(self.slot)
                    self.slot[target : target + length] = self.slot[source : source + length]
                case ClearHeader(at):
                    self.slot[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
                case SendFrame(frame):
                    self.check_frame(frame)
                case Finished():
                    at = self.layout.payload_at
                    assert self.slot[at : at + self.plan.total_bytes] == self.payload, "wrong bytes were delivered"
                    self.ends.append(action)
                case Failed():
                    self.ends.append(action)
                case _:
                    raise AssertionError(f"a receiver must not ask for {action}")

    def check_frame(self, frame: object) -> None:
        match frame:
            case ChunkAck(index=index):
                chunk = self.plan.chunk(index)
                at = self.layout.payload_at + chunk.offset
                assert self.slot[at : at + chunk.length] == self.data(chunk, False), "a damaged chunk was acknowledged"
                self.acknowledged.add(index)
            case ResendChunks(chunks=chunks):
                assert not self.acknowledged & set(chunks)
                self.written -= set(chunks)
            case _:
                assert isinstance(frame, Delivered | Refused)

    @invariant()
    def ends_once_and_as_its_state_says(self) -> None:
        if not hasattr(self, "receiver"):
            return
        assert len(self.ends) <= 1
        assert bool(self.ends) == self.receiver.finished
        assert (self.ends == [Finished()]) == (self.receiver.state is ReceiverState.DELIVERED)
        assert 0 <= self.receiver.placed_bytes <= self.plan.total_bytes
        assert self.receiver.resends <= self.receiver.settings.max_resends + 1


ReceiverMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestReceiverMachine = ReceiverMachine.TestCase
