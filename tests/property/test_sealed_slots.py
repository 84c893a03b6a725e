"""Whatever becomes of chunks that are sealed before they are posted: no nonce comes twice, and what comes is whole."""

from __future__ import annotations

import random
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sealed_plan import with_table
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.engine.sealed_source import SealedSource
from fedrdma_fate.engine.sealing_ring import SealingRing
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import DirectionKeys, attempt_key
from fedrdma_fate.security.sealing import AttemptSealer, PathSealer
from fedrdma_fate.wire.frames import Mode
from fedrdma_fate.wire.sealed import unpack_introduction
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import Pair, outgoing

_SLOT_BYTES = 200
_CHUNK_BYTES = 64
_PLAN = with_table(ChunkPlan(_SLOT_BYTES, _CHUNK_BYTES))
_RING_BYTES = 512


class Watched:
    """A sealer that notes each sealing: the key, made as the receiver makes it, the nonce, and the bytes."""

    def __init__(self, sealer: AttemptSealer, chunks: bytes, seen: list[tuple[bytes, bytes, bytes]]) -> None:
        self._sealer, self._seen = sealer, seen
        self.introduction = sealer.introduction
        about = unpack_introduction(sealer.introduction)
        self._key = attempt_key(chunks, about.transfer, about.attempt)

    def seal_apart(self, place: bytes, data: memoryview, room: memoryview) -> bytes:
        apart = self._sealer.seal_apart(place, data, room)
        (counter,) = struct.unpack_from("<Q", apart)
        self._seen.append((self._key, counter.to_bytes(12, "big"), bytes(room)))
        return apart


class SourceHistories(RuleBasedStateMachine):
    """Tasks write into slots that are being sent; chunks are sealed, posted, sent again, reported, and dropped."""

    @initialize()
    def begin_gateway(self) -> None:
        self.slots = [HeapRegion(_SLOT_BYTES) for _ in range(2)]
        self.seen: list[tuple[bytes, bytes, bytes]] = []
        self.went_out: dict[tuple[int, int], bytes] = {}
        self.changed: list[tuple[int, int]] = []
        # so that no two have one identity
        self.all_sources: list[SealedSource] = []
        self.connections = 0
        self.connect()

    @rule()
    def connect(self) -> None:
        """A new data path: other keys, and an empty ring, for nothing reads the old one any more."""
        self.connections += 1
        self.keys = DirectionKeys(bytes(32), self.connections.to_bytes(32, "big"), bytes(32))
        self.path = PathSealer(self.keys, AES, "on")
        self.ring = SealingRing(HeapRegion(_RING_BYTES))
        self.sources: list[SealedSource] = []
        self.posted: list[tuple[SealedSource, int]] = []

    @rule(transfer=st.integers(1, 3), slot=st.integers(0, 1))
    def begin(self, transfer: int, slot: int) -> None:
        """A transfer begins, or begins anew; the same slot may go out as several."""
        sealer: Any = Watched(self.path.begin(transfer, transfer, bytes(32)), self.keys.chunks, self.seen)
        payload = Payload(self.slots[slot].slot(), _SLOT_BYTES)
        self.sources.append(SealedSource(payload, _PLAN, sealer, self.ring))
        self.all_sources.append(self.sources[-1])

    @rule(slot=st.integers(0, 1), data=st.binary(min_size=1, max_size=40), at=st.integers(0, _SLOT_BYTES - 40))
    def write(self, slot: int, data: bytes, at: int) -> None:
        """A task writes into a slot that it keeps."""
        self.slots[slot].view[at : at + len(data)] = data

    @precondition(lambda self: self.sources)
    @rule(which=st.integers(0, 100), index=st.integers(0, _PLAN.count - 1))
    def post(self, which: int, index: int) -> None:
        """A chunk goes out, for the first time or again, where there is room, and its turn has come."""
        source, chunk = self.sources[which % len(self.sources)], _PLAN.chunk(index)
        if not source.was_sealed(chunk):
            try:
                source.seal(chunk)
            except RuntimeError:
                assert index < _PLAN.trailer_count
        if source.is_kept(chunk):
            source.on_posted(chunk)
            self.posted.append((source, index))

    @precondition(lambda self: self.posted)
    @rule(which=st.integers(0, 1000))
    def land(self, which: int) -> None:
        """The device reads a posted chunk, perhaps much later, and is done with it."""
        source, index = self.posted.pop(which % len(self.posted))
        sent = bytes(source.part(_PLAN.chunk(index)).view)
        about = id(source), index
        if self.went_out.setdefault(about, sent) != sent:
            self.changed.append(about)
        source.on_done(_PLAN.chunk(index))

    @precondition(lambda self: self.sources)
    @rule(which=st.integers(0, 100), index=st.integers(0, _PLAN.count - 1))
    def arrive(self, which: int, index: int) -> None:
        """A report comes."""
        self.sources[which % len(self.sources)].on_arrived(_PLAN.chunk(index))

    @precondition(lambda self: self.sources)
    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        """A transfer ends, or is given up."""
        self.sources.pop(which % len(self.sources)).close()

    @invariant()
    def no_nonce_came_twice(self) -> None:
        used = [(key, nonce) for key, nonce, _ in getattr(self, "seen", [])]
        assert len(used) == len(set(used))

    @invariant()
    def each_copy_of_a_chunk_is_the_same_in_an_attempt(self) -> None:
        assert not getattr(self, "changed", [])

    @invariant()
    def the_ring_is_free_when_nothing_is_sent_or_read(self) -> None:
        if not getattr(self, "sources", True) and not self.posted:
            assert self.ring.held_bytes == 0


TestSourceHistories = SourceHistories.TestCase
TestSourceHistories.settings = settings(max_examples=80, stateful_step_count=60)


@settings(max_examples=60)
@given(st.data())
def test_sealed_transfers_come_whole_through_losses_breaks_and_a_ring_that_is_too_small(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    chance = random.Random(seed)
    pair = Pair()
    pair.seal = data.draw(st.sampled_from(["on", "integrity"]))
    pair.ring_bytes = data.draw(st.sampled_from([4096, 8192, 65536]))
    modes: list[Mode] = ["fedrdma", "fedrdma-e", "fedrdma-x"]
    reliable = data.draw(st.booleans())
    bodies = [chance.randbytes(chance.choice([0, 1, 700, 5000, 20_000])) for _ in range(data.draw(st.integers(1, 5)))]

    def connect() -> None:
        wire = MemoryWire()
        wire.chunk_service = ChunkService(reliable=reliable, self_paced=False, queue_pairs=2, mtu_bytes=500)
        wire.has_datagrams = True
        wire.trouble = chance
        lost = 0 if reliable else data.draw(st.integers(0, 60))
        wire.lost_chunks = frozenset(chance.randrange(1, 120) for _ in range(lost))
        pair.connect(wire)

    connect()
    for number, body in enumerate(bodies, 1):
        mode = data.draw(st.sampled_from(modes))
        pair.outgoing.submit(outgoing(body, number, mode, chance.choice([500, 1000])), pair.now)
    for _ in range(data.draw(st.integers(0, 3))):
        for _ in range(data.draw(st.integers(0, 40))):
            for request in pair.receiving.wanted:
                pair.grant(HeapRegion(request.slot_bytes).slot(), request.transfer)
            pair.receiving.wanted.clear()
            pair.progress(most=chance.randrange(1, 4))
            pair.carry()
        pair.lose_path()
        # the halves of the next path come behind what was said before
        while pair.carry():
            pass
        connect()
    pair.let_time_pass(30.0)
    # what a message was, whatever it was called; the gateway above delivers each once
    came = {
        offer.transfer: bytes(slot.part(at, offer.total_bytes).view)
        for offer, slot, at in pair.receiving.received_offers
    }
    assert came == dict(enumerate(bodies, 1)), f"seed {seed}"
    assert pair.ring.held_bytes == 0
    assert not pair.receiving.refused
