"""How far a payload lies in its slot is told to the owner who asks, and when that is not to be counted on any more."""

from __future__ import annotations

import dataclasses

import pytest

from fedrdma_fate.core.actions import ClearHeader, SendFrame, WipeChunk
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiveSettings
from fedrdma_fate.core.x.chunking import immediate_of
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.engine import landing
from fedrdma_fate.engine.events import PayloadLanded
from fedrdma_fate.engine.landing import Landing, may_change_payload
from fedrdma_fate.wire.frames import ChunkAck, MessageKey, Offer, Party, ResendChunks
from tests.support.endpoints import HeapRegion

KEY = MessageKey("s", "m", "t", Party("guest", "1"), Party("host", "2"))
CHUNK = 1000
OFFER = Offer("tcp", 7, KEY, "object", 6 * CHUNK, "fedrdma-e", 3, CHUNK, 0)


@dataclasses.dataclass
class Coming:
    """A transfer of six chunks, from the last to the first."""

    landing: Landing
    receiver: Receiver

    def lands(self, *indices: int) -> PayloadLanded | None:
        """What is told when these have come."""
        for index in indices:
            chunk = self.receiver.plan.chunk(index)
            self.receiver.on_landed(self.receiver.layout.write_offset(chunk), chunk.length, 1)
        return self.landing.advance()


@pytest.fixture
def coming(monkeypatch: pytest.MonkeyPatch) -> Coming:
    monkeypatch.setattr(landing, "STEP_BYTES", 2 * CHUNK)
    receiver = Receiver(7, ChunkPlan(6 * CHUNK, CHUNK), ReceiveSettings("fedrdma-e"))
    slot = HeapRegion(receiver.layout.payload_at + 6 * CHUNK).slot()
    return Coming(Landing(OFFER, slot, receiver), receiver)


def stretch(told: PayloadLanded | None) -> tuple[int, int] | None:
    return None if told is None else (told.start, told.end)


def test_it_is_told_each_time_that_so_much_more_has_come(coming: Coming) -> None:
    assert coming.lands(5) is None
    assert stretch(coming.lands(4)) == (4 * CHUNK, 6 * CHUNK)
    assert coming.lands() is None
    assert coming.lands(3) is None
    assert stretch(coming.lands(1, 2)) == (1 * CHUNK, 6 * CHUNK)


def test_what_is_told_names_the_slot_and_where_in_it_the_payload_starts(coming: Coming) -> None:
    told = coming.lands(4, 5)
    assert told is not None
    assert told.offer is OFFER
    assert told.payload_at == coming.receiver.layout.payload_at


def test_where_bytes_may_change_that_were_told_it_is_withdrawn_once_and_nothing_more_is_told(coming: Coming) -> None:
    coming.lands(4, 5)
    assert stretch(coming.landing.withdraw()) == (0, 0)
    assert coming.landing.withdraw() is None
    assert coming.lands(0, 1, 2, 3) is None


def test_nothing_is_withdrawn_where_nothing_was_told(coming: Coming) -> None:
    coming.lands(5)
    assert coming.landing.withdraw() is None


def test_what_wipes_a_chunk_or_asks_for_it_again_may_change_the_payload_and_nothing_else() -> None:
    assert may_change_payload(WipeChunk(Chunk(0, 0, 10)))
    assert may_change_payload(SendFrame(ResendChunks(7, (1,))))
    assert not may_change_payload(SendFrame(ChunkAck(7, 1)))
    assert not may_change_payload(ClearHeader(0))


def test_where_a_chunk_comes_again_what_was_told_is_withdrawn_before_it_can_be_counted_on(coming: Coming) -> None:
    coming.lands(4, 5)
    assert coming.landing.look() is None
    coming.lands(3, 4)
    assert stretch(coming.landing.look()) == (0, 0)
    assert coming.landing.look() is None


def test_a_chunk_of_fedrdma_x_that_comes_again_counts_as_such() -> None:
    receiver = XReceiver(7, ChunkPlan(6 * CHUNK, CHUNK), XReceiveSettings(3))
    for index in (5, 4, 5):
        receiver.on_chunk(immediate_of(3, index), 0.0, 0.0)
    assert receiver.landed_again == 1
