"""Tags of what lies sealed in a slot: which are taken, and what is opened by them when its data path is gone."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from fedrdma_fate.core.held import Held
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sealed_plan import sealed_slot_bytes, with_table
from fedrdma_fate.engine.granted_slot import offer_digest
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.engine.sealed_source import SealedSource
from fedrdma_fate.engine.sealing_ring import SealingRing
from fedrdma_fate.engine.told_tags import MOST_RUNS, ToldTags, open_told
from fedrdma_fate.security.ciphers import AES
from fedrdma_fate.security.key_schedule import DirectionKeys
from fedrdma_fate.security.sealing import PathOpener, PathSealer, Seal
from fedrdma_fate.wire.frames import ChunkTags, Offer
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD
from tests.support.endpoints import HeapRegion
from tests.support.engine import KEY

BODY = bytes(range(256)) * 40
CHUNK_BYTES = 1000
PLAN = with_table(ChunkPlan(len(BODY), CHUNK_BYTES))
OFFER = Offer("verbs", 7, KEY, "bytes", len(BODY), "fedrdma-e", 3, CHUNK_BYTES, 0)
KEYS = DirectionKeys(bytes(32), b"k" * 32, bytes(32))
PAYLOAD_AT = 4096


class Attempt:
    """What a sender has sealed into a slot, and tells of it."""

    def __init__(self, seal: Seal = "on", held: tuple[int, ...] = ()) -> None:
        self.slot = HeapRegion(sealed_slot_bytes(ChunkPlan(len(BODY), CHUNK_BYTES), "fedrdma-e", recut=True)).slot()
        region = HeapRegion(len(BODY))
        region.view[:] = BODY
        chunks = [PLAN.chunk(index) for index in range(PLAN.trailer_count, PLAN.count)]
        sealer = PathSealer(KEYS, AES, seal).begin(OFFER.transfer, OFFER.grant, offer_digest(OFFER))
        ring = SealingRing(HeapRegion(1 << 20))
        self.source = SealedSource(Payload(region.slot(), len(BODY)), PLAN, sealer, ring, [chunks[at] for at in held])
        for chunk in chunks:
            at = PAYLOAD_AT + chunk.offset
            into = self.slot.view[at : at + chunk.length]
            if chunk.index - PLAN.trailer_count in held:
                into[:] = BODY[chunk.offset : chunk.offset + chunk.length]
            else:
                assert self.source.seal(chunk)
                into[:] = self.source.part(chunk).view
        self.told = ToldTags(self.slot.length)
        for run in self.source.take_untold():
            assert self.told.add(ChunkTags(OFFER.transfer, OFFER.grant, self.source.introduction, *run))
        opener = PathOpener(KEYS, AES, seal)
        self.kept = KeptSlot(OFFER, self.slot, Held(), opener)

    def opened(self, told: ToldTags | None = None, **changes: object) -> KeptSlot:
        return open_told(dataclasses.replace(self.kept, **changes), told or self.told).slot  # type: ignore[arg-type]

    def bytes_at(self, start: int, end: int) -> bytes:
        return bytes(self.slot.view[PAYLOAD_AT + start : PAYLOAD_AT + end])


@pytest.mark.parametrize("seal", ["on", "integrity"])
def test_what_has_come_is_open_and_held(seal: Seal) -> None:
    attempt = Attempt(seal)
    opened = attempt.opened()
    assert opened.held == Held(((0, len(BODY)),), tagged=True)
    assert opened.sealed is None
    assert attempt.bytes_at(0, len(BODY)) == BODY


@pytest.mark.parametrize("seal", ["on", "integrity"])
def test_what_has_not_come_whole_is_wiped_and_not_held(seal: Seal) -> None:
    attempt = Attempt(seal)
    attempt.slot.view[PAYLOAD_AT + 3999] ^= 1
    assert attempt.opened().held.ranges == ((0, 3000), (4000, len(BODY)))
    assert attempt.bytes_at(3000, 4000) == bytes(1000)
    assert attempt.bytes_at(4000, 5000) == BODY[4000:5000]


def test_what_no_tag_was_told_of_is_not_held() -> None:
    attempt = Attempt()
    (_, first), *_ = list(attempt.told)
    told = ToldTags(attempt.slot.length)
    told.add(ChunkTags(OFFER.transfer, OFFER.grant, attempt.source.introduction, 0, first))
    assert attempt.opened(told).held.ranges == ((0, 1000),)
    assert Attempt().opened(ToldTags(100_000)).held.ranges == ()


def test_what_its_sender_vouches_for_is_held_where_it_was_there_when_the_attempt_began() -> None:
    attempt = Attempt(held=(2, 3))
    attempt.source.vouch_for_all()
    for run in attempt.source.take_untold():
        attempt.told.add(ChunkTags(OFFER.transfer, OFFER.grant, attempt.source.introduction, *run))
    assert attempt.opened(adopted=((2000, 4000),)).held.ranges == ((0, len(BODY)),)


def test_what_was_there_and_was_written_over_is_not_held() -> None:
    attempt = Attempt(held=(2, 3))
    attempt.slot.view[PAYLOAD_AT + 2500] ^= 1
    assert attempt.opened(adopted=((2000, 4000),)).held.ranges == ((0, 2000), (3000, len(BODY)))


def test_whoever_vouches_for_what_was_not_there_does_not_learn_what_is() -> None:
    attempt = Attempt(held=(2, 3))
    assert attempt.opened(adopted=((2000, 3500),)).held.ranges == ((0, 3000), (4000, len(BODY)))
    assert attempt.bytes_at(3000, 4000) == bytes(1000)


@pytest.mark.parametrize("what", ["introduction", "offer", "keys", "plan"])
def test_what_was_sealed_for_something_else_is_not_opened(what: str) -> None:
    attempt = Attempt()
    kept, told = attempt.kept, ToldTags(attempt.slot.length)
    introduction = attempt.source.introduction
    match what:
        case "introduction":
            introduction = bytes(INTRODUCTION_BYTES)
        case "offer":
            kept = dataclasses.replace(kept, offer=msgspec.structs.replace(OFFER, transfer=8))
        case "keys":
            kept = dataclasses.replace(kept, sealed=PathOpener(KEYS._replace(chunks=b"x" * 32), AES, "on"))
        case "plan":
            kept = dataclasses.replace(kept, slot=attempt.slot.part(0, 8192))
    for number, tag in attempt.told:
        told.add(ChunkTags(OFFER.transfer, OFFER.grant, introduction, number, tag))
    assert open_told(kept, told).slot.held.ranges == ()


def test_tags_of_records_that_there_are_not_are_ignored() -> None:
    attempt = Attempt()
    assert attempt.told.add(ChunkTags(7, 3, attempt.source.introduction, 1 << 32, bytes(RECORD_OVERHEAD)))
    assert attempt.opened().held.ranges == ((0, len(BODY)),)


def test_tags_of_another_attempt_and_less_than_one_are_not_taken() -> None:
    told = ToldTags(1 << 20)
    assert told.add(ChunkTags(7, 3, b"a" * INTRODUCTION_BYTES, 0, bytes(RECORD_OVERHEAD)))
    assert not told.add(ChunkTags(7, 3, b"b" * INTRODUCTION_BYTES, 1, bytes(RECORD_OVERHEAD)))
    assert not told.add(ChunkTags(7, 3, b"a" * INTRODUCTION_BYTES, 1, bytes(RECORD_OVERHEAD - 1)))
    assert len(list(told)) == 1


def test_a_peer_fills_a_part_of_its_slot_with_tags_and_no_more_and_what_it_repeats_is_noted_once() -> None:
    told, about = ToldTags(16 * 100), b"a" * INTRODUCTION_BYTES
    taken = [told.add(ChunkTags(7, 3, about, number, bytes(RECORD_OVERHEAD))) for number in range(10)]
    assert taken == [True] * 4 + [False] * 6
    assert len(told.take_unnoted()) == 4
    assert told.add(ChunkTags(7, 3, about, 0, bytes(RECORD_OVERHEAD)))
    assert told.take_unnoted() == ()


def test_no_more_runs_are_kept_than_their_bound() -> None:
    told, about = ToldTags(1 << 30), b"a" * INTRODUCTION_BYTES
    taken = [told.add(ChunkTags(7, 3, about, number, bytes(RECORD_OVERHEAD))) for number in range(MOST_RUNS + 3)]
    assert taken.count(False) == 3
