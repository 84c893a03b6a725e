"""Repair chunks on a link: when they go, what they save, and that nothing depends on them."""

from __future__ import annotations

import dataclasses
import importlib
import random
import sys
import threading

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import SlotLayout
from fedrdma_fate.core.x.repair_code import LARGEST_REPAIR_BYTES, MOST_REPAIR_CHUNKS, RepairPlan, plan_repairs
from fedrdma_fate.engine.outgoing import OutgoingTransfers
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.engine.repair_memory import RepairBuffer
from fedrdma_fate.engine.setup import FEW_SENDERS
from fedrdma_fate.ports import ChunkService, Region, RemoteSlot, Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError, TransportError
from fedrdma_fate.wire.frames import Offer, Refused, Report, Share
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import KEY, SETTINGS, Pair, outgoing

BODY = random.Random(5).randbytes(39_990)
"""40 chunks, the last of them shorter."""

LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)
KNOWN = PathState(rate=1e6, min_rtt=0.05, loss=0.02)
ROOM_BYTES = 100_000
PATIENCE_SECONDS = 2.0


def message(transfer: int = 1) -> Outgoing:
    return outgoing(BODY, transfer, "fedrdma-x", 1000)


def paired(lost: frozenset[int] = frozenset(), *, make: object = HeapRegion, known: PathState = KNOWN) -> Pair:
    """A link on a path of which something is known, with a credit that has room."""
    pair = Pair(dataclasses.replace(SETTINGS, repair_region=make))
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams, wire.lost_chunks = LOSSY, True, lost
    pair.connect(wire)
    pair.outgoing.memory.learn(known, "measured")
    return pair


def submit(pair: Pair, slot_bytes: int = ROOM_BYTES, transfer: int = 1) -> Offer:
    """A message goes into a credit of that length; what was offered."""
    pair.grant(HeapRegion(slot_bytes).slot())
    pair.carry()
    pair.outgoing.submit(message(transfer), pair.now)
    (offer,) = (frame for frame in pair.sending.frames if isinstance(frame, Offer))
    return offer


def bodies(pair: Pair) -> list[bytes]:
    return [
        bytes(slot.part(payload_at, offer.total_bytes).view)
        for offer, slot, payload_at in pair.receiving.received_offers
    ]


@pytest.fixture(autouse=True)
def _loaded() -> None:
    """What adding takes: without it the first transfer does without."""
    importlib.import_module("numpy")


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """Reports that the sender never gets: so nothing that it sends again can have helped."""
    seen: list[Report] = []
    monkeypatch.setattr(OutgoingTransfers, "on_report", lambda _, report, __: seen.append(report))
    return seen


def test_lost_chunks_are_there_before_the_sender_knows_that_they_are_lost(unheard: list[Report]) -> None:
    # the short one, two beside each other, one of the last to go; and a repair chunk
    pair = paired(frozenset({1, 17, 18, 39, 44}))
    offer = submit(pair)
    assert (offer.covered_chunks, offer.repair_chunks >= 8) == (40, True)
    pair.let_time_pass(0.06)
    assert bodies(pair) == [BODY]
    assert unheard
    ((_, stats),) = pair.sending.sent_messages
    assert 0 < stats.resent_bytes <= offer.repair_chunks * 1000, "as many of them as it took"


def test_more_lost_than_they_make_up_for_are_sent_again() -> None:
    pair = paired(frozenset(range(1, 30)))
    submit(pair)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair) == [BODY]


def test_without_room_in_the_slot_there_are_none_and_a_larger_one_is_wished_for() -> None:
    pair = paired(frozenset({17}))
    offer = submit(pair, SlotLayout(message().plan, "fedrdma-x").slot_bytes)
    assert (offer.covered_chunks, offer.repair_chunks) == (0, 0)
    assert offer.wished_bytes > 40_000
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair) == [BODY]
    assert submit(pair, offer.wished_bytes, 2).repair_chunks > 0


@pytest.mark.parametrize("known", [PathState(1e6, 0.05, None), PathState(1e6, 0.05, 0.0), PathState(1e6, 0.05, 0.2)])
def test_where_nothing_is_lost_or_too_much_there_are_none(known: PathState) -> None:
    offer = submit(paired(known=known))
    assert (offer.covered_chunks, offer.repair_chunks, offer.wished_bytes) == (0, 0, 0)


def test_where_they_are_turned_off_no_room_is_wished_for_either() -> None:
    offer = submit(paired(make=None))
    assert (offer.repair_chunks, offer.wished_bytes) == (0, 0)


def test_a_loss_that_no_transfer_has_found_is_no_reason_for_them() -> None:
    pair = paired()
    pair.outgoing.memory.known = KnownPath(KNOWN, "probed")
    assert submit(pair).repair_chunks == 0


def test_who_is_let_send_a_share_of_the_path_covers_what_goes_in_a_round_trip_at_that() -> None:
    pair = paired()
    alone = submit(pair)
    pair.sending.take(Offer)
    beside = paired()
    beside.outgoing.memory.told = KNOWN.rate / 2
    shared = submit(beside)
    assert 0 < shared.covered_chunks < alone.covered_chunks
    assert 0 < shared.repair_chunks < alone.repair_chunks


UNSEEN = KnownPath(PathState(1e6, 0.05, None), "probed")
"""A path whose rate a train has told, and whose loss nobody knows."""

FAST = KnownPath(PathState(4e6, 0.05, None), "probed")
"""Another, where more goes in a round trip."""


def shared_unseen() -> Pair:
    """A link that is let send half of such a path."""
    pair = paired()
    pair.outgoing.memory.known, pair.outgoing.memory.told = UNSEEN, UNSEEN.state.rate / 2
    return pair


def test_the_first_transfer_of_one_that_is_let_send_a_share_has_them_for_a_loss_that_nobody_knows() -> None:
    assert submit(shared_unseen()).repair_chunks > 0


def test_of_those_for_a_loss_that_nobody_knows_none_go_where_nothing_is_lost() -> None:
    pair = shared_unseen()
    submit(pair)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair) == [BODY]
    ((_, stats),) = pair.sending.sent_messages
    assert stats.resent_bytes == 0
    pair.sending.take(Offer)
    assert submit(pair, transfer=2).repair_chunks == 0, "it is known now that nothing is"


def test_before_who_sends_is_known_they_are_for_what_one_may_have_in_the_end() -> None:
    early, late = paired(), paired()
    for pair, part in ((early, 64), (late, FEW_SENDERS)):
        pair.outgoing.memory.known, pair.outgoing.memory.told = FAST, FAST.state.rate / part
    assert submit(early).repair_chunks == submit(late).repair_chunks > 0


def test_what_adding_takes_is_loaded_as_soon_as_a_share_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("fedrdma_fate.engine.outgoing.prepare", lambda: asked.append(True))
    pair = paired()
    pair.outgoing.on_share(Share("memory", 1, 1e6), pair.now)
    assert asked
    asked.clear()
    without = paired(make=None)
    without.outgoing.on_share(Share("memory", 1, 1e6), without.now)
    assert not asked


def test_only_one_transfer_of_a_link_at_a_time_has_them() -> None:
    pair = paired()
    assert submit(pair).repair_chunks > 0
    pair.sending.take(Offer)
    assert submit(pair, transfer=2).repair_chunks == 0
    assert pair.outgoing.memory.state is not None


@pytest.mark.usefixtures("unheard")
def test_the_next_transfer_begins_with_fresh_sums() -> None:
    pair = paired(frozenset({17}))
    submit(pair)
    pair.let_time_pass(0.06)
    pair.wire.lost_chunks = frozenset({pair.wire.chunks + 20})
    assert submit(pair, transfer=2).repair_chunks > 0
    pair.let_time_pass(0.06)
    assert bodies(pair) == [BODY, BODY]


def test_where_no_memory_can_be_had_for_them_there_are_none() -> None:
    def full(length: int) -> Region:
        raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, f"no room for {length} bytes.")

    pair = paired(frozenset({17}), make=full)
    assert submit(pair).repair_chunks == 0
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair) == [BODY]
    plan = RepairPlan(message().plan, 40, 4)
    assert RepairBuffer(None).acquire(plan, ROOM_BYTES) is None


def test_a_gateway_that_has_not_loaded_what_adding_takes_does_without_until_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("importlib.import_module", loaded.append)
    monkeypatch.delitem(sys.modules, "numpy")
    buffer = RepairBuffer(HeapRegion)
    plan = RepairPlan(message().plan, 40, 4)
    assert buffer.acquire(plan, ROOM_BYTES) is None
    for thread in threading.enumerate():
        if thread.name == "load-numpy":
            thread.join()
    assert loaded == ["numpy"]
    monkeypatch.undo()
    assert buffer.acquire(plan, ROOM_BYTES) is not None


def test_one_that_cannot_be_posted_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = paired()
    end = pair.wire.ends[0]
    post = end.post_chunk

    def refuse(request: int, source: Slot, target: RemoteSlot, at: int, queue_pair: int, immediate: int) -> None:
        if source.region.length == LARGEST_REPAIR_BYTES:
            raise TransportError(ErrorCode.TRANSPORT_UNAVAILABLE, "it cannot be registered.")
        post(request, source, target, at, queue_pair, immediate)

    monkeypatch.setattr(end, "post_chunk", refuse)
    submit(pair)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair) == [BODY]


@pytest.mark.parametrize(
    ("covered", "repairs", "slot_bytes", "code"),
    [
        (41, 4, ROOM_BYTES, "FR305"),
        (0, 4, ROOM_BYTES, "FR305"),
        (40, 1 << 20, ROOM_BYTES, "FR305"),
        (40, MOST_REPAIR_CHUNKS + 1, 2_000_000, "FR305"),
        (40, 4, 48_000, "FR304"),
    ],
)
def test_an_offer_of_senseless_ones_is_refused(covered: int, repairs: int, slot_bytes: int, code: str) -> None:
    pair = paired()
    grant = pair.grant(HeapRegion(slot_bytes).slot())
    pair.receiving.frames.clear()
    offer = Offer("memory", 9, KEY, "bytes", 40_000, "fedrdma-x", grant, 1000, 0, covered, repairs)
    pair.incoming.on_offer(offer, pair.now)
    (refused,) = pair.receiving.take(Refused)
    assert (refused.transfer, refused.code) == (9, code)


def test_a_transfer_that_is_given_up_gives_their_memory_back() -> None:
    pair = paired()
    submit(pair)
    pair.outgoing.cancel(1, ErrorCode.TRANSFER_ABORTED, "the task is gone", pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    pair.sending.take(Offer)
    assert submit(pair, transfer=2).repair_chunks > 0


def test_they_are_planned_for_what_is_under_way_when_the_last_chunk_goes() -> None:
    plan = outgoing(bytes(4_000_000), 1, "fedrdma-x", 1000).plan
    planned = plan_repairs(plan, 500, 0.01, 200_000)
    assert planned is not None
    assert planned.covered == 400
    # 2 % of the last 200, and what is lost twice of those before
    assert 4 < planned.repairs < 20
    assert plan_repairs(plan, 500, 0.01, 1000) is None, "too few to be worth it"
    more = plan_repairs(plan, 500, 0.02, 200_000)
    assert more is not None
    assert more.repairs > planned.repairs
    assert planned.within(planned.slot_bytes) == planned
    fewer = planned.within(planned.slot_bytes - 1)
    assert fewer is not None
    assert fewer.repairs == planned.repairs - 1
    assert planned.within(planned.slot_bytes - planned.repair_bytes) is None
