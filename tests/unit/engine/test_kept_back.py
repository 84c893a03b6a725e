"""What is cut for a path of which nothing is known yet waits for what the first train tells, and no longer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.ports import ChunkService
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import GrantRequest, GrantReturn
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing

BODY = random.Random(5).randbytes(40_000)
LOSSY = ChunkService(reliable=False, self_paced=False, mtu_bytes=1024)
SLOW = PathState(2.5e6, 0.02, None)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(SETTINGS)
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    made.connect(wire)
    made.outgoing.memory.awaits_train = True
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def message(*, recut: bool = True) -> Outgoing:
    return dataclasses.replace(outgoing(BODY, 1, "fedrdma-x", 16 * 1024), recut=recut)


def told(pair: Pair) -> None:
    pair.outgoing.memory.awaits_train = False
    pair.outgoing.on_path_told(pair.now)


def chunk_bytes(pair: Pair) -> list[int]:
    return [active.outgoing.plan.chunk_bytes for active in pair.outgoing._active.values()]


@pytest.mark.parametrize("is_granted_ahead", [False, True])
def test_a_transfer_begins_when_the_train_has_told_and_is_cut_for_that(pair: Pair, is_granted_ahead: bool) -> None:
    pair.outgoing.submit(message(), pair.now)
    if is_granted_ahead:
        pair.grant(HeapRegion(2 * len(BODY)).slot())
    pair.run()
    assert not chunk_bytes(pair)
    assert len(pair.outgoing._granted) == 1, "it has asked, and is granted a slot meanwhile"
    pair.outgoing.memory.learn(SLOW, "probed")
    told(pair)
    pair.run()
    assert chunk_bytes(pair) == [LOSSY.mtu_bytes], "one packet, for the path is slow"


def test_a_second_slot_that_comes_for_it_meanwhile_is_given_back(pair: Pair) -> None:
    pair.outgoing.submit(message(), pair.now)
    (request,) = pair.sending.take(GrantRequest)
    # one that was granted ahead is there before the one that it has asked for
    ahead, asked_for = HeapRegion(2 * len(BODY)).slot(), HeapRegion(request.slot_bytes).slot()
    pair.grant(ahead)
    pair.carry()
    pair.grant(asked_for, request.transfer)
    pair.run()
    assert pair.receiving.returned == [asked_for]
    told(pair)
    pair.let_time_pass(5.0)
    assert [slot for _, slot, _ in pair.receiving.received_offers] == [ahead]


def test_one_that_is_given_up_meanwhile_gives_its_slot_back(pair: Pair) -> None:
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    pair.outgoing.cancel(1, ErrorCode.IDLE_TIMEOUT, "no more", pair.now)
    told(pair)
    assert [frame.grant for frame in pair.sending.take(GrantReturn)] == [1]
    assert not pair.outgoing.under_way


def test_where_nothing_is_told_it_begins_all_the_same(pair: Pair) -> None:
    pair.outgoing.submit(message(), pair.now)
    told(pair)
    pair.let_time_pass(5.0)
    assert len(pair.sending.sent_messages) == 1


def test_what_is_cut_by_hand_is_not_kept_back(pair: Pair) -> None:
    pair.outgoing.submit(message(recut=False), pair.now)
    pair.let_time_pass(5.0)
    assert len(pair.sending.sent_messages) == 1


def test_a_path_that_is_lost_meanwhile_takes_it_along(pair: Pair) -> None:
    pair.outgoing.submit(message(), pair.now)
    pair.lose_path()
    told(pair)
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)
    pair.let_time_pass(5.0)
    assert len(pair.sending.sent_messages) == 1
