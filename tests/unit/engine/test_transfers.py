"""The sending and the receiving half of a link: memory comes back however a transfer ends.

More than 500 lines: each way to end has its test.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

from fedrdma_fate.core.plan import SlotLayout
from fedrdma_fate.engine.outgoing import _MOST_RESTARTS
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, TransferError, TransportError
from fedrdma_fate.wire.frames import (
    Abort,
    Delivered,
    Grant,
    GrantRecall,
    GrantRequest,
    GrantReturn,
    Mode,
    Offer,
    Reconcile,
    Refused,
    Restart,
)
from tests.support.endpoints import HeapRegion, MemoryEndpoint
from tests.support.engine import KEY, SETTINGS, Pair, outgoing, slot_for

MODES: tuple[Mode, ...] = ("fedrdma-e", "fedrdma", "grpc", "fedrdma-x")
BODY = random.Random(7).randbytes(4567)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.connect()
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def delivered_bytes(pair: Pair) -> list[bytes]:
    return [
        bytes(slot.part(payload_at, offer.total_bytes).view)
        for offer, slot, payload_at in pair.receiving.received_offers
    ]


def half_way(pair: Pair, mode: Mode = "fedrdma-e") -> Slot:
    """A transfer of which one chunk has landed; its receive slot."""
    message = outgoing(BODY, mode=mode)
    slot = slot_for(message)
    pair.grant(slot)
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    pair.carry()
    pair.progress(most=1)
    assert pair.incoming.progress()
    assert pair.outgoing.progress()
    return slot


# --- the ordinary way ---


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [0, 1, 999, 1000, 1001, 4567])
def test_a_credit_carries_a_message_without_asking(pair: Pair, mode: Mode, length: int) -> None:
    message = outgoing(BODY[:length], mode=mode)
    pair.grant(slot_for(message))
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    assert pair.sending.take(GrantRequest) == []
    pair.run()
    assert delivered_bytes(pair) == [BODY[:length]]
    assert [sent for sent, _ in pair.sending.sent_messages] == [message]


def test_without_a_credit_that_holds_it_a_slot_is_asked_for(pair: Pair) -> None:
    message = outgoing(BODY)
    pair.grant(HeapRegion(5000).slot())
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    needed = SlotLayout(message.plan, message.mode).slot_bytes
    assert pair.sending.frames == [GrantRequest("memory", 1, needed, message.key)]
    pair.run()
    assert delivered_bytes(pair) == [BODY]


def test_data_that_comes_before_its_offer_is_found(pair: Pair) -> None:
    message = outgoing(b"x" * 10)
    pair.grant(slot_for(message))
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    pair.progress()
    assert pair.receiving.received_offers == []
    pair.run()
    assert delivered_bytes(pair) == [b"x" * 10]


# --- memory comes back ---


def test_a_slot_granted_without_a_data_path_comes_back_at_once() -> None:
    pair = Pair()
    slot = HeapRegion(5000).slot()
    pair.grant(slot)
    assert pair.receiving.returned == [slot]


def test_unused_grants_come_back_when_the_data_path_is_lost(pair: Pair) -> None:
    credit, asked = HeapRegion(5000).slot(), HeapRegion(6000).slot()
    pair.grant(credit)
    pair.grant(asked, transfer=9)
    pair.lose_path()
    assert pair.receiving.returned == [credit, asked]


def test_a_grant_that_nobody_waits_for_any_more_is_given_back(pair: Pair) -> None:
    slot = HeapRegion(5000).slot()
    pair.grant(slot, transfer=77)
    pair.carry()
    assert pair.sending.frames == [GrantReturn("memory", 1)]
    pair.carry()
    assert pair.receiving.returned == [slot]


def test_a_recalled_credit_is_given_back_and_one_in_use_is_not(pair: Pair) -> None:
    message = outgoing(b"y" * 10)
    used, unused = slot_for(message), HeapRegion(90_000).slot()
    pair.grant(used)
    pair.grant(unused)
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    assert pair.incoming.idle_credits() == [1, 2]
    pair.outgoing.on_recall(1)
    pair.outgoing.on_recall(2)
    assert pair.sending.take(GrantReturn) == [GrantReturn("memory", 2)]
    pair.run()
    assert delivered_bytes(pair) == [b"y" * 10]


def test_a_transfer_served_by_a_credit_gives_the_slot_back_that_it_had_asked_for(pair: Pair) -> None:
    message = outgoing(BODY)
    pair.outgoing.submit(message, pair.now)
    assert len(pair.sending.take(GrantRequest)) == 1
    asked = slot_for(message)
    pair.grant(slot_for(message))
    pair.grant(asked, transfer=1)
    pair.run()
    assert delivered_bytes(pair) == [BODY]
    assert pair.receiving.returned == [asked]


@pytest.mark.parametrize("mode", MODES)
def test_an_aborted_transfer_gives_its_slot_back(pair: Pair, mode: Mode) -> None:
    slot = half_way(pair, mode)
    pair.incoming.on_abort(1, ErrorCode.IDLE_TIMEOUT, "no progress", pair.now)
    assert pair.receiving.returned == [slot]
    assert [code for _, code, _ in pair.receiving.receive_failures] == [ErrorCode.IDLE_TIMEOUT]
    assert pair.incoming.progress() == []


def test_an_abort_before_the_offer_gives_the_slot_back_that_was_asked_for(pair: Pair) -> None:
    slot = HeapRegion(5000).slot()
    pair.grant(slot, transfer=1)
    pair.incoming.on_abort(1, ErrorCode.IDLE_TIMEOUT, "no progress", pair.now)
    assert pair.receiving.returned == [slot]


def test_an_offer_that_does_not_fit_is_refused_and_gives_its_grant_back(pair: Pair) -> None:
    slot = HeapRegion(5000).slot()
    pair.grant(slot)
    pair.incoming.on_offer(_offer(total_bytes=10_000), pair.now)
    (refused,) = pair.receiving.take(Refused)
    assert (refused.transfer, refused.code) == (1, ErrorCode.GRANT_VIOLATION.value)
    assert pair.receiving.returned == [slot]


@pytest.mark.parametrize("change", [{"chunk_bytes": 0}, {"total_bytes": -1}, {"enable_bytes": 99_999}])
def test_a_senseless_offer_is_refused_and_gives_its_grant_back(pair: Pair, change: dict[str, int]) -> None:
    slot = HeapRegion(5000).slot()
    pair.grant(slot)
    pair.incoming.on_offer(_offer(**change), pair.now)
    (refused,) = pair.receiving.take(Refused)
    assert refused.code == ErrorCode.UNEXPECTED_EVENT.value
    assert pair.receiving.returned == [slot]


def test_a_declined_offer_gives_its_grant_back_with_the_answer(pair: Pair) -> None:
    slot = HeapRegion(5000).slot()
    pair.grant(slot)
    pair.receiving.frames.clear()
    pair.incoming.decline(_offer(), Delivered(1))
    assert pair.receiving.frames == [Delivered(1)]
    assert pair.receiving.returned == [slot]


def test_an_offer_for_a_grant_that_was_taken_back_begins_anew(pair: Pair) -> None:
    pair.incoming.on_offer(_offer(grant=5), pair.now)
    assert pair.receiving.frames == [Restart("memory", 1)]


def test_a_restarted_transfer_gives_its_grant_back_and_asks_again(pair: Pair) -> None:
    slot = half_way(pair)
    pair.outgoing.on_restart(1, pair.now)
    assert [type(frame) for frame in pair.sending.frames] == [GrantReturn, GrantRequest]
    pair.carry()
    assert pair.receiving.returned == [slot]
    assert pair.receiving.receive_failures == []


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_has_a_transfer_begun_anew_for_ever_is_given_up_and_told(pair: Pair, mode: Mode) -> None:
    message = outgoing(BODY, mode=mode)
    pair.outgoing.submit(message, pair.now)
    for _ in range(_MOST_RESTARTS + 1):
        assert pair.sending.send_failures == []
        pair.grant(slot_for(message), transfer=1)
        for grant in pair.receiving.take(Grant):
            pair.outgoing.on_grant(grant, pair.now)
        pair.outgoing.on_restart(1, pair.now)
    pair.progress()
    ((failed, code, reason),) = pair.sending.send_failures
    assert (failed, code) == (message, ErrorCode.UNEXPECTED_EVENT)
    assert pair.sending.take(Abort) == [Abort(1, code.value, reason)]
    assert pair.outgoing.progress() == []


def test_what_the_peer_loses_track_of_on_one_path_after_another_adds_up_to_nothing(pair: Pair) -> None:
    message = outgoing(BODY)
    pair.outgoing.submit(message, pair.now)
    for _ in range(_MOST_RESTARTS + 1):
        pair.grant(slot_for(message), transfer=1)
        for grant in pair.receiving.take(Grant):
            pair.outgoing.on_grant(grant, pair.now)
        pair.outgoing.on_restart(1, pair.now)
        pair.lose_path()
        pair.connect()
    pair.run()
    assert pair.sending.send_failures == []
    assert delivered_bytes(pair) == [BODY]


def test_a_breaking_path_does_not_lose_the_message_that_it_has_just_brought(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: MemoryEndpoint, grant: int) -> None:
        raise TransportError(ErrorCode.LINK_LOST, f"gone before {grant} of {self} was withdrawn")

    monkeypatch.setattr(MemoryEndpoint, "withdraw", broken)
    message = outgoing(BODY)
    pair.grant(slot_for(message))
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    pair.run()
    assert delivered_bytes(pair) == [BODY]


def test_a_half_received_message_is_dropped_when_its_sender_has_been_gone_for_too_long(pair: Pair) -> None:
    slot = half_way(pair)
    pair.lose_path()
    pair.now = SETTINGS.idle_timeout - 1
    pair.incoming.on_timer(pair.now)
    assert pair.receiving.returned == []
    pair.now = SETTINGS.idle_timeout
    assert pair.incoming.timer() == pair.now
    pair.incoming.on_timer(pair.now)
    assert pair.receiving.returned == [slot]
    pair.connect()
    pair.run()
    assert delivered_bytes(pair) == [BODY]


def test_when_the_link_ends_all_slots_come_back(pair: Pair) -> None:
    slot, credit = half_way(pair), HeapRegion(5000).slot()
    pair.grant(credit)
    pair.incoming.end()
    assert pair.receiving.returned == [slot, credit]
    assert pair.receiving.receive_failures == []


# --- losing and finding each other ---


@pytest.mark.parametrize("mode", MODES)
def test_a_transfer_resumes_with_what_had_not_arrived(pair: Pair, mode: Mode) -> None:
    slot = half_way(pair, mode)
    # fedrdma counts a chunk when its header has come and it is acknowledged
    pair.progress(most=1)
    pair.carry()
    arrived = pair.outgoing.progress()[0].done_bytes
    assert arrived > 0
    pair.lose_path()
    pair.connect()
    pair.run()
    assert delivered_bytes(pair) == [BODY]
    assert pair.receiving.received_offers[0][1] == slot
    # what was in flight goes again; what had arrived does not
    assert pair.sending.sent_messages[0][1].resent_bytes <= len(BODY) - arrived


def test_a_transfer_whose_end_was_not_heard_is_not_delivered_twice(pair: Pair) -> None:
    half_way(pair)
    while not pair.receiving.received_offers:
        pair.progress()
    pair.receiving.frames.clear()
    pair.lose_path()
    pair.connect()
    assert pair.sending.take(Reconcile) == [Reconcile("memory", ((1, 1),))]
    pair.incoming.on_reconcile([(1, 1)])
    assert pair.receiving.take(Restart) == [Restart("memory", 1)]


def test_a_grant_in_use_does_not_come_back_as_a_credit(pair: Pair) -> None:
    half_way(pair)
    pair.lose_path()
    pair.connect()
    assert [(grant.grant, grant.transfer) for grant in pair.receiving.take(Grant)] == [(1, 1)]


def test_a_sender_that_has_given_up_unheard_gives_the_grant_back_when_it_is_renewed(pair: Pair) -> None:
    slot = half_way(pair)
    pair.outgoing.fail_all(ErrorCode.UNEXPECTED_EVENT, "a bug")
    pair.sending.frames.clear()
    pair.lose_path()
    pair.connect()
    pair.run()
    assert pair.receiving.returned == [slot]
    assert pair.incoming.progress() == []


def test_a_grant_of_a_lost_path_is_not_used(pair: Pair) -> None:
    pair.grant(HeapRegion(50_000).slot())
    (stale,) = pair.receiving.take(Grant)
    pair.lose_path()
    pair.outgoing.on_grant(stale, pair.now)
    pair.outgoing.submit(outgoing(BODY), pair.now)
    assert pair.sending.frames == []


def test_a_completion_of_an_earlier_attempt_is_not_counted_for_the_new_one(pair: Pair) -> None:
    half_way(pair)
    pair.outgoing.on_restart(1, pair.now)
    message = outgoing(BODY)
    pair.grant(slot_for(message), transfer=1)
    for grant in pair.receiving.take(Grant):
        pair.outgoing.on_grant(grant, pair.now)
    before = pair.outgoing.progress()[0].done_bytes
    # the completion of the second chunk of the first attempt
    pair.outgoing.on_write_done(2, pair.now)
    assert pair.outgoing.progress()[0].done_bytes == before == 0


@pytest.mark.parametrize("grant", [-1, 2**32])
def test_a_grant_whose_id_no_immediate_can_carry_is_ignored(pair: Pair, grant: int) -> None:
    pair.outgoing.on_grant(Grant("memory", grant, 1, 0, 50_000), pair.now)
    pair.outgoing.submit(outgoing(BODY), pair.now)
    assert [type(frame) for frame in pair.sending.frames] == [GrantRequest]


@pytest.mark.parametrize("immediate", [0, 999, (1 << 32) - 1])
def test_an_immediate_that_names_no_slot_changes_nothing(pair: Pair, immediate: int) -> None:
    half_way(pair)
    pair.incoming.on_immediate(immediate, pair.now)
    assert pair.receiving.frames == []
    pair.run()
    assert delivered_bytes(pair) == [BODY]


def test_an_immediate_that_names_a_slot_nothing_was_announced_for_delivers_nothing(pair: Pair) -> None:
    slot = HeapRegion(50_000).slot()
    grant = pair.grant(slot)
    before = bytes(slot.view)
    pair.incoming.on_immediate(grant, pair.now)
    assert pair.receiving.received_offers == []
    assert bytes(slot.view) == before


# --- when the sender may have its slot back ---


def test_a_refused_message_keeps_its_slot_until_the_transport_has_let_go_of_it(pair: Pair) -> None:
    half_way(pair)
    pair.outgoing.on_refused(1, ErrorCode.WRONG_PARTY, "not here", pair.now)
    assert pair.sending.send_failures == []
    pair.progress()
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.WRONG_PARTY]


def test_a_refused_message_has_its_slot_back_when_the_path_is_lost(pair: Pair) -> None:
    half_way(pair)
    pair.outgoing.on_refused(1, ErrorCode.WRONG_PARTY, "not here", pair.now)
    pair.lose_path()
    assert len(pair.sending.send_failures) == 1


def test_a_path_that_never_lets_go_of_a_slot_counts_as_lost(pair: Pair) -> None:
    half_way(pair)
    pair.outgoing.on_refused(1, ErrorCode.WRONG_PARTY, "not here", pair.now)
    due = pair.outgoing.timer()
    assert due == pair.now + SETTINGS.idle_timeout
    with pytest.raises(TransportError) as caught:
        pair.outgoing.on_timer(due)
    assert caught.value.code is ErrorCode.LINK_LOST


def test_a_write_that_the_grant_does_not_allow_fails_the_transfer_only(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: MemoryEndpoint, *arguments: object) -> None:
        raise TransferError(ErrorCode.GRANT_VIOLATION, f"{self} does not write {arguments}")

    slot = slot_for(outgoing(BODY))
    pair.grant(slot)
    pair.carry()
    monkeypatch.setattr(MemoryEndpoint, "post_write", refuse)
    pair.outgoing.submit(outgoing(BODY), pair.now)
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.GRANT_VIOLATION]
    pair.carry()
    assert pair.receiving.returned == [slot]


def test_a_message_delivered_by_an_earlier_link_is_sent(pair: Pair) -> None:
    pair.outgoing.submit(outgoing(BODY), pair.now)
    pair.outgoing.on_delivered(1, pair.now)
    assert len(pair.sending.sent_messages) == 1
    assert pair.outgoing.progress() == []


def test_a_refused_request_fails_its_message(pair: Pair) -> None:
    pair.outgoing.submit(outgoing(BODY), pair.now)
    pair.outgoing.on_refused(1, ErrorCode.PAYLOAD_TOO_LARGE, "too large", pair.now)
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.PAYLOAD_TOO_LARGE]


# --- notify: poll ---


def test_polling_finds_the_header_and_ignores_one_of_an_earlier_transfer() -> None:
    pair = Pair(dataclasses.replace(SETTINGS, poll_headers=True))
    pair.connect()
    slot = slot_for(outgoing(BODY, mode="fedrdma"))
    for transfer in (1, 2):
        message = outgoing(BODY, transfer, "fedrdma")
        pair.grant(slot)
        pair.carry()
        pair.outgoing.submit(message, pair.now)
        for _ in range(50):
            pair.progress()
            pair.incoming.look_for_headers(pair.now)
            pair.carry()
        assert len(pair.receiving.received_offers) == transfer
    assert delivered_bytes(pair) == [BODY, BODY]
    assert pair.sending.sent_messages[1][1].resent_bytes == 0


def test_polling_rests_without_a_data_path() -> None:
    pair = Pair(dataclasses.replace(SETTINGS, poll_headers=True))
    pair.connect()
    half_way(pair)
    assert pair.incoming.wants_polling()
    pair.lose_path()
    assert not pair.incoming.wants_polling()


def _offer(**changes: int) -> Offer:
    fields: dict[str, int] = {"transfer": 1, "total_bytes": 10, "grant": 1, "chunk_bytes": 1000, "enable_bytes": 0}
    return Offer(transport="memory", key=KEY, kind="bytes", mode="fedrdma-e", **{**fields, **changes})


def test_a_recall_asks_for_idle_credits_only(pair: Pair) -> None:
    half_way(pair)
    pair.grant(HeapRegion(5000).slot())
    pair.grant(HeapRegion(5000).slot(), transfer=8)
    assert pair.incoming.idle_credits() == [2]
    assert GrantRecall("memory", 2) not in pair.receiving.frames


# --- giving a message up ---


def test_a_message_that_waits_for_a_grant_can_be_given_up(pair: Pair) -> None:
    message = outgoing(BODY)
    pair.outgoing.submit(message, pair.now)
    pair.outgoing.cancel(message.transfer, ErrorCode.TRANSFER_ABORTED, "not wanted", pair.now)
    assert pair.sending.take(Abort) == [Abort(1, "FR303", "not wanted")]
    assert pair.sending.send_failures == [(message, ErrorCode.TRANSFER_ABORTED, "not wanted")]
    assert pair.outgoing.progress() == []
    # the grant that it had asked for goes back
    pair.run()
    assert len(pair.receiving.returned) == 1


# fedrdma-x has all of a message this small under way at once, so there is no middle
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "fedrdma-x"])
def test_a_message_in_the_middle_can_be_given_up_and_both_sides_get_their_slots_back(pair: Pair, mode: Mode) -> None:
    slot = half_way(pair, mode)
    pair.outgoing.cancel(1, ErrorCode.TRANSFER_ABORTED, "not wanted", pair.now)
    pair.run()
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.TRANSFER_ABORTED]
    assert pair.receiving.returned == [slot]
    assert delivered_bytes(pair) == []


def test_a_message_that_has_ended_is_not_given_up(pair: Pair) -> None:
    message = outgoing(BODY)
    pair.outgoing.submit(message, pair.now)
    pair.run()
    pair.outgoing.cancel(message.transfer, ErrorCode.TRANSFER_ABORTED, "not wanted", pair.now)
    assert delivered_bytes(pair) == [BODY]
    assert pair.sending.send_failures == []
    assert pair.sending.take(Abort) == []
