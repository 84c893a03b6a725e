"""Offers, grants, headers, requests by datagrams: either copy may be lost, late or come twice, and each counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from fedrdma_fate.ports import ChunkService, Completion, CompletionKind
from fedrdma_fate.wire.datagrams import Datagram, Header
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import (
    Delivered,
    Grant,
    GrantRequest,
    GrantReturn,
    MessageKey,
    Offer,
    Party,
    Reconcile,
    Refused,
    Report,
    Restart,
)
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import KEY, Pair, datagram_in, outgoing

BODY = random.Random(4).randbytes(20_000)
LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)


class Lossy(Pair):
    """One whose data path hands datagrams to the test first.

    Attributes:
        lost: kinds of datagrams that the path loses.
        datagrams: what came through, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lost: set[type[Datagram]] = set()
        self.datagrams: list[Datagram] = []

    def new_path(self) -> None:
        wire = MemoryWire()
        wire.chunk_service, wire.has_datagrams = LOSSY, True
        self.connect(wire)

    def lets_through(self, completion: Completion) -> bool:
        if completion.kind is not CompletionKind.DATAGRAM:
            return True
        datagram = datagram_in(completion.data)
        if type(datagram) in self.lost:
            return False
        self.datagrams.append(datagram)
        return True

    def pass_time(self, seconds: float) -> None:
        ends_at = self.now + seconds
        while self.now < ends_at:
            self.now += 0.001
            for half in (self.outgoing, self.incoming):
                due = half.timer()
                if due is not None and self.now >= due:
                    half.on_timer(self.now)
            self.progress()

    def came(self, kind: type[Datagram]) -> int:
        return sum(isinstance(datagram, kind) for datagram in self.datagrams)

    def submit(self, transfer: int = 1, key: MessageKey = KEY) -> None:
        self.outgoing.submit(outgoing(BODY, transfer, "fedrdma-x", 1000, key), self.now)

    def bodies(self) -> list[bytes]:
        return [bytes(slot.part(at, offer.total_bytes).view) for offer, slot, at in self.receiving.received_offers]


@pytest.fixture
def pair() -> Iterator[Lossy]:
    made = Lossy()
    made.new_path()
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def credit(pair: Lossy) -> int:
    """A slot that is granted ahead, told by both ways."""
    return pair.grant(HeapRegion(100_000).slot())


def test_without_the_control_channel_a_message_comes_whole_into_a_granted_slot(pair: Lossy) -> None:
    credit(pair)
    pair.progress()
    pair.submit()
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]
    assert len(pair.sending.sent_messages) == 1
    # then what the control channel had to say comes, late
    kinds = [type(frame) for frame in (*pair.receiving.frames, *pair.sending.frames)]
    assert kinds == [Grant, Delivered, Offer]
    pair.run()
    assert (pair.sending.frames, pair.receiving.frames) == ([], [])
    assert len(pair.receiving.received_offers) == len(pair.sending.sent_messages) == 1
    pair.submit(2)
    assert len(pair.sending.take(GrantRequest)) == 1, "the slot that was used is not granted a second time"


def test_without_datagrams_getting_through_offer_and_grant_come_by_the_control_channel(pair: Lossy) -> None:
    pair.lost = {Offer, Grant, Delivered}
    credit(pair)
    pair.submit()
    pair.pass_time(0.1)
    assert pair.outgoing.progress()[0].state == "waiting-for-grant"
    pair.run()
    pair.pass_time(0.1)
    pair.run()
    assert pair.bodies() == [BODY]
    assert len(pair.sending.sent_messages) == 1


def test_the_offer_is_repeated_a_few_times_until_the_first_report(pair: Lossy) -> None:
    credit(pair)
    pair.progress()
    pair.lost = {Report, Delivered}
    pair.submit()
    pair.pass_time(0.2)
    assert pair.came(Offer) == 5
    pair.lost = {Offer}
    pair.submit(2)
    credit(pair)
    pair.progress()
    pair.lost = set()
    pair.pass_time(0.2)
    assert len(pair.bodies()) == 2
    assert pair.came(Offer) <= 7, "the first was lost, the next was answered"


def test_an_offer_too_long_for_a_datagram_goes_by_the_control_channel_alone(pair: Lossy) -> None:
    credit(pair)
    pair.progress()
    pair.submit(key=MessageKey("s" * 5000, "model", "0", Party("guest", "1"), Party("host", "2")))
    pair.pass_time(0.1)
    assert pair.incoming.progress() == []
    pair.run()
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]


@pytest.mark.parametrize("ending", ["delivered", "aborted", "running"])
def test_an_offer_that_comes_again_by_either_way_changes_nothing(pair: Lossy, ending: str) -> None:
    credit(pair)
    pair.progress()
    pair.submit()
    (offer,) = pair.sending.take(Offer)
    pair.incoming.on_early_offer(offer, pair.now)
    if ending == "delivered":
        pair.pass_time(0.1)
    elif ending == "aborted":
        pair.incoming.on_abort(1, ErrorCode.TRANSFER_ABORTED, "enough", pair.now)
    pair.receiving.frames.clear()
    before = [len(pair.receiving.received_offers), len(pair.receiving.returned), pair.incoming.progress()]
    for _ in range(2):
        pair.incoming.on_offer(offer, pair.now)
        pair.incoming.on_early_offer(offer, pair.now)
    assert pair.receiving.frames == []
    assert [len(pair.receiving.received_offers), len(pair.receiving.returned), pair.incoming.progress()] == before


def test_a_late_datagram_never_restarts_a_transfer_that_was_begun_anew(pair: Lossy) -> None:
    grant = credit(pair)
    pair.carry()
    pair.progress()
    pair.lost = {Offer}
    pair.submit()
    (old,) = pair.sending.take(Offer)
    pair.progress()
    pair.lost = set()
    pair.incoming.on_return(grant)
    pair.incoming.on_early_offer(old, pair.now)
    assert pair.receiving.take(Restart) == [], "the frame is answered, not the datagram"
    pair.incoming.on_offer(old, pair.now)
    assert pair.receiving.take(Restart) == [Restart("memory", 1)]
    pair.outgoing.on_restart(1, pair.now)
    credit(pair)
    pair.carry()
    pair.incoming.on_early_offer(old, pair.now)
    assert pair.receiving.frames == []
    pair.run()
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]


def test_an_offer_that_does_not_fit_its_slot_is_refused_when_its_frame_comes_and_once(pair: Lossy) -> None:
    credit(pair)
    pair.progress()
    pair.submit()
    (offer,) = pair.sending.take(Offer)
    pair.receiving.frames.clear()
    too_long = msgspec.structs.replace(offer, total_bytes=1 << 20)
    pair.incoming.on_early_offer(too_long, pair.now)
    assert (pair.receiving.frames, pair.incoming.progress(), pair.receiving.returned) == ([], [], [])
    pair.incoming.on_offer(too_long, pair.now)
    assert [type(frame) for frame in pair.receiving.frames] == [Refused]
    assert len(pair.receiving.returned) == 1


# --- grants ---


def grants_of(pair: Lossy) -> list[Grant]:
    return pair.receiving.take(Grant)


def test_a_grant_that_comes_by_both_ways_in_any_order_is_one(pair: Lossy) -> None:
    for order in (("frame", "datagram"), ("datagram", "frame"), ("datagram", "datagram", "frame", "datagram")):
        pair.incoming.grant(100 + len(pair.receiving.returned), HeapRegion(100_000).slot(), 0)
        pair.wire.ends[0].progress()
        (grant,) = grants_of(pair)
        for way in order:
            take = pair.outgoing.on_grant if way == "frame" else pair.outgoing.on_early_grant
            take(grant, pair.now)
        pair.outgoing.on_recall(grant.grant)
        pair.outgoing.on_recall(grant.grant)
        assert pair.sending.take(GrantReturn) == [GrantReturn("memory", grant.grant)]
        pair.incoming.on_return(grant.grant)


def test_a_late_copy_revives_no_grant_that_was_recalled_used_or_given_back(pair: Lossy) -> None:
    first, second = credit(pair), credit(pair)
    pair.wire.ends[0].progress()
    one, two = grants_of(pair)
    assert (one.grant, two.grant) == (first, second)
    pair.outgoing.on_grant(one, pair.now)
    pair.outgoing.on_recall(first)
    pair.outgoing.on_early_grant(two, pair.now)
    pair.submit()
    pair.pass_time(0.1)
    pair.sending.frames.clear()
    for late in (one, two):
        pair.outgoing.on_early_grant(late, pair.now)
    pair.outgoing.on_grant(two, pair.now)
    pair.submit(2)
    assert [type(frame) for frame in pair.sending.frames] == [GrantRequest], "there is no slot left"


def test_a_grant_that_was_asked_for_comes_by_a_datagram_too(pair: Lossy) -> None:
    pair.submit()
    (request,) = pair.sending.take(GrantRequest)
    pair.grant(HeapRegion(request.slot_bytes).slot(), 1)
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]
    pair.carry()
    assert pair.sending.frames == [], "the frame gives nothing back"


def test_a_frame_late_from_the_old_path_does_not_resume_a_transfer_and_the_renewed_grant_does(pair: Lossy) -> None:
    credit(pair)
    (old,) = grants_of(pair)
    pair.lost = {Report, Delivered, Header}
    pair.progress()
    pair.submit()
    pair.progress(most=3)
    pair.lose_path()
    pair.lost = set()
    pair.new_path()
    (renewed,) = grants_of(pair)
    pair.outgoing.on_grant(old, pair.now)
    assert pair.outgoing.progress()[0].state == "paused"
    pair.outgoing.on_grant(renewed, pair.now)
    assert pair.outgoing.progress()[0].state == "sending"
    assert len(pair.sending.take(Reconcile)) == 1
    pair.pass_time(0.2)
    assert pair.bodies() == [BODY]


def test_after_the_control_channel_was_lost_a_grant_with_the_same_key_is_no_copy(pair: Lossy) -> None:
    credit(pair)
    (grant,) = grants_of(pair)
    pair.outgoing.on_early_grant(grant, pair.now)
    pair.submit()
    pair.lose_path()
    pair.outgoing.control_lost()
    pair.new_path()
    pair.outgoing.on_grant(grant, pair.now)
    assert pair.outgoing.progress()[0].state == "sending"


# --- headers ---


def test_a_header_that_is_lost_is_sent_again_until_the_delivery_is_known(pair: Lossy) -> None:
    credit(pair)
    pair.lost = {Header}
    pair.progress()
    pair.submit()
    pair.pass_time(0.3)
    assert pair.incoming.progress()[0].done_bytes == len(BODY)
    assert pair.bodies() == []
    pair.lost = {Delivered}
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]
    assert pair.sending.sent_messages == []
    pair.lost = set()
    pair.pass_time(0.1)
    assert len(pair.sending.sent_messages) == 1, "the header that came again was answered again"
    assert pair.outgoing.timer() is None


def test_a_header_that_overtakes_the_offer_counts(pair: Lossy) -> None:
    credit(pair)
    pair.progress()
    pair.lost = {Offer}
    pair.submit()
    pair.pass_time(0.1)
    assert pair.incoming.progress() == []
    pair.lost = {Offer, Header}
    pair.run()
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]


def test_a_header_that_is_damaged_of_no_grant_or_of_an_aborted_transfer_is_ignored(pair: Lossy) -> None:
    grant = credit(pair)
    pair.lost = {Header}
    pair.progress()
    pair.submit()
    pair.pass_time(0.1)
    for header in (Header(grant, b"x" * 64), Header(grant, b""), Header(grant + 1, b"x" * 64)):
        pair.incoming.on_header(header, pair.now)
    assert pair.incoming.progress()[0].state == "receiving"
    pair.incoming.on_abort(1, ErrorCode.TRANSFER_ABORTED, "enough", pair.now)
    pair.receiving.frames.clear()
    pair.datagrams.clear()
    pair.lost = set()
    pair.pass_time(0.2)
    assert (pair.receiving.frames, pair.came(Delivered), pair.bodies()) == ([], 0, [])


# --- requests for slots ---


def serve(pair: Lossy) -> int:
    """What a gateway does for the requests that came by datagrams: each transfer gets a slot once; how many came."""
    asked, pair.receiving.wanted_early = pair.receiving.wanted_early, []
    for request in {request.transfer: request for request in asked}.values():
        pair.grant(HeapRegion(request.slot_bytes).slot(), request.transfer)
    return len(asked)


def test_without_the_control_channel_a_message_that_asks_for_a_slot_comes_whole(pair: Lossy) -> None:
    pair.submit()
    pair.progress()
    assert serve(pair) == 1
    pair.pass_time(0.1)
    assert pair.bodies() == [BODY]
    assert len(pair.sending.sent_messages) == 1
    # then the request comes as a frame, late: whoever grants knows of the transfer that it has ended
    assert [type(frame) for frame in pair.sending.frames] == [GrantRequest, Offer]
    pair.carry()
    assert [request.transfer for request in pair.receiving.wanted] == [1]
    assert pair.outgoing.timer() is None


def test_a_request_is_repeated_a_few_times_until_there_is_a_slot(pair: Lossy) -> None:
    pair.lost = {GrantRequest}
    pair.submit()
    pair.pass_time(0.01)
    assert serve(pair) == 0
    pair.lost = set()
    pair.pass_time(0.01)
    assert serve(pair) == 1
    pair.pass_time(0.2)
    assert pair.bodies() == [BODY]
    assert pair.came(GrantRequest) == 1, "it has a slot"
    pair.submit(2)
    pair.pass_time(1.0)
    assert pair.came(GrantRequest) == 1 + 5, "the frame is on its way, and there may be no room"


def test_the_answer_to_a_request_that_is_lost_is_given_again_to_the_next(pair: Lossy) -> None:
    pair.lost = {Grant}
    pair.submit()
    pair.pass_time(0.003)
    assert serve(pair) > 0
    pair.pass_time(0.001)
    pair.lost = set()
    pair.pass_time(0.03)
    assert pair.bodies() == [BODY]
    assert serve(pair) == 0, "the link knows what it has granted"


def test_a_request_is_not_repeated_on_a_path_that_is_lost_or_for_a_message_that_is_given_up(pair: Lossy) -> None:
    pair.submit()
    pair.lose_path()
    assert pair.outgoing.timer() is None
    pair.new_path()
    pair.pass_time(0.001)
    assert pair.came(GrantRequest) == 1, "asked anew on the next"
    pair.outgoing.cancel(1, ErrorCode.TRANSFER_ABORTED, "enough", pair.now)
    assert pair.outgoing.timer() is None


def test_a_slot_that_comes_too_late_for_its_transfer_is_given_back(pair: Lossy) -> None:
    pair.submit()
    pair.progress()
    pair.outgoing.cancel(1, ErrorCode.TRANSFER_ABORTED, "enough", pair.now)
    pair.carry()
    pair.receiving.wanted.clear()
    # the frame has said that it was given up, and now comes the datagram
    assert serve(pair) == 1
    pair.run()
    assert len(pair.receiving.returned) == 1


def test_a_slot_ahead_that_is_too_short_goes_back_by_a_datagram_too_ahead_of_the_request(pair: Lossy) -> None:
    ring, outgrown = HeapRegion(1000).slot(), HeapRegion(2000).slot()
    pair.grant(ring)
    pair.grant(outgrown)
    pair.progress()
    pair.submit()
    pair.progress()
    assert pair.receiving.returned == [outgrown]
    assert [type(datagram) for datagram in pair.datagrams if isinstance(datagram, GrantReturn | GrantRequest)] == [
        GrantReturn,
        GrantReturn,
        GrantRequest,
    ]
    assert serve(pair) == 1
    pair.pass_time(0.1)
    pair.carry()
    assert pair.receiving.returned == [outgrown], "once"
    assert pair.bodies() == [BODY]


def test_a_request_for_another_data_path_is_none_of_this_one(pair: Lossy) -> None:
    for stray in (GrantRequest("verbs", 1, 4096), GrantReturn("verbs", 1)):
        slot = HeapRegion(100_000).slot()
        pair.grant(slot)
        pair.sender._datagrams.post(stray)
        pair.progress()
        assert (pair.receiving.wanted_early, pair.receiving.returned) == ([], [])
