"""Chunks that a tag vouches for, on streams that are sealed: no digest is computed, and none is taken on trust."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fedrdma_fate.core.digest import MISTAGGED, TAGGED, payload_digest
from fedrdma_fate.core.plan import SlotLayout
from fedrdma_fate.engine import incoming
from fedrdma_fate.ports import Completion, CompletionKind, Slot
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import DirectionKeys
from fedrdma_fate.security.sealing import PathOpener
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import Offer, ResendChunks, Restart
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind
from tests.support.endpoints import MemoryWire
from tests.support.engine import KEY, Pair, outgoing, slot_for

BODY = random.Random(11).randbytes(3456)
MESSAGE = outgoing(BODY)
PLAN = MESSAGE.plan
LAYOUT = SlotLayout(PLAN, "fedrdma-e")


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.connect()
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def offer_for(grant: int) -> Offer:
    return Offer("test", 1, KEY, "bytes", len(BODY), "fedrdma-e", grant, PLAN.chunk_bytes, PLAN.enable_bytes)


def land(pair: Pair, grant: int, slot: Slot, index: int, digest: int | None = TAGGED) -> None:
    chunk = PLAN.chunk(index)
    at = LAYOUT.write_offset(chunk)
    slot.view[at : at + chunk.length] = BODY[chunk.offset : chunk.offset + chunk.length]
    landed = Completion(CompletionKind.LANDED, immediate=grant, offset=at, length=chunk.length, digest=digest)
    pair.incoming.on_landed(landed, pair.now)


def announce(pair: Pair, grant: int, slot: Slot) -> None:
    digest = payload_digest([TAGGED] * PLAN.count)
    header = ChunkHeader(HeaderKind.PAYLOAD, 1, len(BODY), 0, len(BODY), digest, 0, PLAN.count)
    slot.view[LAYOUT.header_at : LAYOUT.header_at + HEADER_BYTES] = header.encode()
    pair.incoming.on_immediate(grant, pair.now)


@pytest.mark.parametrize("before_the_offer", [0, 2, PLAN.count])
def test_chunks_that_came_before_their_offer_count(pair: Pair, before_the_offer: int) -> None:
    slot = slot_for(MESSAGE)
    grant = pair.grant(slot)
    for index in range(before_the_offer):
        land(pair, grant, slot, index)
    pair.incoming.on_offer(offer_for(grant), pair.now)
    for index in range(before_the_offer, PLAN.count):
        land(pair, grant, slot, index)
    announce(pair, grant, slot)
    assert not any(isinstance(frame, ResendChunks) for frame in pair.receiving.frames)
    ((_, received, at),) = pair.receiving.received_offers
    assert bytes(received.part(at, len(BODY)).view) == BODY


@pytest.mark.parametrize("missing", [True, False])
def test_a_chunk_that_no_tag_vouches_for_is_asked_for_again(pair: Pair, missing: bool) -> None:
    slot = slot_for(MESSAGE)
    grant = pair.grant(slot)
    land(pair, grant, slot, 0)
    if not missing:
        land(pair, grant, slot, 1, digest=None)
    pair.incoming.on_offer(offer_for(grant), pair.now)
    for index in range(2, PLAN.count):
        land(pair, grant, slot, index)
    announce(pair, grant, slot)
    assert [frame for frame in pair.receiving.frames if isinstance(frame, ResendChunks)]
    assert pair.receiving.received_offers == []


@pytest.mark.parametrize("before_the_offer", [True, False])
def test_a_chunk_whose_tag_was_wrong_when_it_came_once_more_is_vouched_for_no_longer(
    pair: Pair, before_the_offer: bool
) -> None:
    slot = slot_for(MESSAGE)
    grant = pair.grant(slot)
    if not before_the_offer:
        pair.incoming.on_offer(offer_for(grant), pair.now)
    for index in range(PLAN.count):
        land(pair, grant, slot, index)
    # it was wiped then
    land(pair, grant, slot, 1, digest=MISTAGGED)
    if before_the_offer:
        pair.incoming.on_offer(offer_for(grant), pair.now)
    announce(pair, grant, slot)
    assert [frame for frame in pair.receiving.frames if isinstance(frame, ResendChunks)]
    assert pair.receiving.received_offers == []


@pytest.mark.parametrize("sealed_for_it", [True, False])
def test_what_was_sealed_for_another_message_does_not_count_on_the_next_data_path(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, sealed_for_it: bool
) -> None:
    keys = DirectionKeys(b"d" * 32, b"c" * 32, b"a" * 32)
    first, second = (PathOpener(keys, AES, "integrity") for _ in range(2))
    pair.incoming.path_up(pair.wire.ends[1], pair.now, first)
    slot = slot_for(MESSAGE)
    grant = pair.grant(slot)
    pair.incoming.on_offer(offer_for(grant), pair.now)
    for index in range(PLAN.count):
        land(pair, grant, slot, index)
    # no header has come, with which it is looked at otherwise
    monkeypatch.setattr(first, "is_of", lambda *_: sealed_for_it)
    pair.wire.break_down("the test cut it")
    pair.incoming.path_lost(pair.now)
    assert (slot in pair.receiving.returned) is not sealed_for_it
    pair.incoming.path_up(MemoryWire().ends[1], pair.now, second)
    pair.incoming.on_reconcile([(1, grant)])
    assert bool(pair.receiving.take(Restart)) is not sealed_for_it


def test_chunks_kept_before_their_offers_have_a_bound_and_are_forgotten_with_their_slot(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "MOST_EARLY_CHUNKS", 3)
    for _ in range(4):
        slot = slot_for(MESSAGE)
        grant = pair.grant(slot)
        for index in range(3):
            land(pair, grant, slot, index)
        pair.incoming.on_return(grant)
    slot = slot_for(MESSAGE)
    grant = pair.grant(slot)
    for index in range(3):
        land(pair, grant, slot, index)
    with pytest.raises(TransportError) as caught:
        land(pair, grant, slot, 3)
    assert caught.value.code is ErrorCode.LINK_LOST
