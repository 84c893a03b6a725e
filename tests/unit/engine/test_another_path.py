"""A data path is given up in the middle of a transfer: on the next, what has arrived is not sent again."""

from __future__ import annotations

import dataclasses
import random
from collections import deque

import msgspec
import pytest

from fedrdma_fate.core.held import Held
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Grant, GrantRequest, Mode
from fedrdma_fate.wire.header import HEADER_BYTES
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing

BODY = random.Random(7).randbytes(40_000)
KNOWS = dataclasses.replace(SETTINGS, tells_digests=lambda: True, continues=lambda: True)
MODES: tuple[Mode, ...] = ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x")
CARRIES = {
    "stream": ChunkService(),
    "queue pairs": ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500),
}


def wire_of(kind: str) -> MemoryWire:
    wire = MemoryWire()
    wire.chunk_service = CARRIES[kind]
    wire.has_datagrams = kind == "queue pairs"
    return wire


def run(pair: Pair, kept: KeptSlot | None = None) -> None:
    """Whoever asks for a slot gets this one, or another."""
    for _ in range(400):
        for request in pair.receiving.wanted:
            answer(pair, request, kept)
            kept = None
        pair.receiving.wanted.clear()
        pair.progress()
        due = [timer for timer in (pair.outgoing.timer(), pair.incoming.timer()) if timer is not None]
        if not pair.carry() and not any(end.arriving for end in pair.wire.ends) and not pair.receiving.wanted:
            if not due or min(due) > pair.now + 5:
                return
            pair.now = max(pair.now, min(due))
            pair.outgoing.on_timer(pair.now)
            pair.incoming.on_timer(pair.now)


def answer(pair: Pair, request: GrantRequest, kept: KeptSlot | None) -> None:
    pair._next_grant += 1
    slot = HeapRegion(request.slot_bytes).slot() if kept is None else kept.slot
    pair.receiver.grant(pair._next_grant, slot, request.transfer, kept)


def interrupted(mode: Mode, kind: str, after_bytes: int = 21_000, pair: Pair | None = None) -> tuple[Outgoing, Pair]:
    """A transfer whose link ends when about so much has arrived."""
    pair = pair or Pair(KNOWS)
    pair.connect(wire_of(kind))
    message = outgoing(BODY, mode=mode)
    pair.outgoing.submit(message, pair.now)
    while pair.incoming.progress() == [] or pair.incoming.progress()[0].done_bytes < after_bytes:
        for request in pair.receiving.wanted:
            answer(pair, request, None)
        pair.receiving.wanted.clear()
        pair.carry()
        pair.progress(most=2)
        due = pair.outgoing.timer()
        if due is not None and due > pair.now:
            pair.now = min(due, pair.now + 0.001)
            pair.outgoing.on_timer(pair.now)
            pair.incoming.on_timer(pair.now)
    pair.sender.end(deque())
    pair.receiver.end(deque())
    return message, pair


def go_on(message: Outgoing, kind: str, kept: KeptSlot | None, before: Pair, *, knows: bool = True) -> Pair:
    pair = Pair(KNOWS if knows else SETTINGS)
    pair._next_grant = 100
    pair.now = before.now
    pair.connect(wire_of(kind))
    pair.outgoing.submit(message, pair.now)
    run(pair, kept)
    return pair


def delivered(pair: Pair) -> list[bytes]:
    return [bytes(slot.part(at, offer.total_bytes).view) for offer, slot, at in pair.receiving.received_offers]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", CARRIES)
@pytest.mark.parametrize("second", CARRIES)
def test_what_has_arrived_is_not_sent_again_on_another_path(mode: Mode, first: str, second: str) -> None:
    message, before = interrupted(mode, first)
    (kept,) = before.receiving.kept
    assert before.receiving.returned == []
    after = go_on(message, second, kept, before)
    assert delivered(after) == [BODY]
    # one chunk may have been under way, whose acknowledgement was not; and there are headers
    headers = HEADER_BYTES * 41
    assert after.wire.landed_bytes <= len(BODY) - 20_000 + headers + (3000 if second == "queue pairs" else 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk_bytes", [300, 999, 7000, 40_000])
def test_it_may_be_cut_otherwise_on_the_next_path(mode: Mode, chunk_bytes: int) -> None:
    message, before = interrupted(mode, "stream")
    (kept,) = before.receiving.kept
    # room for a longer staged chunk
    slot = HeapRegion(200_000).slot()
    slot.view[: kept.slot.length] = kept.slot.view
    message = dataclasses.replace(message, plan=dataclasses.replace(message.plan, chunk_bytes=chunk_bytes))
    after = go_on(message, "stream", dataclasses.replace(kept, slot=slot), before)
    assert delivered(after) == [BODY]
    saved = len(BODY) - after.wire.landed_bytes
    assert saved >= 20_000 - chunk_bytes - HEADER_BYTES * -(-len(BODY) // chunk_bytes)


@pytest.mark.parametrize("mode", MODES)
def test_without_the_slot_it_is_sent_whole(mode: Mode) -> None:
    message, before = interrupted(mode, "stream")
    after = go_on(message, "stream", None, before)
    assert delivered(after) == [BODY]
    assert after.wire.landed_bytes > len(BODY)


@pytest.mark.parametrize("mode", MODES)
def test_a_peer_that_does_not_know_it_is_given_other_slots(mode: Mode) -> None:
    message, before = interrupted(mode, "stream", pair=Pair(SETTINGS))
    assert before.receiving.kept == []
    assert len(before.receiving.returned) == 1
    after = go_on(message, "stream", None, before, knows=False)
    assert delivered(after) == [BODY]


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e", "fedrdma-x"])
@pytest.mark.parametrize("second", CARRIES)
def test_what_was_damaged_on_the_first_path_costs_the_damaged_chunk(mode: Mode, second: str) -> None:
    message, before = interrupted(mode, "stream")
    (kept,) = before.receiving.kept
    start, _ = kept.held.ranges[-1]
    kept.slot.view[4096 + start + 500] ^= 1
    after = go_on(message, second, kept, before)
    assert delivered(after) == [BODY]
    assert after.wire.landed_bytes <= len(BODY) - 20_000 + 1000 + HEADER_BYTES * 4 + 6000 * (second == "queue pairs")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", ["key", "length", "kind"])
def test_another_payload_under_the_same_number_does_not_go_on_there(mode: Mode, change: str) -> None:
    message, before = interrupted(mode, "stream")
    (kept,) = before.receiving.kept
    other = random.Random(8).randbytes(len(BODY) - 1000 if change == "length" else len(BODY))
    wrong = outgoing(other, mode=mode)
    if change == "key":
        wrong = dataclasses.replace(wrong, key=msgspec.structs.replace(message.key, name="another"))
    elif change == "kind":
        wrong = dataclasses.replace(wrong, kind="object")
    after = go_on(wrong, "stream", kept, before)
    assert delivered(after) == [other]
    assert after.wire.landed_bytes > len(other)


@pytest.mark.parametrize("mode", MODES)
def test_a_link_that_is_lost_before_anything_comes_gives_the_slot_back_to_go_on_in(mode: Mode) -> None:
    message, before = interrupted(mode, "stream")
    (kept,) = before.receiving.kept
    pair = Pair(KNOWS)
    pair._next_grant = 100
    pair.connect()
    pair.outgoing.submit(message, pair.now)
    pair.carry()
    answer(pair, pair.receiving.wanted.pop(), kept)
    pair.lose_path()
    assert pair.receiving.kept == [kept]
    assert pair.receiving.returned == []


@pytest.mark.parametrize(
    "held", [((5, 5),), ((7, 3),), ((0, 10), (5, 20)), ((0, 40_001),), ((-3, 5),), ((0, 9), (9, 20))]
)
@pytest.mark.parametrize("mode", MODES)
def test_what_a_peer_says_it_holds_is_believed_only_where_it_makes_sense(
    mode: Mode, held: tuple[tuple[int, int], ...]
) -> None:
    message = outgoing(BODY, mode=mode)
    grant = Grant("memory", 5, 1, 0, 50_000, 1, 3, held)
    assert message.held_in(grant) == ()
    message.so_far.at = 3, ((0, 1000),)
    assert message.held_in(grant) == (((0, 1000),) if mode in ("grpc", "fedrdma-e") else ())


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_says_it_holds_all_of_what_it_does_not_gets_nothing(mode: Mode) -> None:
    message, before = interrupted(mode, "stream")
    (kept,) = before.receiving.kept
    lie = dataclasses.replace(kept, held=Held(((0, len(BODY)),)))
    after = go_on(message, "stream", lie, before)
    assert all(body == BODY for body in delivered(after))
    assert {code for _, code, _ in after.sending.send_failures} <= {ErrorCode.IDLE_TIMEOUT}


def test_what_lay_there_before_does_not_count_as_having_come_by_the_next_path() -> None:
    message, before = interrupted("fedrdma-x", "queue pairs")
    (kept,) = before.receiving.kept
    pair = Pair(KNOWS)
    pair.connect(wire_of("queue pairs"))
    pair.outgoing.submit(message, pair.now)
    pair.carry()
    pair.progress(most=0)
    (request,) = pair.receiving.wanted
    answer(pair, request, kept)
    pair.carry()
    active = pair.outgoing._active[message.transfer]
    assert active.sender.arrived_bytes >= 20_000
    assert active.sender.delivered_bytes == 0
    assert pair.sender.deliveries.received_bytes == 0
