"""What may be missing of a message: as much as both tasks let be, known to a chunk, and zeros where it is.

More than 500 lines: all of it in one pair of engines.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from fedrdma_fate.core.damage import pack_digests
from fedrdma_fate.core.held import Ranges, bytes_in
from fedrdma_fate.core.x.chunking import chunk_of_immediate
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.ports import ChunkService, Completion, CompletionKind, Slot
from fedrdma_fate.security.sealing import Seal
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ChunkTags, ControlFrame, DigestRun, MessageKey, Mode, Offer, Refused
from tests.support.endpoints import HeapRegion, MemoryWire
from tests.support.engine import SETTINGS, Pair, outgoing, slot_for

CHUNK = 1024
COUNT = 100
BODY = random.Random(13).randbytes(CHUNK * COUNT)
SHARE = 0.05
WHOLE = 10
"""Chunks that have to be whole: 4 of the 90 behind may be missing."""
LOSSY = ChunkService(reliable=False, self_paced=False, queue_pairs=2, mtu_bytes=512)
TABLE_CHUNKS = 3
"""Of a sealed payload: 44 bytes and 24 for each chunk."""


class LossyPair(Pair):
    """A path that loses some chunks each time that they are sent, and damages others.

    Attributes:
        share: what the receiver's task lets be missing.
        kept: what was missing of each message, and its bytes, when it was written down.
        lost: chunks of the payload.
        damaged: likewise; once.
        tells: whether digests and tags come that are told by frames.
    """

    def __init__(
        self,
        lost: Iterable[int] = (),
        *,
        damaged: Iterable[int] = (),
        share: float = SHARE,
        knows: bool = True,
        seal: Seal = "off",
    ) -> None:
        self.share = share
        self.kept: list[tuple[Ranges, bytes]] = []
        self.asked: list[tuple[int, int, Ranges]] = []
        self.may_spend = True
        self.is_late = False
        super().__init__(
            dataclasses.replace(
                SETTINGS,
                bounds_loss=lambda: knows,
                knows_tags=lambda: knows,
                loss_share=lambda _key: self.share,
                is_late=lambda _key: self.is_late,
                spend_holes=self._spend,
                kept=self._keep,
            )
        )
        self.lost, self.damaged = set(lost), set(damaged)
        self.tells = True
        self.slot: Slot | None = None
        self.seal = seal

    def _spend(self, _key: MessageKey, whole_bytes: int, total_bytes: int, missing: Ranges) -> bool:
        self.asked.append((whole_bytes, total_bytes, missing))
        return self.may_spend

    def _keep(self, offer: Offer, slot: Slot, payload_at: int, missing: Ranges) -> bool:
        self.kept.append((missing, bytes(slot.part(payload_at, offer.total_bytes).view)))
        return True

    def grant(self, slot: Slot, transfer: int = 0) -> int:
        # an earlier message of somebody else's
        slot.view[64:] = b"\xa5" * (slot.length - 64)
        self.slot = slot
        return super().grant(slot, transfer)

    def lets_through(self, completion: Completion) -> bool:
        if completion.kind is not CompletionKind.CHUNK_IMMEDIATE:
            return True
        index = chunk_of_immediate(completion.immediate)[1] - (0 if self.seal == "off" else TABLE_CHUNKS)
        if index in self.damaged:
            self.damaged.remove(index)
            assert self.slot is not None
            self.slot.view[4096 + CHUNK * index + 7] ^= 1
        return index not in self.lost

    def carry(self) -> int:
        if not self.tells:
            self.sending.frames = [
                frame for frame in self.sending.frames if not isinstance(frame, DigestRun | ChunkTags)
            ]
        return super().carry()

    def begin(self, sent: Outgoing | None = None, service: ChunkService = LOSSY, *, datagrams: bool = True) -> None:
        """Begin to send a message."""
        wire = MemoryWire()
        wire.chunk_service, wire.has_datagrams = service, datagrams
        self.connect(wire)
        self.outgoing.submit(sent or message(), self.now)

    def holes(self) -> list[int]:
        """Chunks that are missing; what was delivered agrees with it, and the rest is what was sent."""
        ((missing, body),) = self.kept
        gone: list[int] = []
        expected = bytearray(BODY)
        for start, end in missing:
            assert (start % CHUNK, end % CHUNK) == (0, 0)
            gone += range(start // CHUNK, end // CHUNK)
            expected[start:end] = bytes(end - start)
        assert body == bytes(expected)
        assert len(self.sending.sent_messages) == 1, "the sender knows, too"
        return gone

    def is_whole_once_nothing_is_lost(self) -> bool:
        """It is not delivered as long as something is lost, and then whole."""
        self.let_time_pass(1.0)
        assert not self.kept
        self.lost.clear()
        self.let_time_pass(5.0)
        return self.holes() == []


def message(
    share: float = SHARE, whole_bytes: int = WHOLE * CHUNK, chunk_bytes: int = CHUNK, mode: Mode = "fedrdma-x"
) -> Outgoing:
    made = outgoing(BODY, mode=mode, chunk_bytes=chunk_bytes)
    return dataclasses.replace(made, loss_share=share, whole_bytes=whole_bytes)


SEALS: Sequence[Seal] = ("off", "on", "integrity")


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("lost", [[99], [10], [30, 31, 77], [12, 40, 60, 98]])
def test_what_is_lost_and_may_be_missing_is_not_waited_for(lost: list[int], seal: Seal) -> None:
    pair = LossyPair(lost, seal=seal)
    pair.begin()
    pair.let_time_pass(1.0)
    assert pair.holes() == lost


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("lost", [[0], [9], [9, 50], [50, 51, 52, 53, 54], list(range(10, 100))])
def test_what_has_to_be_whole_and_what_is_too_much_is_waited_for(lost: list[int], seal: Seal) -> None:
    pair = LossyPair(lost, seal=seal)
    pair.begin()
    assert pair.is_whole_once_nothing_is_lost()


def test_as_soon_as_the_rest_fits_it_is_delivered() -> None:
    pair = LossyPair(range(40, 60))
    pair.begin()
    pair.let_time_pass(2.0)
    assert not pair.kept
    pair.lost = {47, 55}
    pair.let_time_pass(5.0)
    assert pair.holes() == [47, 55]


def test_what_is_too_much_besides_what_is_missing_of_others_is_waited_for() -> None:
    pair = LossyPair([20, 30])
    pair.may_spend = False
    pair.begin()
    pair.let_time_pass(1.0)
    assert not pair.kept
    assert pair.asked[0] == (WHOLE * CHUNK, len(BODY), ((20 * CHUNK, 21 * CHUNK), (30 * CHUNK, 31 * CHUNK)))
    pair.may_spend = True
    # asked again and again, ever later
    pair.let_time_pass(5.0)
    assert pair.holes() == [20, 30]


def test_the_smaller_share_of_both_counts() -> None:
    for ours, theirs, lost in ((0.2, 0.02, 2), (0.02, 0.2, 2), (0.0, 0.2, 1), (0.2, 0.0, 1)):
        pair = LossyPair(range(20, 20 + lost), share=theirs)
        pair.begin(message(ours))
        assert pair.is_whole_once_nothing_is_lost(), (ours, theirs)
    pair = LossyPair([20], share=0.02)
    pair.begin(message(0.2))
    pair.let_time_pass(1.0)
    assert pair.holes() == [20]


def test_a_task_that_says_late_what_may_be_missing_is_heard() -> None:
    pair = LossyPair([20, 30], share=0.0)
    pair.begin()
    pair.let_time_pass(1.0)
    assert not pair.kept
    pair.share = SHARE
    pair.let_time_pass(0.1)
    assert pair.holes() == [20, 30]


def test_towards_a_gateway_that_does_not_know_it_nothing_is_missing() -> None:
    pair = LossyPair([20], knows=False)
    pair.begin()
    assert pair.is_whole_once_nothing_is_lost()


def test_what_is_not_lost_is_not_given_up_however_much_may_be_missing() -> None:
    pair = LossyPair(share=0.2)
    pair.begin(message(0.2))
    pair.let_time_pass(1.0)
    assert pair.holes() == []


def test_where_a_slot_cannot_be_closed_nothing_is_delivered_from_it() -> None:
    pair = LossyPair([20])
    sent = message()
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)
    grant = pair.grant(slot_for(sent))
    wire.ends[1].stuck.add(grant)
    pair.carry()
    pair.outgoing.submit(sent, pair.now)
    pair.let_time_pass(1.0)
    assert not pair.kept
    assert pair.receiving.received_offers == []
    assert pair.slot in pair.receiving.still_open


def test_a_transfer_that_is_resumed_has_holes_where_nothing_came() -> None:
    pair = LossyPair(range(20, 60))
    sent = message()
    pair.begin(sent)
    pair.let_time_pass(0.5)
    pair.lose_path()
    pair.lost = {25, 33}
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)
    pair.let_time_pass(5.0)
    assert pair.holes() == [25, 33]


# --- what came is right ---


def test_a_chunk_that_came_damaged_counts_as_missing() -> None:
    pair = LossyPair([20], damaged=[33])
    pair.begin()
    pair.let_time_pass(1.0)
    assert pair.holes() == [20, 33]


def test_damage_alone_is_not_waited_for_either() -> None:
    pair = LossyPair(damaged=[33, 34])
    pair.begin()
    pair.let_time_pass(1.0)
    assert pair.holes() == [33, 34]


def test_damage_that_is_too_much_besides_what_is_missing_of_others_is_mended() -> None:
    pair = LossyPair(damaged=[33, 34])
    pair.may_spend = False
    pair.begin()
    pair.let_time_pass(5.0)
    assert pair.asked[0] == (WHOLE * CHUNK, len(BODY), ((33 * CHUNK, 35 * CHUNK),))
    assert pair.holes() == []


def test_damage_of_what_has_to_be_whole_is_mended() -> None:
    pair = LossyPair(damaged=[3])
    pair.begin()
    pair.let_time_pass(5.0)
    assert pair.holes() == []


def test_where_the_digests_of_what_is_missing_were_not_told_it_is_waited_for() -> None:
    pair = LossyPair([20])
    pair.tells = False
    pair.begin(datagrams=False)
    assert pair.is_whole_once_nothing_is_lost()


def test_digests_that_a_peer_has_made_up_deliver_nothing() -> None:
    pair = LossyPair([20])
    pair.tells = False
    pair.begin(datagrams=False)
    pair.run()
    pair.incoming.on_digest_run(DigestRun(1, 10, pack_digests(range(64))))
    pair.incoming.on_digest_run(DigestRun(1, 74, pack_digests(range(64))))
    pair.incoming.on_digest_run(DigestRun(1, 1 << 32, pack_digests([1])))
    pair.incoming.on_digest_run(DigestRun(1, 20, b"odd"))
    assert pair.is_whole_once_nothing_is_lost()


# --- which go last ---


class CutOffPair(LossyPair):
    """So many chunks are lost, however often they are sent: those that are sent last."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.first_sent: dict[int, None] = {}
        self.last = lost

    def lets_through(self, completion: Completion) -> bool:
        if completion.kind is CompletionKind.CHUNK_IMMEDIATE:
            index = chunk_of_immediate(completion.immediate)[1]
            self.first_sent.setdefault(index)
            if list(self.first_sent).index(index) >= COUNT - self.last:
                return False
        return super().lets_through(completion)


def test_it_is_not_always_the_same_part_of_the_payload_that_goes_last() -> None:
    missing = []
    for transfer in range(1, 25):
        pair = CutOffPair(4)
        pair.begin(dataclasses.replace(message(), transfer=transfer))
        pair.let_time_pass(1.0)
        holes = pair.holes()
        assert len(holes) == 4
        assert holes[0] >= WHOLE, "what has to be whole goes before"
        missing.append(holes[0])
    # a tail is a quarter of the 90
    thirds = [sum(WHOLE + at <= first < WHOLE + at + 24 for first in missing) for at in (0, 24, 48)]
    assert min(thirds) >= 3, missing


def test_both_ends_have_the_same_order_after_the_path_was_lost() -> None:
    pair = CutOffPair(30)
    pair.begin(dataclasses.replace(message(), transfer=3))
    pair.let_time_pass(0.5)
    assert not pair.kept
    pair.lose_path()
    pair.last = 0
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)
    pair.let_time_pass(5.0)
    assert pair.holes() == []


# --- the last of a round ---


def one_by_one(frame: ControlFrame) -> list[ControlFrame]:
    """Tags of many chunks as so many frames."""
    if not isinstance(frame, ChunkTags):
        return [frame]
    records = range(len(frame.tags) // 24)
    return [
        ChunkTags(frame.transfer, frame.grant, frame.introduction, frame.first + at, frame.tags[24 * at : 24 * at + 24])
        for at in records
    ]


class SilentPair(LossyPair):
    """The sender falls silent for a second when so many chunks have come; nor does it tell of more digests."""

    def __init__(self, heard: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.heard = heard
        self.seen: set[int] = set()
        self.speaks_at = 1.0

    def lets_through(self, completion: Completion) -> bool:
        if self.now >= self.speaks_at:
            return super().lets_through(completion)
        if completion.kind is CompletionKind.CHUNK_IMMEDIATE and len(self.seen) < self.heard:
            self.seen.add(chunk_of_immediate(completion.immediate)[1])
            return super().lets_through(completion)
        # a header goes behind all chunks
        return completion.kind is CompletionKind.WRITE_DONE

    def carry(self) -> int:
        self.sending.frames = [each for frame in self.sending.frames for each in one_by_one(frame)]
        held = [frame for frame in self.sending.frames if self.now < self.speaks_at and not self._was_told(frame)]
        self.sending.frames = [frame for frame in self.sending.frames if frame not in held]
        carried = super().carry()
        self.sending.frames = held + self.sending.frames
        return carried

    def _was_told(self, frame: ControlFrame) -> bool:
        match frame:
            case DigestRun():
                return self.seen.issuperset(range(frame.first, frame.first + len(frame.digests) // 8))
            case ChunkTags():
                first = TABLE_CHUNKS + frame.first
                return self.seen.issuperset(range(first, first + len(frame.tags) // 24))
        return True

    def says_that_it_is_late(self) -> None:
        """All other messages of the round are here."""
        self.is_late = True
        self.receiver.look_again(message().key)


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("silent", [1, 2, 4])
def test_a_sender_that_is_silent_at_its_end_is_not_waited_for_once_it_is_late(silent: int, seal: Seal) -> None:
    pair = SilentPair(COUNT - silent, share=0.1, seal=seal)
    pair.begin(message(0.1))
    pair.let_time_pass(0.3)
    assert not pair.kept, "before it is late it is waited for"
    pair.says_that_it_is_late()
    pair.let_time_pass(0.2)
    ((missing, _),) = pair.kept
    # the digests of a run that had not been sent whole are not known
    assert silent * CHUNK <= bytes_in(missing) <= 9 * CHUNK
    pair.let_time_pass(5.0)
    assert len(pair.holes()) * CHUNK == bytes_in(missing), "and nothing lands later"


@pytest.mark.parametrize("seal", SEALS)
def test_one_that_is_late_by_more_than_may_be_missing_is_waited_for_until_the_rest_fits(seal: Seal) -> None:
    pair = SilentPair(COUNT - 20, share=0.1, seal=seal)
    pair.begin(message(0.1))
    pair.says_that_it_is_late()
    pair.let_time_pass(0.9)
    assert not pair.kept
    pair.let_time_pass(5.0)
    assert len(pair.holes()) <= 9


def test_one_that_is_late_and_lacks_what_has_to_be_whole_comes_whole() -> None:
    pair = SilentPair(COUNT - 8, lost=[3], share=0.2)
    pair.begin(message(0.2))
    pair.says_that_it_is_late()
    assert pair.is_whole_once_nothing_is_lost()


def test_of_one_that_is_late_nothing_may_be_missing_where_its_sender_has_not_said_so() -> None:
    pair = SilentPair(COUNT - 1, share=0.2)
    pair.begin(message(0.0, 0))
    pair.says_that_it_is_late()
    pair.let_time_pass(0.9)
    assert not pair.kept
    pair.let_time_pass(5.0)
    assert pair.holes() == []


def test_what_came_damaged_of_one_that_is_late_counts_as_missing() -> None:
    damaged = 80
    pair = SilentPair(COUNT - 2, damaged=[damaged], share=0.2)
    pair.begin(message(0.2))
    pair.let_time_pass(0.3)
    pair.says_that_it_is_late()
    pair.let_time_pass(0.2)
    assert damaged in pair.holes()


def tags_told(introduction: bytes, first: int, tags: bytes) -> ChunkTags:
    return ChunkTags(1, 1, introduction, first, tags)


@pytest.mark.parametrize("told", ["of another attempt", "wrong", "beyond the payload", "cut short"])
def test_tags_that_a_peer_has_made_up_open_nothing(told: str) -> None:
    pair = SilentPair(COUNT - 2, share=0.1, seal="on")
    pair.speaks_at = 30.0
    pair.tells = False
    pair.begin(message(0.1))
    pair.run()
    introduction, tags = bytes(44), bytes(24 * 50)
    runs = {
        "of another attempt": [tags_told(introduction, first, tags) for first in (0, 50)],
        "wrong": [tags_told(introduction, first, b"x" * len(tags)) for first in (0, 50)],
        "beyond the payload": [tags_told(introduction, 51, tags), tags_told(introduction, 1 << 32, tags)],
        "cut short": [tags_told(introduction, 0, tags[:23]), tags_told(introduction, 0, b"")],
    }
    for run in runs[told]:
        pair.incoming.on_chunk_tags(run)
    pair.says_that_it_is_late()
    pair.let_time_pass(0.5)
    assert not pair.kept


def test_one_that_is_late_and_whole_but_for_its_header_is_waited_for_no_longer() -> None:
    pair = SilentPair(COUNT)
    pair.begin()
    pair.says_that_it_is_late()
    pair.let_time_pass(5.0)
    assert pair.holes() == []


# --- offers ---


@pytest.mark.parametrize("whole_bytes", [len(BODY), len(BODY) - 1, len(BODY) - CHUNK + 1])
def test_a_message_that_has_to_be_whole_but_for_less_than_a_chunk_comes_whole(whole_bytes: int) -> None:
    pair = LossyPair([99], share=0.2)
    pair.begin(message(0.2, whole_bytes))
    assert pair.is_whole_once_nothing_is_lost()


def test_an_only_chunk_is_waited_for_however_much_may_be_missing() -> None:
    pair = LossyPair([0], share=0.2)
    pair.begin(message(0.2, 0, len(BODY)))
    assert pair.is_whole_once_nothing_is_lost()


def test_of_chunks_that_would_cut_an_element_none_is_missing() -> None:
    pair = LossyPair([20])
    pair.begin(message(chunk_bytes=1000))
    assert pair.is_whole_once_nothing_is_lost()


def test_where_what_comes_late_costs_the_path_the_offer_says_that_nothing_may_be_missing() -> None:
    for service, share in ((LOSSY, SHARE), (ChunkService(), 0.0), (ChunkService(drains=True), SHARE)):
        pair = LossyPair()
        sent = message()
        wire = MemoryWire()
        wire.chunk_service = service
        pair.connect(wire)
        pair.grant(slot_for(sent))
        pair.carry()
        pair.outgoing.submit(sent, pair.now)
        assert [offer.loss_share for offer in pair.sending.take(Offer)] == [share]


@pytest.mark.parametrize(
    "change",
    [
        {"whole_bytes": len(BODY) + 1},
        {"chunk_bytes": 1000},
        {"whole_bytes": WHOLE * CHUNK, "tail_from": WHOLE - 1},
        {"whole_bytes": WHOLE * CHUNK, "tail_from": COUNT - (COUNT - WHOLE) // 4 + 1},
        {"whole_bytes": len(BODY), "tail_from": COUNT - 1},
        {"tail_from": 1 << 32},
    ],
    ids=[
        "a whole part longer than the payload",
        "chunks that cut elements",
        "a tail of what has to be whole",
        "a tail that is too short",
        "a tail of nothing",
        "a tail behind the payload",
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(change: dict[str, int]) -> None:
    pair = LossyPair()
    wire = MemoryWire()
    wire.chunk_service, wire.has_datagrams = LOSSY, True
    pair.connect(wire)
    grant = pair.grant(HeapRegion(len(BODY) + 8192).slot())
    fields = {"total_bytes": len(BODY), "chunk_bytes": CHUNK, "enable_bytes": 0, "loss_share": SHARE, **change}
    offer = Offer(
        transport="memory", transfer=7, key=message().key, kind="object", mode="fedrdma-x", grant=grant, **fields
    )
    pair.incoming.on_offer(offer, pair.now)
    (refused,) = pair.receiving.take(Refused)
    assert refused.code == ErrorCode.UNEXPECTED_EVENT.value
