"""Mode `fedrdma-x` on a link: chunks are lost and found, reports travel, the path is remembered."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import msgspec
import pytest

from fedrdma_fate.core.digest import MISTAGGED, TAGGED, chunk_digest, payload_digest
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.x.chunking import (
    TAGS,
    immediate_of,
)
from fedrdma_fate.core.x.sender import XSender
from fedrdma_fate.engine import incoming
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind
from fedrdma_fate.wire.errors import ErrorCode, TransportError
from fedrdma_fate.wire.frames import Abort, Delivered, GrantRequest, Offer, Refused, Report, Restart
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import KEY, Pair, outgoing, slot_for

BODY = random.Random(3).randbytes(40_000)
LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)
PATIENCE_SECONDS = 5.0


def message(transfer: int = 1, chunk_bytes: int = 1000) -> Outgoing:
    return outgoing(BODY, transfer, "fedrdma-x", chunk_bytes)


def connect(pair: Pair, service: ChunkService = LOSSY, *, datagrams: bool = True, lost: frozenset[int]) -> None:
    """A new data path of this kind."""
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams, wire.lost_chunks = service, datagrams, lost
    pair.connect(wire)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def run(pair: Pair) -> None:
    """Until nothing is due for a while."""
    pair.let_time_pass(PATIENCE_SECONDS)


def assert_delivered(pair: Pair, count: int = 1) -> None:
    bodies = [
        bytes(slot.part(payload_at, offer.total_bytes).view)
        for offer, slot, payload_at in pair.receiving.received_offers
    ]
    assert bodies == [BODY] * count
    assert len(pair.sending.sent_messages) == count


@pytest.mark.parametrize("datagrams", [True, False])
def test_chunks_that_are_lost_are_sent_again_and_no_others(pair: Pair, datagrams: bool) -> None:
    connect(pair, datagrams=datagrams, lost=frozenset({2, 17, 40}))
    pair.outgoing.submit(message(), pair.now)
    run(pair)
    assert_delivered(pair)
    ((_, stats),) = pair.sending.sent_messages
    # the last one is sent twice at once, for there is nothing else to send
    assert 3000 <= stats.resent_bytes <= 6000
    # the header is a write only where there are no datagrams
    assert stats.writes == 40 + stats.resent_bytes // 1000 + (not datagrams)


def test_a_delivery_is_told_by_a_datagram_too_for_the_control_channel_may_stall(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    pair.grant(slot_for(message()))
    pair.carry()
    pair.outgoing.submit(message(), pair.now)
    pair.carry()
    while not pair.receiving.received_offers:
        pair.progress()
    assert len(pair.receiving.take(Delivered)) == 1
    pair.progress()
    assert_delivered(pair)
    pair.outgoing.on_delivered(1, pair.now)
    assert len(pair.sending.sent_messages) == 1, "told twice, it counts once"


def test_reliable_queue_pairs_need_no_reports(pair: Pair) -> None:
    connect(pair, dataclasses.replace(LOSSY, reliable=True), datagrams=False, lost=frozenset())
    seen: list[object] = []
    pair.outgoing.on_report = seen.append  # type: ignore[method-assign, assignment]
    pair.outgoing.submit(message(), pair.now)
    run(pair)
    assert_delivered(pair)
    assert seen == []


def test_a_path_that_breaks_half_way_is_resumed_with_what_is_missing(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    pair.outgoing.submit(message(), pair.now)
    while not pair.wire.ends[1].arriving:
        pair.progress()
        pair.carry()
        for request in pair.receiving.wanted:
            pair.grant(HeapRegion(request.slot_bytes).slot(), request.transfer)
        pair.receiving.wanted.clear()
    pair.progress(most=30)
    pair.lose_path()
    connect(pair, lost=frozenset())
    run(pair)
    assert_delivered(pair)
    ((_, stats),) = pair.sending.sent_messages
    # ten of forty were missing, and went twice at once, for there was nothing else to send
    assert stats.resent_bytes == 20_000, "what had arrived was sent again"


def test_a_path_that_carries_chunks_in_another_way_is_begun_anew_on(pair: Pair) -> None:
    connect(pair, lost=frozenset(range(1, 1000)))
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    pair.lose_path()
    connect(pair, ChunkService(), datagrams=False, lost=frozenset())
    run(pair)
    assert_delivered(pair)


def test_a_path_that_loses_everything_fails_the_transfer_at_both_ends(pair: Pair) -> None:
    connect(pair, lost=frozenset(range(1, 10_000)))
    pair.outgoing.submit(message(), pair.now)
    pair.run()
    # of 60 s
    for _ in range(2000):
        due = pair.outgoing.timer()
        if due is None:
            break
        pair.now = due
        pair.outgoing.on_timer(pair.now)
        pair.run()
    assert [code.value for _, code, _ in pair.sending.send_failures] == ["FR302"]
    assert [code.value for _, code, _ in pair.receiving.receive_failures] == ["FR302"]
    assert len(pair.receiving.returned) == 1


def test_chunks_that_overtake_their_offer_count(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    first = message()
    grant = pair.grant(slot_for(first))
    pair.carry()
    pair.outgoing.submit(first, pair.now)
    offers = pair.sending.take(Offer)
    pair.progress()
    assert pair.incoming.progress() == []
    pair.sending.frames[:0] = offers
    run(pair)
    assert_delivered(pair)
    ((_, stats),) = pair.sending.sent_messages
    assert (offers[0].grant, stats.resent_bytes) == (grant, 0)


def test_of_two_grants_with_one_tag_only_the_first_serves_the_mode(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    pair.incoming.grant(5, HeapRegion(100_000).slot(), 0)
    pair.incoming.grant(5 + TAGS, HeapRegion(100_000).slot(), 0)
    pair.receiving.frames.clear()
    offer = Offer("memory", 9, KEY, "bytes", len(BODY), "fedrdma-x", 5 + TAGS, 1000, 0)
    pair.incoming.on_offer(offer, pair.now)
    assert pair.receiving.take(Restart) == [Restart("memory", 9)]
    pair.incoming.on_offer(_with(offer, grant=5), pair.now)
    assert pair.receiving.take(Restart) == []
    pair.incoming.on_offer(_with(offer, transfer=10, mode="fedrdma-e"), pair.now)
    assert pair.receiving.take(Restart) == []


def test_chunks_of_a_grant_that_ended_are_ignored(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    grant = pair.grant(HeapRegion(100_000).slot())
    pair.incoming.on_return(grant)
    late = Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate_of(grant % TAGS, 0))
    pair.incoming.on_chunk(late, pair.now)
    assert pair.incoming.progress() == []


def _early(grant: int, index: int) -> Completion:
    return Completion(CompletionKind.CHUNK_IMMEDIATE, immediate=immediate_of(grant % TAGS, index))


@pytest.mark.parametrize("early", [False, True])
def test_a_chunk_that_was_written_elsewhere_than_it_says_has_not_arrived(pair: Pair, early: bool) -> None:
    """Its digest is right, and what lies in its place is what was there before: perhaps another peer's."""
    connect(pair, ChunkService(), lost=frozenset())
    grant, other = (pair.grant(HeapRegion(100_000).slot()) for _ in range(2))
    offer = Offer("memory", 9, KEY, "bytes", 2000, "fedrdma-x", grant, 1000, 0)
    digests = [chunk_digest(bytes(1000)), 77]
    right = Completion(CompletionKind.CHUNK_IMMEDIATE, 0, immediate_of(grant % TAGS, 0), grant, 4096, 1000, digests[0])
    lies = Completion(CompletionKind.CHUNK_IMMEDIATE, 0, immediate_of(grant % TAGS, 1), grant, 5096, 1000, digests[1])
    lied: list[dict[str, int]] = [{"offset": 4096}, {"offset": 5097}, {"length": 999}, {"grant": other}]
    wrong = [msgspec.structs.replace(lies, **changes) for changes in lied]  # type: ignore[arg-type]
    header = ChunkHeader(HeaderKind.PAYLOAD, 9, 2000, 0, 2000, payload_digest(digests), 0, 2)
    pair.incoming._granted[grant].slot.view[:HEADER_BYTES] = header.encode()
    if not early:
        pair.incoming.on_offer(offer, pair.now)
    for landed in (*wrong, right):
        pair.incoming.on_chunk(landed, pair.now)
    if early:
        pair.incoming.on_offer(offer, pair.now)
    pair.incoming.on_immediate(grant, pair.now)
    assert not pair.receiving.received_offers
    pair.incoming.on_chunk(lies, pair.now)
    assert len(pair.receiving.received_offers) == 1


def test_a_chunk_that_comes_again_and_again_before_its_offer_is_kept_once(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    grant = pair.grant(HeapRegion(100_000).slot())
    for _ in range(1000):
        pair.incoming.on_chunk(_early(grant, 3), pair.now)
    assert len(pair.incoming._granted[grant].early) == 1


def test_no_more_chunks_are_kept_before_an_offer_than_the_slot_has_bytes(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    grant = pair.grant(HeapRegion(5000).slot())
    for index in range(6000):
        pair.incoming.on_chunk(_early(grant, index), pair.now)
    assert len(pair.incoming._granted[grant].early) == 5000


@pytest.mark.parametrize("reliable", [True, False])
def test_chunks_kept_before_their_offers_have_a_bound_for_the_link(
    pair: Pair, reliable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "MOST_EARLY_CHUNKS", 100)
    connect(pair, dataclasses.replace(LOSSY, reliable=reliable), lost=frozenset())
    grants = [pair.grant(HeapRegion(5000).slot()) for _ in range(2)]
    for index in range(50):
        for grant in grants:
            pair.incoming.on_chunk(_early(grant, index), pair.now)
    if reliable:
        with pytest.raises(TransportError, match="100 chunks before") as lost:
            pair.incoming.on_chunk(_early(grants[0], 50), pair.now)
        assert lost.value.code is ErrorCode.LINK_LOST
    else:
        pair.incoming.on_chunk(_early(grants[0], 50), pair.now)
    assert [len(pair.incoming._granted[grant].early) for grant in grants] == [50, 50]
    # what goes back makes room for others
    pair.incoming.on_return(grants[1])
    pair.incoming.on_chunk(_early(grants[0], 50), pair.now)
    assert len(pair.incoming._granted[grants[0]].early) == 51


def test_a_receiver_that_refuses_and_a_sender_that_gives_up_get_their_memory_back(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    for transfer, ending in ((1, Refused(1, "FR603", "twice")), (2, Abort(2, "FR303", "enough"))):
        pair.outgoing.submit(message(transfer), pair.now)
        (request,) = pair.sending.take(GrantRequest)
        pair.grant(HeapRegion(request.slot_bytes).slot(), transfer)
        pair.carry()
        pair.carry()
        if isinstance(ending, Refused):
            pair.outgoing.on_refused(1, ErrorCode(ending.code), ending.reason, pair.now)
            pair.incoming.on_abort(1, ErrorCode(ending.code), ending.reason, pair.now)
        else:
            pair.incoming.on_abort(2, ErrorCode(ending.code), ending.reason, pair.now)
            pair.outgoing.on_refused(2, ErrorCode(ending.code), ending.reason, pair.now)
    assert pair.outgoing.progress() == pair.incoming.progress() == []
    assert len(pair.receiving.returned) == 2


def test_a_report_of_an_unknown_transfer_is_ignored(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    pair.outgoing.on_report(Report(7, 0, 1, b"", 0, 0.0, 0.0, 1), pair.now)
    assert pair.sending.frames == []


def test_of_a_chunk_that_comes_twice_before_its_offer_the_later_bytes_count(pair: Pair) -> None:
    connect(pair, ChunkService(), lost=frozenset())
    grant = pair.grant(HeapRegion(5000).slot())
    for digest in (TAGGED, MISTAGGED):
        pair.incoming.on_chunk(msgspec.structs.replace(_early(grant, 3), digest=digest), pair.now)
    (kept,) = pair.incoming._granted[grant].early.values()
    assert kept.digest == MISTAGGED
    assert pair.incoming._early_chunks == 1


def test_what_is_missing_of_a_chunk_is_told_to_the_transfer_that_it_is_of_and_to_no_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(pair, lost=frozenset())
    told: list[int] = []
    monkeypatch.setattr(XSender, "on_chunk_nack", lambda sender, *_: told.append(sender.transfer))
    grants = {transfer: pair.grant(slot_for(message(transfer)), transfer) for transfer in range(1, 101)}
    for transfer in grants:
        pair.outgoing.submit(message(transfer), pair.now)
    pair.carry()
    for transfer in (7, 7, 8):
        pair.outgoing.on_chunk_nack(immediate_of(grants[transfer] % TAGS, 3), 500)
    assert told == [7, 7, 8], "one datagram of the peer's brings six thousand"
    pair.outgoing.on_delivered(7, pair.now)
    pair.outgoing.on_restart(8, pair.now)
    for transfer in (7, 8):
        pair.outgoing.on_chunk_nack(immediate_of(grants[transfer] % TAGS, 3), 500)
    assert told == [7, 7, 8]
    pair.lose_path()
    pair.outgoing.fail_all(ErrorCode.UNEXPECTED_EVENT, "the test gave up")
    pair.outgoing.on_chunk_nack(immediate_of(grants[9] % TAGS, 3), 500)
    assert told == [7, 7, 8]


# --- what is known of the path ---


def test_a_later_transfer_of_a_link_knows_the_path_also_after_it_broke(pair: Pair) -> None:
    connect(pair, lost=frozenset())
    pair.outgoing.memory.learn(PathState(8e6, 0.02, 0.0), "measured")
    pair.outgoing.submit(message(), pair.now)
    run(pair)
    learnt = pair.outgoing.memory.state
    assert learnt is not None
    pair.lose_path()
    connect(pair, lost=frozenset())
    assert pair.outgoing.memory.state == learnt


def _with(offer: Offer, **changes: object) -> Offer:
    fields = {name: getattr(offer, name) for name in offer.__struct_fields__}
    return Offer(**{**fields, **changes})  # type: ignore[arg-type]
