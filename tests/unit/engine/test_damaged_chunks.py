"""Damage costs the chunks that are damaged: the sender tells the digests of its chunks, once it is asked for them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from fedrdma_fate.core.x.chunking import chunk_of_immediate
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, Slot
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, ChunkDigests, DigestRequest, Mode, ResendChunks
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind
from tests.support.endpoints import MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing, slot_for

BODY = random.Random(5).randbytes(40_000)
COUNT = 40
KNOWS = dataclasses.replace(SETTINGS, tells_digests=lambda: True)
MODES: tuple[Mode, ...] = ("grpc", "fedrdma-e", "fedrdma-x")
UNRELIABLE = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=500)


class DamagingPair(Pair):
    """A data path that changes a byte of these chunks as they come, so many times."""

    def __init__(self, damaged: Iterable[int], *, times: int = 1, knows: bool = True) -> None:
        super().__init__(KNOWS if knows else SETTINGS)
        self.slot: Slot | None = None
        self.left = dict.fromkeys(damaged, times)

    def lets_through(self, completion: Completion) -> bool:
        if completion.kind is CompletionKind.CHUNK_IMMEDIATE:
            self.damage([chunk_of_immediate(completion.immediate)[1]])
        elif completion.kind is CompletionKind.LANDED:
            self.damage([(completion.offset - 4096) // 1000])
        return True

    def damage(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self.left.get(index):
                self.left[index] -= 1
                assert self.slot is not None
                self.slot.view[4096 + 1000 * index + 7] ^= 1


def send(pair: DamagingPair, mode: Mode, service: ChunkService | None = None) -> int:
    """Whole transfers end within a minute; the bytes that were sent more than once."""
    wire = MemoryWire()
    if service is not None:
        wire.chunk_service, wire.has_datagrams = service, True
    pair.connect(wire)
    message = outgoing(BODY, mode=mode)
    pair.slot = slot_for(message)
    pair.grant(pair.slot)
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    pair.let_time_pass(30)
    pair.wire.ends[0].close()
    pair.wire.ends[1].close()
    return sum(stats.resent_bytes for _, stats in pair.sending.sent_messages)


def delivered(pair: Pair) -> list[bytes]:
    return [bytes(slot.part(at, offer.total_bytes).view) for offer, slot, at in pair.receiving.received_offers]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("damaged", [[0], [17], [39], [3, 4, 20], list(range(COUNT))])
def test_the_damaged_chunks_are_sent_again_and_no_others(mode: Mode, damaged: list[int]) -> None:
    pair = DamagingPair(damaged)
    resent = send(pair, mode)
    assert delivered(pair) == [BODY]
    assert resent == 1000 * len(damaged)


@pytest.mark.parametrize("damaged", [[0], [17], [3, 4, 20]])
def test_over_a_path_that_may_lose_chunks_damage_costs_no_more(damaged: list[int]) -> None:
    undamaged = send(DamagingPair([]), "fedrdma-x", UNRELIABLE)
    pair = DamagingPair(damaged)
    resent = send(pair, "fedrdma-x", UNRELIABLE)
    assert delivered(pair) == [BODY]
    # what comes last goes more than once at once, where nobody may ask for it again
    assert 1000 * len(damaged) <= resent - undamaged <= 3000 * len(damaged)


@pytest.mark.parametrize("mode", MODES)
def test_towards_a_gateway_that_does_not_know_the_question_the_whole_payload_goes_again(mode: Mode) -> None:
    pair = DamagingPair([17], knows=False)
    resent = send(pair, mode)
    assert delivered(pair) == [BODY]
    assert resent == len(BODY)


@pytest.mark.parametrize("mode", MODES)
def test_a_chunk_that_is_damaged_every_time_ends_the_transfer_at_both_ends(mode: Mode) -> None:
    pair = DamagingPair([17], times=100)
    send(pair, mode)
    assert delivered(pair) == []
    assert [code for _, code, _ in pair.receiving.receive_failures] == [ErrorCode.DIGEST_MISMATCH]
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.DIGEST_MISMATCH]
    assert pair.left[17] == 100 - 4, "sent once, and three times more"


def until_asked(mode: Mode) -> DamagingPair:
    """One that has asked for the digests, which have not been told."""
    pair = DamagingPair([17])
    pair.connect()
    message = outgoing(BODY, mode=mode)
    pair.slot = slot_for(message)
    pair.grant(pair.slot)
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    while not any(isinstance(frame, DigestRequest) for frame in pair.receiving.frames):
        pair.carry()
        pair.progress()
    return pair


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [0, 7, 8, 8 * (COUNT - 1), 8 * (COUNT + 1)])
def test_a_sender_that_tells_a_wrong_number_of_digests_is_refused(mode: Mode, length: int) -> None:
    pair = until_asked(mode)
    pair.receiver.frame(ChunkDigests(1, bytes(length)))
    assert [code for _, code, _ in pair.receiving.receive_failures] == [ErrorCode.UNEXPECTED_EVENT]
    pair.run()
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.UNEXPECTED_EVENT]


@pytest.mark.parametrize("mode", MODES)
def test_a_sender_that_tells_what_the_receiver_has_got_delivers_nothing(mode: Mode) -> None:
    """It says that the damaged chunk is the right one: its header has said otherwise."""
    pair = until_asked(mode)
    (granted,) = pair.incoming._granted.values()
    assert granted.receiver is not None
    verification = granted.receiver._verification  # type: ignore[attr-defined]
    told = b"".join(value.to_bytes(8, "little") for value in verification.in_order())
    asked = 0
    while not pair.receiving.receive_failures and asked < 20:
        asked += len(pair.receiving.take(DigestRequest))
        pair.receiver.frame(ChunkDigests(1, told))
        pair.sender.frame(ResendChunks(1, ()))
        pair.receiving.take(ResendChunks)
        if not pair.receiving.receive_failures:
            pair.progress()
    assert delivered(pair) == []
    assert [code for _, code, _ in pair.receiving.receive_failures] == [ErrorCode.DIGEST_MISMATCH]
    assert asked == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_sender_that_writes_one_header_after_the_other_is_asked_once(mode: Mode) -> None:
    pair = until_asked(mode)
    (granted,) = pair.incoming._granted.values()
    assert granted.receiver is not None
    digest = bytes(8)
    header = ChunkHeader(HeaderKind.PAYLOAD, 1, len(BODY), 0, len(BODY), int.from_bytes(digest, "little"), 0, COUNT)
    for _ in range(20):
        granted.slot.view[granted.receiver.layout.header_at :][:HEADER_BYTES] = header.encode()
        pair.incoming.on_immediate(1, pair.now)
    assert len(pair.receiving.take(DigestRequest)) == 1
    assert not any(granted.slot.view[:HEADER_BYTES])


@pytest.mark.parametrize("mode", MODES)
def test_a_peer_that_guesses_what_lay_in_its_slot_before_learns_of_each_chunk_once_whether_it_is_right(
    mode: Mode,
) -> None:
    """It says that chunk 17 has come, which was never written, and tells a guess at its digest: a wrong one."""
    pair = until_asked(mode)
    assert pair.slot is not None
    before = bytes(pair.slot.view[4096 + 17_000 : 4096 + 18_000])
    assert any(before)
    pair.receiver.frame(ChunkDigests(1, bytes(8 * COUNT)))
    assert len(pair.receiving.take(ResendChunks)) == 1
    # what it has told of the others was wrong, too
    assert not any(pair.slot.view[4096:])


@pytest.mark.parametrize("mode", MODES)
def test_digests_that_nobody_asked_for_do_nothing(mode: Mode) -> None:
    pair = DamagingPair([])
    pair.connect()
    message = outgoing(BODY, mode=mode)
    pair.grant(slot_for(message))
    pair.carry()
    pair.outgoing.submit(message, pair.now)
    for _ in range(5):
        pair.carry()
        pair.progress(most=3)
        pair.receiver.frame(ChunkDigests(1, b"x" * 8 * COUNT))
        pair.sender.frame(DigestRequest(77))
    pair.run()
    assert delivered(pair) == [BODY]


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_asks_for_digests_for_ever_is_given_up(mode: Mode) -> None:
    pair = until_asked(mode)
    for _ in range(100):
        pair.sender.frame(DigestRequest(1))
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.UNEXPECTED_EVENT]
    assert len(pair.sending.take(ChunkDigests)) == 16
    assert len(pair.sending.take(Abort)) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_that_names_chunks_that_do_not_exist_is_given_up(mode: Mode) -> None:
    pair = until_asked(mode)
    pair.sender.frame(DigestRequest(1))
    pair.sender.frame(ResendChunks(1, (COUNT,)))
    assert [code for _, code, _ in pair.sending.send_failures] == [ErrorCode.UNEXPECTED_EVENT]


@pytest.mark.parametrize("mode", MODES)
def test_a_path_that_breaks_before_the_digests_are_told_brings_the_damaged_chunk_all_the_same(mode: Mode) -> None:
    pair = until_asked(mode)
    pair.receiving.take(DigestRequest)
    pair.lose_path()
    pair.connect()
    pair.run()
    assert delivered(pair) == [BODY]
    ((_, stats),) = pair.sending.sent_messages
    assert stats.resent_bytes == 1000
