"""Every event in every state of the receiver: long random walks on a real slot, digests answered in any order.

The medium may damage any write and repeat any header; it keeps the one promise of a reliably connected path, that a
header lands behind what was posted before it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.actions import (
    Action,
    ClearHeader,
    ComputeDigest,
    CopyStaged,
    Failed,
    Finished,
    SendFrame,
    WipeChunk,
)
from fedrdma_fate.core.damage import pack_digests
from fedrdma_fate.core.digest import chunk_digest, payload_digest
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiverState, ReceiveSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ChunkAck, Delivered, DigestRequest, Mode, Refused, ResendChunks
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind

TRANSFER = 7
MODES: list[Mode] = ["grpc", "fedrdma", "fedrdma-e"]


def any_plan(chance: random.Random) -> ChunkPlan:
    total = chance.choice([0, *range(1, 10)])
    chunk = chance.randint(max(1, total // 3), 10)
    enable = chance.choice([0, chance.randint(0, min(chunk, max(0, total - 1)))])
    return ChunkPlan(total, chunk, enable)


@dataclasses.dataclass
class Computation:
    """A digest under way; `early` is that of the bytes as they were when it was asked for."""

    chunk: Chunk
    early: int
    slot: bytearray


class Walk:
    """A receiver, its slot, and the events that may be fired at it; checks whatever it does."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.plan = any_plan(chance)
        mode = chance.choice(MODES)
        self.hints = chance.random() < 0.5
        self.by_chunk = mode == "fedrdma" and self.plan.count > 0
        self.payload = bytes(range(1, self.plan.total_bytes + 1))
        self.receiver = Receiver(
            TRANSFER, self.plan, ReceiveSettings(mode, max_resends=8, asks_digests=chance.random() < 0.7)
        )
        self.layout = self.receiver.layout
        self.slot = bytearray(self.layout.slot_bytes)
        self.written: set[int] = set()
        self.acknowledged: set[int] = set()
        self.computations: list[Computation] = []
        self.ends: list[Action] = []

    def any_event(self) -> None:
        often = [self.answer_a_digest, self.write, self.write, self.announce_an_honest_header, self.tell_digests]
        seldom = [
            self.announce_a_damaged_header,
            self.announce_what_was_read_already,
            self.announce_a_lie_now_and_then,
            self.hint_at_nonsense,
            self.answer_an_unasked_digest,
            self.restart,
            self.tell_wrong_digests,
            self.end_now_and_then,
        ]
        self.chance.choice([*often, *often, *often, *seldom])()
        self.check_state()

    # -- the medium -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Each chunk is written once in an attempt; over again only where the receiver sees it, or in staging."""
        if not self.plan.count or self.receiver.finished:
            return
        chunk = self.plan.chunk(self.chance.randrange(self.plan.count))
        if chunk.index in self.written and not self.hints and not self.by_chunk:
            return
        at = self.layout.write_offset(chunk)
        self.slot[at : at + chunk.length] = self.data(chunk, damaged=self.chance.random() < 0.3)
        self.written.add(chunk.index)
        if self.by_chunk:
            self.announce(self.chunk_header(chunk).encode())
        elif self.hints:
            self.carry_out(self.receiver.on_landed(at, chunk.length))

    def announce_an_honest_header(self) -> None:
        if not self.by_chunk and len(self.written) == self.plan.count:
            self.announce(self.payload_header().encode())

    def announce_a_damaged_header(self) -> None:
        raw = bytearray(self.payload_header().encode())
        raw[self.chance.randrange(HEADER_BYTES)] ^= self.chance.randint(1, 255)
        self.announce(bytes(raw))

    def announce_what_was_read_already(self) -> None:
        resends = self.receiver.resends
        self.announce(bytes(HEADER_BYTES))
        assert self.receiver.resends == resends

    def announce_a_lie_now_and_then(self) -> None:
        """A header with a right check and a wrong field, its digest aside: that is a matter of what was sent."""
        field = self.chance.choice(["transfer", *["total_bytes", "offset", "length", "index", "count"]])
        if field != "transfer" and self.chance.random() < 0.8:
            return
        honest = self.chunk_header(self.plan.chunk(0)) if self.by_chunk else self.payload_header()
        value = self.chance.choice([*range(20), 2**32 - 1])
        lie = dataclasses.replace(honest, **{field: value})
        if lie != honest and not self.receiver.finished:
            self.announce(lie.encode())
            assert self.receiver.finished or field == "transfer"

    def hint_at_nonsense(self) -> None:
        offset, length = self.chance.randint(-5, 20) + self.layout.payload_at, self.chance.randint(0, 20)
        chunk = self.plan.chunk_at(offset - self.layout.payload_at)
        if chunk is None or chunk.length != length:
            assert self.receiver.on_landed(offset, length) == []

    def tell_digests(self) -> None:
        """Asked or not."""
        self.carry_out(self.receiver.on_chunk_digests(pack_digests([chunk_digest(self.data(c)) for c in self.plan])))

    def tell_wrong_digests(self) -> None:
        if self.chance.random() < 0.2:
            count = self.chance.choice([self.plan.count, 0, self.plan.count + 1])
            self.carry_out(self.receiver.on_chunk_digests(pack_digests([5] * count)))

    def restart(self) -> None:
        same_slot = self.chance.random() < 0.5
        self.written.clear()
        if not same_slot:
            self.slot = bytearray(self.layout.slot_bytes)
            self.acknowledged.clear()
        self.carry_out(self.receiver.restart(same_slot=same_slot))

    # -- the driver -----------------------------------------------------------------------------------------------

    def answer_a_digest(self) -> None:
        if self.computations:
            done = self.computations.pop(self.chance.randrange(len(self.computations)))
            value = done.early if self.chance.random() < 0.5 else self.digest_of(done.chunk, done.slot)
            self.carry_out(self.receiver.on_digest(done.chunk.index, value))

    def answer_an_unasked_digest(self) -> None:
        index = self.chance.randint(-1, 12)
        if all(computation.chunk.index != index for computation in self.computations):
            self.carry_out(self.receiver.on_digest(index, 0))

    def end_now_and_then(self) -> None:
        match self.chance.randrange(20):
            case 0:
                self.carry_out(self.receiver.on_abort(ErrorCode.IDLE_TIMEOUT, "stalled"))
            case 1:
                self.carry_out(self.receiver.cancel(ErrorCode.GATEWAY_STOPPING, "stopping"))

    # -- inside ---------------------------------------------------------------------------------------------------

    def data(self, chunk: Chunk, *, damaged: bool = False) -> bytes:
        piece = self.payload[chunk.offset : chunk.offset + chunk.length]
        return bytes([piece[0] ^ 0x80]) + piece[1:] if damaged else piece

    def digest_of(self, chunk: Chunk, slot: bytearray) -> int:
        at = self.layout.payload_at + chunk.offset
        return chunk_digest(bytes(slot[at : at + chunk.length]))

    def chunk_header(self, chunk: Chunk) -> ChunkHeader:
        digest = chunk_digest(self.data(chunk))
        total, count = self.plan.total_bytes, self.plan.count
        return ChunkHeader(HeaderKind.CHUNK, TRANSFER, total, chunk.offset, chunk.length, digest, chunk.index, count)

    def payload_header(self) -> ChunkHeader:
        digest = payload_digest([chunk_digest(self.data(chunk)) for chunk in self.plan])
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
                case WipeChunk(chunk):
                    at = self.layout.payload_at + chunk.offset
                    self.slot[at : at + chunk.length] = bytes(chunk.length)
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
                assert self.slot[at : at + chunk.length] == self.data(chunk), "a damaged chunk was acknowledged"
                self.acknowledged.add(index)
            case ResendChunks(chunks=chunks):
                assert not self.acknowledged & set(chunks)
                self.written -= set(chunks)
            case _:
                assert isinstance(frame, Delivered | Refused | DigestRequest)

    def check_state(self) -> None:
        assert len(self.ends) <= 1
        assert bool(self.ends) == self.receiver.finished
        assert (self.ends == [Finished()]) == (self.receiver.state is ReceiverState.DELIVERED)
        assert 0 <= self.receiver.placed_bytes <= self.plan.total_bytes
        assert self.receiver.resends <= self.receiver.settings.max_resends + 1


@settings(max_examples=1000)
@given(seed=st.integers(0, 2**64))
def test_no_order_of_events_makes_a_receiver_break_its_word(seed: int) -> None:
    walk = Walk(random.Random(seed))
    for _ in range(50):
        walk.any_event()
