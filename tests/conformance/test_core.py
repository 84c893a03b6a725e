"""The protocol's own state machines, driven over every transport in every mode: bytes in, the same bytes out."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fedrdma_fate.core.actions import (
    Action,
    ClearHeader,
    ComputeDigest,
    CopyStaged,
    Failed,
    Finished,
    SendFrame,
    WriteChunk,
    WriteHeader,
)
from fedrdma_fate.core.digest import TAGGED, chunk_digest
from fedrdma_fate.core.plan import DEFAULT_CHUNK_BYTES, GRPC_CHUNK_BYTES, ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.sender import Sender, SendSettings
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Completion, CompletionKind, RemoteSlot, Slot
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import ChunkAck, ControlFrame, Delivered, Mode, Refused, ResendChunks
from fedrdma_fate.wire.header import HEADER_BYTES
from tests.conformance.pairs import PATIENCE, ImpatientError, MakeTransport, Pair, Side, Site, connect
from tests.support.faulty import FaultPlan, FaultyTransport

ALIKE_ONCE = True
"""What state machines make of a transport is the same over those that are alike."""

MIB = 1024 * 1024
GRANT = 7
LARGE = 40 * MIB
"""More chunks than are under way at once in any mode."""
MODES: tuple[Mode, ...] = ("grpc", "fedrdma", "fedrdma-e")


class Transfer:
    """One payload from the active to the passive side; control frames are handed over directly."""

    def __init__(self, pair: Pair, mode: Mode, plan: ChunkPlan) -> None:
        self.pair = pair
        self.sender = Sender(1, plan, SendSettings(mode))
        self.receiver = Receiver(1, plan, ReceiveSettings(mode))
        layout = self.receiver.layout
        self.slot = Slot(pair.passive.region, 0, layout.slot_bytes)
        self.slot.view[layout.header_at : layout.header_at + HEADER_BYTES] = bytes(HEADER_BYTES)
        self.target: RemoteSlot = pair.passive.endpoint.expose(GRANT, self.slot)
        self.outcomes: list[tuple[str, Finished | Failed]] = []
        self.tagged = pair.is_sealed and mode != "fedrdma"

    def run(self, patience: float = PATIENCE) -> None:
        self._as_sender(self.sender.start(0.0))
        self.pair.pump(self._settled, patience)

    def resume(self) -> None:
        """Go on over a new link, as the engine does."""
        pair = self.pair
        self.sender.pause()
        pair.active.endpoint.close()
        pair.passive.endpoint.close()
        pair.active.endpoint, pair.passive.endpoint = connect(*pair.transports)
        pair.active.completions.clear()
        pair.passive.completions.clear()
        self._as_receiver(self.receiver.restart())
        self.target = pair.passive.endpoint.expose(GRANT, self.slot)
        self._as_sender(self.sender.resume(0.0, same_slot=True))
        pair.pump(self._settled)

    @property
    def delivered(self) -> bool:
        finished = [side for side, outcome in self.outcomes if isinstance(outcome, Finished)]
        return sorted(finished) == ["receiver", "sender"]

    @property
    def payload(self) -> npt.NDArray[np.uint8]:
        return self.pair.passive.bytes_at(self.receiver.layout.payload_at, self.sender.plan.total_bytes)

    def _settled(self) -> bool:
        for side, handle in ((self.pair.active, self._sent), (self.pair.passive, self._came)):
            completions, side.completions = side.completions, []
            for completion in completions:
                handle(completion)
        return self.sender.finished and self.receiver.finished

    def _sent(self, completion: Completion) -> None:
        self._as_sender(self.sender.on_write_done(completion.work_request, 0.0))

    def _came(self, completion: Completion) -> None:
        assert completion.immediate == GRANT
        if completion.kind is CompletionKind.LANDED:
            self._as_receiver(self.receiver.on_landed(completion.offset, completion.length, completion.digest))
        else:
            at = self.receiver.layout.header_at
            self._as_receiver(self.receiver.on_announced(self.slot.view[at : at + HEADER_BYTES]))

    def _as_sender(self, actions: Iterable[Action]) -> None:
        endpoint, region = self.pair.active.endpoint, self.pair.active.region
        queue = deque(actions)
        while queue:
            match queue.popleft():
                case WriteChunk(request, chunk, at):
                    endpoint.post_write(request, Slot(region, chunk.offset, chunk.length), self.target, at)
                case WriteHeader(request, header, at):
                    endpoint.post_bytes(request, header.encode(), self.target, at, GRANT)
                case ComputeDigest(chunk):
                    data = region.view[chunk.offset : chunk.offset + chunk.length]
                    queue.extend(self.sender.on_digest(chunk.index, TAGGED if self.tagged else chunk_digest(data)))
                case Finished() | Failed() as outcome:
                    self.outcomes.append(("sender", outcome))

    def _as_receiver(self, actions: Iterable[Action]) -> None:
        queue = deque(actions)
        while queue:
            match queue.popleft():
                case ComputeDigest(chunk):
                    part = self.slot.part(self.receiver.layout.payload_at + chunk.offset, chunk.length)
                    queue.extend(self.receiver.on_digest(chunk.index, chunk_digest(part.view)))
                case CopyStaged(source, to, length):
                    base = self.slot.region.address + self.slot.offset
                    ctypes.memmove(base + to, base + source, length)
                case ClearHeader(at):
                    self.slot.view[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
                case SendFrame(frame):
                    self._to_sender(frame)
                case Finished() | Failed() as outcome:
                    self.outcomes.append(("receiver", outcome))

    def _to_sender(self, frame: ControlFrame) -> None:
        match frame:
            case ChunkAck(index=index):
                self._as_sender(self.sender.on_chunk_ack(index, 0.0))
            case ResendChunks(chunks=chunks):
                self._as_sender(self.sender.on_resend(chunks, 0.0))
            case Delivered():
                self._as_sender(self.sender.on_delivered(0.0))
            case Refused(code=code, reason=reason):
                self._as_sender(self.sender.on_refused(ErrorCode(code), reason))


@contextlib.contextmanager
def faulty_pair(
    make: MakeTransport,
    directory: Path,
    regions: tuple[SharedRegion, SharedRegion],
    active_plans: Iterable[FaultPlan] = (),
    passive_plans: Iterable[FaultPlan] = (),
) -> Iterator[Pair]:
    """A pair whose connections go wrong as planned."""
    transports = (
        FaultyTransport(make(Site(directory, regions[0])), active_plans),
        FaultyTransport(make(Site(directory, regions[1])), passive_plans),
    )
    active, passive = connect(*transports)
    pair = Pair(Side(active, regions[0]), Side(passive, regions[1]), transports)
    try:
        yield pair
    finally:
        pair.close()


def plan_for(mode: Mode, total_bytes: int, chunk_bytes: int = DEFAULT_CHUNK_BYTES, enable: int = 0) -> ChunkPlan:
    return ChunkPlan(total_bytes, GRPC_CHUNK_BYTES if mode == "grpc" else chunk_bytes, 0 if mode == "grpc" else enable)


@pytest.mark.parametrize("mode", MODES)
def test_payloads_of_every_size_arrive_as_they_were(pair: Pair, mode: Mode) -> None:
    for length in (0, 1, DEFAULT_CHUNK_BYTES - 1, DEFAULT_CHUNK_BYTES, DEFAULT_CHUNK_BYTES + 1, 9 * MIB + 13):
        pair.active.fill(0, length, seed=length)
        transfer = Transfer(pair, mode, plan_for(mode, length))
        transfer.run()
        assert transfer.delivered
        assert np.array_equal(transfer.payload, pair.active.bytes_at(0, length))
        assert transfer.sender.resent_bytes == 0
        pair.passive.endpoint.withdraw(GRANT)


@pytest.mark.parametrize("mode", MODES)
def test_a_large_payload_arrives_as_it_was(pair: Pair, mode: Mode) -> None:
    pair.active.fill(0, LARGE, seed=2)
    transfer = Transfer(pair, mode, plan_for(mode, LARGE, enable=4096))
    transfer.run()
    assert transfer.delivered
    assert np.array_equal(transfer.payload, pair.active.bytes_at(0, LARGE))


@pytest.mark.parametrize("mode", ["fedrdma", "fedrdma-e"])
def test_many_odd_chunks_with_link_enable_arrive_as_they_were(pair: Pair, mode: Mode) -> None:
    pair.active.fill(0, MIB + 7, seed=3)
    transfer = Transfer(pair, mode, plan_for(mode, MIB + 7, chunk_bytes=4099, enable=1000))
    transfer.run()
    assert transfer.delivered
    assert np.array_equal(transfer.payload, pair.active.bytes_at(0, MIB + 7))


@pytest.mark.parametrize(
    ("side", "plan"),
    [
        ("active", FaultPlan(seed=1, corrupt_posted_bytes=frozenset({1}))),
        ("active", FaultPlan(seed=2, delay_completions=5)),
        ("passive", FaultPlan(seed=3, delay_completions=5, duplicate_share=0.7)),
        ("passive", FaultPlan(seed=4, corrupt_landed=frozenset({1}), duplicate_share=0.3)),
        ("passive", FaultPlan(seed=5, corrupt_landed=frozenset({2, 3}))),
    ],
    ids=["header-damaged", "acks-late", "late-and-doubled", "damaged-and-doubled", "damaged-twice"],
)
@pytest.mark.parametrize("mode", MODES)
def test_faults_are_found_and_mended(
    make: MakeTransport,
    shared_directory: Path,
    regions: tuple[SharedRegion, SharedRegion],
    mode: Mode,
    side: str,
    plan: FaultPlan,
) -> None:
    plans = ([plan], []) if side == "active" else ([], [plan])
    with faulty_pair(make, shared_directory, regions, *plans) as pair:
        pair.active.fill(0, 3 * MIB, seed=6)
        transfer = Transfer(pair, mode, plan_for(mode, 3 * MIB, chunk_bytes=MIB))
        transfer.run()
        assert transfer.delivered, transfer.outcomes
        assert np.array_equal(transfer.payload, pair.active.bytes_at(0, 3 * MIB))
        damaged = bool(plan.corrupt_landed and pair.hints) or bool(plan.corrupt_posted_bytes)
        assert (transfer.receiver.resends + transfer.sender.resent_bytes > 0) == damaged


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_link_is_resumed_on_a_new_one(
    make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion], mode: Mode
) -> None:
    with faulty_pair(make, shared_directory, regions, [FaultPlan(break_after_bytes=5 * MIB)]) as pair:
        pair.active.fill(0, 8 * MIB, seed=8)
        transfer = Transfer(pair, mode, plan_for(mode, 8 * MIB, chunk_bytes=MIB))
        with pytest.raises(TransportError, match="fault plan"):
            transfer.run()
        transfer.resume()
        assert transfer.delivered
        assert np.array_equal(transfer.payload, pair.active.bytes_at(0, 8 * MIB))


def test_silence_keeps_a_write_from_ever_completing_and_closing_from_hanging(
    make: MakeTransport, shared_directory: Path, regions: tuple[SharedRegion, SharedRegion]
) -> None:
    with faulty_pair(make, shared_directory, regions, [FaultPlan(silent_after_writes=1)]) as pair:
        transfer = Transfer(pair, "fedrdma-e", plan_for("fedrdma-e", 3 * MIB, chunk_bytes=MIB))
        with pytest.raises(ImpatientError):
            transfer.run(patience=0.2)
        assert not transfer.sender.finished
        assert not transfer.receiver.finished
        began = time.monotonic()
    assert time.monotonic() - began < 8
