"""Payloads that are sealed before they are posted, and opened in their slot: over a data path that moves memory.

More than 500 lines: all that is done to one slot, with the few helpers that every test of it needs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fedrdma_fate.engine.both_ends import SharedWork
from fedrdma_fate.engine.link import Link
from fedrdma_fate.engine.opening import Opening
from fedrdma_fate.engine.payload import Outgoing, Payload
from fedrdma_fate.engine.setup import slot_bytes_needed
from fedrdma_fate.ports import ChunkService, Region, Slot
from fedrdma_fate.security.ciphers import AES, CHACHA
from fedrdma_fate.security.key_schedule import DirectionKeys, PathKeys
from fedrdma_fate.security.sealing import PathSealing, Seal
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from fedrdma_fate.wire.frames import Mode, Report, Restart
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import DATAGRAM_KEYS, SETTINGS, Pair, Recorded, outgoing
from tests.support.sim.endpoint import SimDraft

BODY = random.Random(3).randbytes(40_000)
LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)
RELIABLE = ChunkService(reliable=True, self_paced=False, queue_pairs=2)
MODES: list[Mode] = ["fedrdma", "fedrdma-e", "fedrdma-x"]
PATIENCE_SECONDS = 5.0


def message(transfer: int = 1, mode: Mode = "fedrdma-x", body: bytes = BODY, chunk_bytes: int = 1000) -> Outgoing:
    return outgoing(body, transfer, mode, chunk_bytes)


def connect(pair: Pair, service: ChunkService = LOSSY, lost: frozenset[int] = frozenset()) -> None:
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams, wire.lost_chunks = service, True, lost
    pair.connect(wire)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.seal = "on"
    yield made
    made.wire.ends[0].close()
    made.wire.ends[1].close()


def bodies(pair: Pair) -> list[bytes]:
    return [
        bytes(slot.part(payload_at, offer.total_bytes).view)
        for offer, slot, payload_at in pair.receiving.received_offers
    ]


def assert_delivered(pair: Pair, *expected: bytes) -> None:
    assert bodies(pair) == list(expected)
    assert len(pair.sending.sent_messages) == len(expected)
    assert pair.ring.held_bytes == 0, "what is kept to send it again is free at the end"


@pytest.mark.parametrize("cipher", [AES, CHACHA])
@pytest.mark.parametrize("seal", ["on", "integrity"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [0, 1, 999, 1000, 4096, 40_000])
def test_a_sealed_payload_comes_whole(mode: Mode, length: int, seal: Seal, cipher: str) -> None:
    pair = Pair()
    pair.seal, pair.cipher = seal, cipher
    connect(pair)
    pair.outgoing.submit(message(1, mode, BODY[:length]), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY[:length])


@pytest.mark.parametrize("mode", ["fedrdma", "fedrdma-e"])
def test_a_sealed_payload_with_a_link_enable_chunk_comes_whole(pair: Pair, mode: Mode) -> None:
    connect(pair, RELIABLE)
    sent = message(1, mode, chunk_bytes=20_000)
    pair.outgoing.submit(dataclasses.replace(sent, plan=dataclasses.replace(sent.plan, enable_bytes=4096)), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)


@pytest.mark.parametrize("service", [LOSSY, RELIABLE])
def test_chunks_that_are_lost_are_sent_again_as_they_were_sealed(pair: Pair, service: ChunkService) -> None:
    connect(pair, service, lost=frozenset({2, 17, 40, 41, 43}) if not service.reliable else frozenset())
    pair.outgoing.submit(message(), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)


def granted_slot(pair: Pair, sent: Outgoing) -> Slot:
    """Submit the message with a slot granted ahead, which the test can look into."""
    slot = HeapRegion(slot_bytes_needed(sent.plan, sent.mode, sealed=True, recut=sent.recut)).slot()
    pair.grant(slot)
    pair.carry()
    pair.outgoing.submit(sent, pair.now)
    return slot


def pieces_of(body: bytes) -> list[bytes]:
    return [body[at : at + 32] for at in range(0, len(body), 1000)]


@pytest.mark.parametrize("seal", ["on", "integrity"])
@pytest.mark.parametrize("mode", MODES)
def test_what_lies_in_the_slot_is_sealed_until_the_peer_can_write_there_no_more(
    pair: Pair, mode: Mode, seal: Seal, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.seal = seal
    connect(pair)
    looked: list[bool] = []
    begin = Opening.begin

    def look(self: Opening, *arguments: Any) -> None:
        looked.append(any(piece in bytes(self.slot.view) for piece in pieces_of(BODY)))
        assert pair.wire.ends[1].exposed == set(), "it is opened while the peer can still write there"
        begin(self, *arguments)

    monkeypatch.setattr(Opening, "begin", look)
    granted_slot(pair, message(1, mode))
    pair.let_time_pass(PATIENCE_SECONDS)
    assert looked == [seal == "integrity"], "with `integrity`, bytes can be read on their way, and not be changed"
    assert_delivered(pair, BODY)


Damage = Callable[[Opening], None]


def change(at: int) -> Damage:
    """A byte at an offset in the slot."""

    def damage(opening: Opening) -> None:
        opening.slot.view[at] ^= 1

    return damage


def table_at(opening: Opening) -> int:
    return opening.layout.payload_at + opening.layout.plan.trailer_at


def swap(opening: Opening) -> None:
    """Two chunks of equal length change places, and their tags with them."""
    view, at, table = opening.slot.view, opening.layout.payload_at, table_at(opening) + INTRODUCTION_BYTES
    for first, length in ((at, 1000), (table, RECORD_OVERHEAD)):
        one, other = bytes(view[first : first + length]), bytes(view[first + length : first + 2 * length])
        view[first : first + 2 * length] = other + one


DAMAGES: dict[str, Damage] = {
    "first byte": change(4096),
    "last byte": change(4096 + len(BODY) - 1),
    "tag": lambda opening: change(table_at(opening) + INTRODUCTION_BYTES + 3 * RECORD_OVERHEAD + 8)(opening),
    "counter": lambda opening: change(table_at(opening) + INTRODUCTION_BYTES + 3 * RECORD_OVERHEAD)(opening),
    "attempt": lambda opening: change(table_at(opening) + 8)(opening),
    "chunks swapped": swap,
}


@pytest.fixture
def damaging(monkeypatch: pytest.MonkeyPatch) -> Callable[[Damage, int], list[Opening]]:
    """Does something to slots before they are opened, so often."""

    def begin_with(damage: Damage, times: int) -> list[Opening]:
        damaged: list[Opening] = []
        begin = Opening.begin

        def do(self: Opening, *arguments: Any) -> None:
            if len(damaged) < times:
                damage(self)
                damaged.append(self)
            begin(self, *arguments)

        monkeypatch.setattr(Opening, "begin", do)
        return damaged

    return begin_with


@pytest.mark.parametrize("seal", ["on", "integrity"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_changed_is_refused_and_wiped_and_the_message_still_comes_whole(
    pair: Pair, damaging: Callable[[Damage, int], list[Opening]], damage: str, mode: Mode, seal: Seal
) -> None:
    pair.seal = seal
    connect(pair)
    damaged = damaging(DAMAGES[damage], 1)
    pair.outgoing.submit(message(1, mode), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)
    (opening,) = damaged
    assert opening.slot in pair.receiving.returned
    at = opening.layout.payload_at
    assert opening.damaged
    for wrong in opening.damaged:
        assert bytes(opening.slot.part(at + wrong.offset, wrong.length).view) == bytes(wrong.length), "wiped"
    assert pair.receiving.refused == {"forged": len(opening.damaged)}
    assert pair.paths_lost == 0, "the data path, and what else is on it, goes on"


def test_what_was_sealed_for_another_message_is_refused(
    pair: Pair, damaging: Callable[[Damage, int], list[Opening]]
) -> None:
    connect(pair)
    damaging(lambda opening: change(table_at(opening) + 20)(opening), 1)
    pair.outgoing.submit(message(), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)
    assert pair.opener.take_refused() == {"other-transfer": 1}


def test_a_message_that_never_comes_unchanged_fails_at_both_ends(
    pair: Pair, damaging: Callable[[Damage, int], list[Opening]]
) -> None:
    connect(pair)
    damaged = damaging(change(5000), 100)
    pair.outgoing.submit(message(), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert len(damaged) == 3
    assert [code for _, code, _ in pair.receiving.receive_failures] == [ErrorCode.SEAL_BROKEN]
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.SEAL_BROKEN]
    assert len(pair.receiving.returned) == 3, "every slot came back"
    assert pair.ring.held_bytes == 0


@pytest.mark.parametrize("mode", MODES)
def test_damage_that_a_digest_finds_is_sent_anew_under_another_key(pair: Pair, mode: Mode) -> None:
    connect(pair)
    slot = granted_slot(pair, message(1, mode))
    pair.carry()
    pair.progress(most=1)
    slot.view[4096:] = bytes(len(slot.view) - 4096)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)


@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma-x"])
def test_where_a_digest_is_wrong_tags_say_what_is_damaged(
    pair: Pair, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(pair)
    monkeypatch.setattr("fedrdma_fate.engine.incoming.chunk_digest", lambda _: 7)
    pair.outgoing.submit(message(1, mode), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)


def test_damage_of_staged_chunks_that_comes_again_and_again_fails_at_both_ends(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(pair)
    monkeypatch.setattr("fedrdma_fate.engine.incoming.chunk_digest", lambda _: 7)
    pair.outgoing.submit(message(1, "fedrdma"), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.DIGEST_MISMATCH]
    assert [code for _, code, _ in pair.receiving.receive_failures] == [ErrorCode.DIGEST_MISMATCH]
    assert pair.ring.held_bytes == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("landed", [0, 1, 7, 30, 41])
def test_after_a_broken_path_everything_comes_anew_under_other_keys(pair: Pair, mode: Mode, landed: int) -> None:
    connect(pair)
    granted_slot(pair, message(1, mode))
    pair.carry()
    for _ in range(landed):
        pair.progress(most=1)
        pair.carry()
    pair.lose_path()
    connect(pair)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair)[:1] == [BODY]
    assert len(bodies(pair)) == 1
    assert len(pair.sending.sent_messages) == 1
    assert pair.ring.held_bytes == 0


def test_a_message_that_was_cut_for_sealing_is_told_of_as_it_was(pair: Pair) -> None:
    connect(pair)
    sent = message()
    pair.outgoing.submit(sent, pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    ((told, _),) = pair.sending.sent_messages
    assert told.plan == sent.plan


@pytest.mark.parametrize("mode", MODES)
def test_a_full_ring_makes_transfers_wait_and_not_fail(pair: Pair, mode: Mode) -> None:
    pair.ring_bytes = 4096
    connect(pair)
    sent = [BODY[:number] for number in (40_000, 30_001, 20_000, 0)]
    for number, body in enumerate(sent, 1):
        pair.outgoing.submit(message(number, mode, body), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert sorted(bodies(pair)) == sorted(sent)
    assert len(pair.sending.sent_messages) == len(sent)
    assert pair.ring.held_bytes == 0


def test_a_transfer_that_waits_for_room_can_be_given_up(pair: Pair) -> None:
    pair.ring_bytes = 2048
    connect(pair)
    for number in (1, 2, 3):
        granted_slot(pair, message(number))
    assert pair.ring.held_bytes == 2048
    pair.outgoing.cancel(2, ErrorCode.TRANSFER_ABORTED, "the task went away", pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert bodies(pair) == [BODY] * 2
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.TRANSFER_ABORTED]
    assert pair.ring.held_bytes == 0


@pytest.mark.parametrize("mode", ["fedrdma-e", "fedrdma-x"])
def test_a_payload_that_is_still_being_written_is_sealed_as_it_is_written(pair: Pair, mode: Mode) -> None:
    connect(pair)
    sent = message(1, mode)
    payload = Payload(sent.payload.slot, len(BODY), written_from=len(BODY))
    payload.slot.view[:] = bytes(len(BODY))
    pair.outgoing.submit(dataclasses.replace(sent, payload=payload), pair.now)
    pair.let_time_pass(0.5)
    for written_from in (30_500, 30_000, 999, 0):
        payload.slot.view[written_from:] = BODY[written_from:]
        payload.on_written(written_from, [])
        pair.outgoing.on_written(1, pair.now)
        pair.let_time_pass(0.5)
    assert_delivered(pair, BODY)


def test_a_task_may_write_on_into_a_slot_that_it_keeps(pair: Pair) -> None:
    """What was sealed goes out, also when it is sent again."""
    connect(pair, lost=frozenset(range(1, 30)))
    sent = message()
    granted_slot(pair, sent)
    sent.payload.slot.view[:] = bytes(len(BODY))
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)


@pytest.fixture
def slow(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """One whose payload has arrived, and is open in part."""
    monkeypatch.setattr("fedrdma_fate.engine.opening.SLICE_BYTES", 10_000)
    connect(pair)
    granted_slot(pair, message())
    while pair.incoming.timer() != 0.0:
        pair.progress()
        pair.carry()
        pair.now += 0.001
        pair.outgoing.on_timer(pair.now)
    return pair


def test_a_long_payload_is_opened_a_slice_at_a_time(slow: Pair) -> None:
    (progress,) = slow.incoming.progress()
    assert (progress.state, progress.done_bytes) == ("opening", 10_000)
    slow.incoming.on_timer(slow.now)
    (progress,) = slow.incoming.progress()
    assert progress.done_bytes == 20_000
    slow.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(slow, BODY)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A second thread opens chunks of any length; how many chunks the two had to share at a time."""
    monkeypatch.setattr("fedrdma_fate.engine.opening.LEAST_SHARED_CHUNK_BYTES", 1)
    monkeypatch.setattr("fedrdma_fate.engine.opening.SLICE_BYTES", len(BODY) - 1)
    counts: list[int] = []
    run = SharedWork.run

    def count(self: SharedWork, do: Callable[[Any], bool], things: Sequence[Any]) -> list[bool]:
        counts.append(len(things))
        return run(self, do, things)

    monkeypatch.setattr(SharedWork, "run", count)
    return counts


@pytest.mark.parametrize("cipher", [AES, CHACHA])
@pytest.mark.parametrize("seal", ["on", "integrity"])
def test_two_threads_open_a_long_payload_and_the_second_ends_with_it(
    shared: list[int], seal: Seal, cipher: str
) -> None:
    pair = Pair()
    pair.seal, pair.cipher = seal, cipher
    connect(pair)
    for transfer in (1, 2, 3):
        pair.outgoing.submit(message(transfer), pair.now)
        pair.let_time_pass(PATIENCE_SECONDS)
        assert pair.incoming._openings._shared is None
    assert_delivered(pair, BODY, BODY, BODY)
    assert shared == [40, 40, 40]


def test_what_two_threads_find_changed_is_wiped_and_nothing_besides(
    pair: Pair, damaging: Callable[[Damage, int], list[Opening]], shared: list[int]
) -> None:
    wrong = (0, 1, 20, 38, 39)

    def damage(opening: Opening) -> None:
        for number in wrong:
            change(opening.layout.payload_at + 1000 * number)(opening)

    connect(pair)
    damaged = damaging(damage, 1)
    pair.outgoing.submit(message(), pair.now)
    pair.let_time_pass(PATIENCE_SECONDS)
    assert [chunk.offset for chunk in damaged[0].damaged] == [1000 * number for number in wrong]
    assert shared == [40, 40]
    assert_delivered(pair, BODY)


def test_an_offer_that_comes_once_more_while_its_payload_is_opened_changes_nothing(slow: Pair) -> None:
    (opening,) = slow.incoming._openings._opening.values()
    slow.receiver.frame(opening.offer)
    assert not slow.receiving.take(Restart)
    slow.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(slow, BODY)


def test_a_path_that_breaks_while_a_payload_is_opened_does_not_lose_it(slow: Pair) -> None:
    slow.lose_path()
    while slow.incoming.timer() == 0.0:
        slow.incoming.on_timer(slow.now)
    assert bodies(slow) == [BODY]
    slow.carry()
    assert len(slow.sending.sent_messages) == 1


def test_a_payload_that_is_given_up_while_it_is_opened_gives_its_slot_back(slow: Pair) -> None:
    slow.outgoing.cancel(1, ErrorCode.TRANSFER_ABORTED, "the task went away", slow.now)
    slow.let_time_pass(PATIENCE_SECONDS)
    assert [code for _, code, _ in slow.receiving.receive_failures] == [ErrorCode.TRANSFER_ABORTED]
    assert not bodies(slow)


def test_a_link_that_ends_while_a_payload_is_opened_gives_its_slot_back(slow: Pair) -> None:
    slow.incoming.end()
    assert len(slow.receiving.returned) == 1
    assert slow.incoming.timer() is None


def test_a_slot_that_cannot_be_closed_to_the_peer_is_not_opened(pair: Pair) -> None:
    connect(pair)
    granted_slot(pair, message())
    pair.wire.ends[1].stuck.add(1)
    while not pair.receiving.returned:
        pair.progress()
        pair.carry()
        pair.now += 0.001
        pair.outgoing.on_timer(pair.now)
    assert not bodies(pair)
    assert pair.receiving.still_open == pair.receiving.returned


def test_a_data_path_that_wants_what_is_posted_sealed_is_not_used_without_memory_for_it() -> None:
    for make in (None, no_memory):
        told = Recorded()
        link = Link("peer", dataclasses.replace(SETTINGS, sealing_region=make), told.emit, lambda: 0.0)
        wire = MemoryWire()
        wire.sealed_by_poster = True
        keys = PathKeys(*[DirectionKeys(bytes(32), bytes(32), bytes(32))] * 2)
        link.connect(SimDraft(wire.ends[0]), {}, 1, DATAGRAM_KEYS, PathSealing.of_keys(keys, AES, "on"))
        ((what, attempt, reason),) = told.paths
        assert (what, attempt) == ("lost", 1)
        assert "memory to seal chunks in" in reason
        assert wire.ends[0].closed


def no_memory(_length: int) -> Region:
    raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, "no room.")


def test_a_report_of_an_earlier_attempt_counts_for_nothing(pair: Pair) -> None:
    connect(pair, lost=frozenset({40}))
    granted_slot(pair, message())
    said: list[Report] = []
    send = pair.incoming._send_report
    pair.incoming._send_report = lambda report: (said.append(report), send(report))[1]  # type: ignore[method-assign]
    for _ in range(10):
        pair.progress(most=2)
        pair.carry()
        pair.now += 0.002
        pair.incoming.on_timer(pair.now)
    assert any(report.complete for report in said)
    pair.outgoing.on_restart(1, pair.now)
    # what was under way by the first, the request, the grant
    pair.progress()
    pair.carry()
    for request in pair.receiving.wanted:
        pair.grant(HeapRegion(request.slot_bytes).slot(), request.transfer)
    pair.receiving.wanted.clear()
    pair.carry()
    held = pair.ring.held_bytes
    assert held > 0, "the second is under way"
    pair.outgoing.on_report(said[-1], pair.now)
    assert pair.ring.held_bytes == held
    pair.let_time_pass(PATIENCE_SECONDS)
    assert_delivered(pair, BODY)


def test_slots_of_sealed_payloads_are_free_as_soon_as_their_path_is_lost(pair: Pair) -> None:
    connect(pair)
    slot = granted_slot(pair, message())
    pair.carry()
    pair.progress(most=3)
    pair.lose_path()
    assert pair.receiving.returned == [slot]
