"""The receiving state machine, step by step, on a real slot. More than 500 lines: many steps of one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import pytest

from fedrdma_fate.core.actions import Action, ClearHeader, ComputeDigest, CopyStaged, Failed, Finished, SendFrame
from fedrdma_fate.core.digest import TAGGED, chunk_digest, payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.receiver import Receiver, ReceiverState, ReceiveSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import ChunkAck, ControlFrame, Delivered, Mode, Refused, ResendChunks
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind

MODES: list[Mode] = ["grpc", "fedrdma", "fedrdma-e"]
PAYLOAD = b"0123456789"
PLAN = ChunkPlan(len(PAYLOAD), 4)
EMPTY = ChunkPlan(0, 4)
TRANSFER = 7


class Rig:
    """A receiver, its slot, and an honest sender's writes. Digests are answered at once, unless `slow`."""

    def __init__(self, mode: Mode, plan: ChunkPlan = PLAN, *, max_resends: int = 3, slow: bool = False) -> None:
        self.receiver = Receiver(TRANSFER, plan, ReceiveSettings(mode, max_resends))
        self.layout = self.receiver.layout
        self.slot = bytearray(self.layout.slot_bytes)
        self.payload = PAYLOAD[: plan.total_bytes]
        self.slow = slow
        self.questions: list[ComputeDigest] = []
        self.frames: list[ControlFrame] = []
        self.ends: list[Finished | Failed] = []

    @property
    def placed(self) -> bytes:
        at = self.layout.payload_at
        return bytes(self.slot[at : at + self.receiver.plan.total_bytes])

    def digests(self) -> list[int]:
        return [chunk_digest(self._bytes_of(chunk.index)) for chunk in self.receiver.plan]

    def chunk_header(self, index: int) -> ChunkHeader:
        plan = self.receiver.plan
        chunk = plan.chunk(index)
        digest = chunk_digest(self._bytes_of(index))
        return ChunkHeader(
            HeaderKind.CHUNK, TRANSFER, plan.total_bytes, chunk.offset, chunk.length, digest, index, plan.count
        )

    def payload_header(self) -> ChunkHeader:
        plan = self.receiver.plan
        digest = payload_digest(self.digests())
        return ChunkHeader(HeaderKind.PAYLOAD, TRANSFER, plan.total_bytes, 0, plan.total_bytes, digest, 0, plan.count)

    def write(self, index: int, *, damaged: bool = False, hint: bool = False) -> None:
        chunk = self.receiver.plan.chunk(index)
        data = bytearray(self._bytes_of(index))
        if damaged:
            data[0] ^= 1
        at = self.layout.write_offset(chunk)
        self.slot[at : at + chunk.length] = data
        if hint:
            self.do(self.receiver.on_landed(at, chunk.length))

    def write_all(self, *, damaged: bool = False, hint: bool = False) -> None:
        for chunk in self.receiver.plan:
            self.write(chunk.index, damaged=damaged, hint=hint)

    def announce(self, header: ChunkHeader | bytes) -> None:
        raw = header if isinstance(header, bytes) else header.encode()
        at = self.layout.header_at
        self.slot[at : at + HEADER_BYTES] = raw
        self.do(self.receiver.on_announced(raw))

    def answer(self) -> None:
        """Answer all digests asked for so far."""
        questions, self.questions = self.questions, []
        for question in questions:
            chunk = question.chunk
            value = chunk_digest(self.placed[chunk.offset : chunk.offset + chunk.length])
            self.do(self.receiver.on_digest(chunk.index, value))

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case ComputeDigest():
                    self.questions.append(action)
                    if not self.slow:
                        self.answer()
                case CopyStaged(source, target, length):
                    self.slot[target : target + length] = self.slot[source : source + length]
                case ClearHeader(at):
                    self.slot[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)
                case SendFrame(frame):
                    self.frames.append(frame)
                case Finished() | Failed():
                    self.ends.append(action)
                case _:
                    raise AssertionError(f"a receiver must not ask for {action}")

    def taken_frames(self) -> list[ControlFrame]:
        frames, self.frames = self.frames, []
        return frames

    def _bytes_of(self, index: int) -> bytes:
        chunk = self.receiver.plan.chunk(index)
        return self.payload[chunk.offset : chunk.offset + chunk.length]


def deliver_honestly(rig: Rig) -> None:
    if rig.receiver.settings.mode == "fedrdma" and rig.receiver.plan.count:
        for chunk in rig.receiver.plan:
            rig.write(chunk.index)
            rig.announce(rig.chunk_header(chunk.index))
    else:
        rig.write_all()
        rig.announce(rig.payload_header())


def start_of_a_transfer(rig: Rig) -> None:
    """The first chunk in mode `fedrdma`, all of them in the others: enough for one header."""
    if rig.receiver.settings.mode == "fedrdma":
        rig.write(0)
    else:
        rig.write_all()


# -- honest transfers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("plan", [PLAN, ChunkPlan(10, 4, 1), ChunkPlan(1, 4), EMPTY], ids=str)
def test_an_honest_payload_is_delivered_once_and_whole(mode: Mode, plan: ChunkPlan) -> None:
    rig = Rig(mode, plan)
    deliver_honestly(rig)
    assert rig.ends == [Finished()]
    assert rig.frames[-1] == Delivered(TRANSFER)
    assert rig.placed == rig.payload
    assert rig.receiver.placed_bytes == plan.total_bytes
    deliver_honestly(rig)
    assert rig.ends == [Finished()]
    assert rig.frames.count(Delivered(TRANSFER)) == 1


def test_fedrdma_acknowledges_each_chunk_after_it_was_read_out_and_checked() -> None:
    rig = Rig("fedrdma", slow=True)
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    assert rig.placed[:4] == PAYLOAD[:4]
    assert rig.frames == []
    rig.answer()
    assert rig.frames == [ChunkAck(TRANSFER, 0)]
    assert rig.receiver.placed_bytes == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_header_that_was_read_is_cleared_so_that_the_next_one_is_told_from_it(mode: Mode) -> None:
    rig = Rig(mode)
    start_of_a_transfer(rig)
    rig.announce(rig.chunk_header(0) if mode == "fedrdma" else rig.payload_header())
    at = rig.layout.header_at
    assert not any(rig.slot[at : at + HEADER_BYTES])


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_hinted_chunks_are_checked_while_they_are_warm_and_not_again(mode: Mode) -> None:
    rig = Rig(mode)
    rig.write_all(hint=True)
    assert rig.receiver.placed_bytes == len(PAYLOAD)
    rig.slow = True
    rig.announce(rig.payload_header())
    assert rig.questions == []
    assert rig.ends == [Finished()]


def test_a_header_waits_for_the_digests_still_being_computed() -> None:
    rig = Rig("fedrdma-e", slow=True)
    rig.write_all(hint=True)
    rig.announce(rig.payload_header())
    assert len(rig.questions) == PLAN.count, "nothing is computed twice"
    assert rig.ends == []
    rig.answer()
    assert rig.ends == [Finished()]


@pytest.mark.parametrize(
    ("offset", "length"), [(4096, 3), (4097, 4), (0, 4), (4095, 4), (4096 + 10, 0), (4096 + 100, 4), (-4, 4)]
)
def test_a_hint_that_is_not_of_a_whole_chunk_is_ignored(offset: int, length: int) -> None:
    rig = Rig("fedrdma-e", slow=True)
    rig.do(rig.receiver.on_landed(offset, length))
    assert rig.questions == []
    assert rig.receiver.placed_bytes == 0


def test_a_hint_that_says_the_digest_saves_computing_it() -> None:
    rig = Rig("fedrdma-e", slow=True)
    for chunk, digest in zip(rig.receiver.plan, rig.digests(), strict=True):
        rig.write(chunk.index)
        rig.do(rig.receiver.on_landed(rig.layout.write_offset(chunk), chunk.length, digest))
    rig.announce(rig.payload_header())
    assert rig.questions == []
    assert rig.ends == [Finished()]


def test_a_digest_of_damaged_bytes_in_a_hint_has_the_payload_sent_again() -> None:
    rig = Rig("fedrdma-e", slow=True)
    rig.announce(rig.payload_header())
    rig.questions.clear()
    for chunk, digest in zip(rig.receiver.plan, rig.digests(), strict=True):
        rig.do(rig.receiver.on_landed(rig.layout.write_offset(chunk), chunk.length, digest ^ (chunk.index == 1)))
    assert rig.ends == []
    assert [frame.chunks for frame in rig.frames if isinstance(frame, ResendChunks)] == [(0, 1, 2)]


def test_hints_have_no_meaning_in_the_staging_area() -> None:
    rig = Rig("fedrdma", slow=True)
    rig.write(0, hint=True)
    assert rig.questions == []


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
@pytest.mark.parametrize("hint", [False, True], ids=["unseen", "hinted"])
def test_a_damaged_payload_is_asked_for_again_whole_and_delivered_then(mode: Mode, hint: bool) -> None:
    rig = Rig(mode)
    rig.write_all(hint=hint)
    rig.write(1, damaged=True, hint=hint)
    rig.announce(rig.payload_header())
    assert rig.taken_frames() == [ResendChunks(TRANSFER, (0, 1, 2))]
    assert rig.ends == []
    assert rig.receiver.placed_bytes == 0
    rig.write_all(hint=hint)
    rig.announce(rig.payload_header())
    assert rig.ends == [Finished()]


def test_a_damaged_fedrdma_chunk_is_asked_for_again_alone() -> None:
    rig = Rig("fedrdma")
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    rig.write(1, damaged=True)
    rig.announce(rig.chunk_header(1))
    assert rig.taken_frames() == [ChunkAck(TRANSFER, 0), ResendChunks(TRANSFER, (1,))]
    rig.write(1)
    rig.announce(rig.chunk_header(1))
    assert rig.taken_frames() == [ChunkAck(TRANSFER, 1)]


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_a_bad_payload_header_is_asked_for_again_alone(mode: Mode) -> None:
    rig = Rig(mode)
    rig.write_all()
    rig.announce(b"\xff" * HEADER_BYTES)
    assert rig.taken_frames() == [ResendChunks(TRANSFER, ())]
    rig.announce(rig.payload_header())
    assert rig.ends == [Finished()]


@pytest.mark.parametrize(("enable_bytes", "first"), [(0, 0), (1, 3)], ids=["plain", "Link-Enable"])
def test_a_bad_chunk_header_is_answered_by_asking_for_the_chunk_that_is_due(enable_bytes: int, first: int) -> None:
    rig = Rig("fedrdma", ChunkPlan(len(PAYLOAD), 4, enable_bytes))
    rig.write(first)
    rig.announce(b"\xff" * HEADER_BYTES)
    assert rig.taken_frames() == [ResendChunks(TRANSFER, (first,))]
    rig.announce(rig.chunk_header(first))
    assert rig.taken_frames() == [ChunkAck(TRANSFER, first)]


@pytest.mark.parametrize("mode", MODES)
def test_damage_without_end_is_refused(mode: Mode) -> None:
    rig = Rig(mode, max_resends=2)
    for _ in range(3):
        if mode == "fedrdma":
            rig.write(0, damaged=True)
            rig.announce(rig.chunk_header(0))
        else:
            rig.write_all(damaged=True)
            rig.announce(rig.payload_header())
    (end,) = rig.ends
    assert isinstance(end, Failed)
    assert end.code is ErrorCode.DIGEST_MISMATCH
    assert rig.frames[-1] == Refused(TRANSFER, "FR301", end.reason)
    assert len(rig.frames) == 3


@pytest.mark.parametrize("mode", MODES)
def test_bad_headers_without_end_are_refused(mode: Mode) -> None:
    rig = Rig(mode, max_resends=2)
    for _ in range(3):
        rig.announce(b"\xff" * HEADER_BYTES)
    assert [end.code for end in rig.ends if isinstance(end, Failed)] == [ErrorCode.HEADER_CORRUPT]


def test_damage_now_and_then_does_not_fail_a_fedrdma_transfer_that_makes_progress() -> None:
    rig = Rig("fedrdma", ChunkPlan(len(PAYLOAD), 1), max_resends=1)
    for chunk in rig.receiver.plan:
        rig.write(chunk.index, damaged=True)
        rig.announce(rig.chunk_header(chunk.index))
        rig.write(chunk.index)
        rig.announce(rig.chunk_header(chunk.index))
    assert rig.ends == [Finished()]


# -- repeated and late events -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_announcement_that_comes_twice_changes_nothing(mode: Mode) -> None:
    rig = Rig(mode, slow=True)
    start_of_a_transfer(rig)
    rig.announce(rig.chunk_header(0) if mode == "fedrdma" else rig.payload_header())
    rig.do(rig.receiver.on_announced(bytes(HEADER_BYTES)))
    assert rig.frames == []
    assert rig.receiver.resends == 0


def test_an_announcement_of_a_chunk_that_was_taken_in_already_is_not_taken_for_damage() -> None:
    rig = Rig("fedrdma")
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    rig.do(rig.receiver.on_announced(bytes(HEADER_BYTES)))
    assert rig.frames == [ChunkAck(TRANSFER, 0)]


def test_a_chunk_already_taken_in_is_acknowledged_again_and_not_copied_again() -> None:
    rig = Rig("fedrdma")
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    rig.write(0, damaged=True)
    rig.announce(rig.chunk_header(0))
    assert rig.taken_frames() == [ChunkAck(TRANSFER, 0), ChunkAck(TRANSFER, 0)]
    assert rig.placed[:4] == PAYLOAD[:4]


def test_a_chunk_sent_again_while_it_is_being_checked_is_not_copied_over_it() -> None:
    rig = Rig("fedrdma", slow=True)
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    rig.write(0, damaged=True)
    rig.announce(rig.chunk_header(0))
    rig.answer()
    assert rig.frames == [ChunkAck(TRANSFER, 0)]
    assert rig.placed[:4] == PAYLOAD[:4]


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_header_while_a_good_one_is_being_looked_into_is_ignored(mode: Mode) -> None:
    rig = Rig(mode, slow=True)
    start_of_a_transfer(rig)
    rig.announce(rig.chunk_header(0) if mode == "fedrdma" else rig.payload_header())
    rig.announce(b"\xff" * HEADER_BYTES)
    assert rig.frames == []
    rig.answer()
    assert rig.frames in ([ChunkAck(TRANSFER, 0)], [Delivered(TRANSFER)])


def test_the_same_payload_header_while_verifying_asks_for_nothing_twice() -> None:
    rig = Rig("fedrdma-e", slow=True)
    rig.write_all()
    rig.announce(rig.payload_header())
    rig.announce(rig.payload_header())
    assert len(rig.questions) == PLAN.count
    rig.answer()
    assert rig.ends == [Finished()]


def test_a_chunk_written_over_while_verifying_is_checked_anew() -> None:
    rig = Rig("fedrdma-e", slow=True)
    rig.write_all()
    rig.announce(rig.payload_header())
    good = {question.chunk.index: digest for question, digest in zip(rig.questions, rig.digests(), strict=True)}
    rig.questions.clear()
    rig.write(1, damaged=True, hint=True)
    for index, value in good.items():
        rig.do(rig.receiver.on_digest(index, value))
    assert rig.ends == []
    rig.answer()
    assert rig.ends == []
    assert rig.frames == [ResendChunks(TRANSFER, (0, 1, 2))]


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_a_digest_computed_before_damage_was_reported_does_not_vouch_for_what_came_after(mode: Mode) -> None:
    rig = Rig(mode, slow=True)
    rig.write_all()
    rig.write(0, hint=True)
    early = rig.digests()[0]
    rig.questions.clear()
    rig.write(0, hint=True)  # written over: the early computation is outdated, its answer still to come
    rig.announce(rig.payload_header())
    rig.write(0, damaged=True)
    rig.answer()
    rig.do(rig.receiver.on_digest(0, early))
    assert rig.ends == []
    rig.answer()
    assert rig.ends == []
    assert rig.frames == [ResendChunks(TRANSFER, (0, 1, 2))]


# -- restart ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_after_a_restart_only_a_new_header_delivers(mode: Mode) -> None:
    rig = Rig(mode, slow=True)
    rig.write_all()
    rig.announce(rig.payload_header())
    rig.do(rig.receiver.restart())
    rig.answer()
    assert rig.ends == [], "the sender is writing again: what was verified may change"
    rig.slow = False
    rig.announce(rig.payload_header())
    rig.answer()
    assert rig.ends == [Finished()]


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_the_header_of_a_half_done_attempt_does_not_speak_for_the_next(mode: Mode) -> None:
    rig = Rig(mode, slow=True)
    rig.write_all()
    rig.announce(rig.payload_header())
    rig.questions.clear()
    rig.do(rig.receiver.restart(same_slot=False))
    for chunk in PLAN:
        rig.do(rig.receiver.on_digest(chunk.index, 0))
    rig.slow = False
    rig.write_all(hint=True)
    assert rig.ends == []
    rig.announce(rig.payload_header())
    assert rig.ends == [Finished()]


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
@pytest.mark.parametrize("same_slot", [True, False])
def test_a_digest_from_before_a_restart_does_not_vouch_for_what_came_after(mode: Mode, same_slot: bool) -> None:
    rig = Rig(mode, slow=True)
    rig.write_all(hint=True)
    good = rig.digests()
    rig.questions.clear()
    rig.do(rig.receiver.restart(same_slot=same_slot))
    rig.write_all(damaged=True)
    rig.announce(rig.payload_header())
    for index, value in enumerate(good):
        rig.do(rig.receiver.on_digest(index, value))
    assert rig.ends == []
    rig.answer()
    assert rig.frames == [ResendChunks(TRANSFER, (0, 1, 2))]


def tagged_header(rig: Rig) -> ChunkHeader:
    return dataclasses.replace(rig.payload_header(), digest=payload_digest([TAGGED] * rig.receiver.plan.count))


def land_tagged(rig: Rig, *indices: int) -> None:
    for index in indices:
        rig.write(index)
        chunk = rig.receiver.plan.chunk(index)
        rig.do(rig.receiver.on_landed(rig.layout.write_offset(chunk), chunk.length, TAGGED))


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
def test_chunks_that_tags_vouch_for_are_delivered_without_a_look_and_stay_over_a_restart(mode: Mode) -> None:
    rig = Rig(mode, slow=True)
    land_tagged(rig, 1, 2)
    rig.do(rig.receiver.restart())
    land_tagged(rig, 0)
    rig.announce(tagged_header(rig))
    assert (rig.questions, rig.ends) == ([], [Finished()])


@pytest.mark.parametrize("mode", ["grpc", "fedrdma-e"])
@pytest.mark.parametrize("landed_before", [True, False])
def test_a_header_for_chunks_with_tags_delivers_none_that_did_not_come_with_one(
    mode: Mode, landed_before: bool
) -> None:
    rig = Rig(mode)
    rig.write(1)
    if landed_before:
        land_tagged(rig, 1)
        rig.do(rig.receiver.restart(same_slot=False))
    land_tagged(rig, 0, 2)
    rig.announce(tagged_header(rig))
    assert (rig.frames, rig.ends) == ([ResendChunks(TRANSFER, (0, 1, 2))], [])
    land_tagged(rig, 0, 1, 2)
    rig.announce(tagged_header(rig))
    assert rig.ends == [Finished()]


def test_where_tags_have_to_vouch_what_did_not_come_is_asked_for_again_and_not_looked_at() -> None:
    plan = ChunkPlan(2000, 1000)
    receiver = Receiver(TRANSFER, plan, ReceiveSettings("fedrdma-e", tagged=True))
    receiver.on_landed(receiver.layout.write_offset(plan.chunk(1)), 1000, TAGGED)
    header = ChunkHeader(HeaderKind.PAYLOAD, TRANSFER, 2000, 0, 2000, payload_digest([7, TAGGED]), 0, 2)
    clear = ClearHeader(receiver.layout.header_at)
    assert receiver.on_header(header) == [clear, SendFrame(ResendChunks(TRANSFER, (0,)))]
    receiver = Receiver(TRANSFER, plan, ReceiveSettings("fedrdma", tagged=True))
    clear = ClearHeader(receiver.layout.header_at)
    staged = ChunkHeader(HeaderKind.CHUNK, TRANSFER, 2000, 0, 1000, 7, 0, 2)
    for length in (0, 999):
        receiver.on_landed(receiver.layout.staged_chunk_at, length, TAGGED)
        assert receiver.on_header(staged) == [clear, SendFrame(ResendChunks(TRANSFER, (0,)))]
    receiver.on_landed(receiver.layout.staged_chunk_at, 1000, TAGGED)
    copied = receiver.on_header(staged)
    assert [type(action) for action in copied] == [ClearHeader, CopyStaged, ComputeDigest]


def test_fedrdma_keeps_what_it_has_taken_in_over_a_restart_in_the_same_slot() -> None:
    rig = Rig("fedrdma", slow=True)
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    rig.answer()
    rig.write(1)
    rig.announce(rig.chunk_header(1))
    rig.do(rig.receiver.restart())
    assert rig.receiver.placed_bytes == 4
    rig.write(1, damaged=True)
    rig.announce(rig.chunk_header(1))
    rig.do(rig.receiver.on_digest(1, rig.digests()[1]))
    assert ChunkAck(TRANSFER, 1) not in rig.frames, "the answer is about the bytes before the restart"
    rig.answer()
    assert rig.frames[-1] == ResendChunks(TRANSFER, (1,))


def test_fedrdma_has_nothing_in_a_new_slot() -> None:
    rig = Rig("fedrdma")
    rig.write(0)
    rig.announce(rig.chunk_header(0))
    rig.do(rig.receiver.restart(same_slot=False))
    rig.slot[:] = bytes(len(rig.slot))
    assert rig.receiver.placed_bytes == 0
    deliver_honestly(rig)
    assert rig.ends == [Finished()]
    assert rig.placed == PAYLOAD


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_clears_the_header_of_the_half_done_attempt(mode: Mode) -> None:
    rig = Rig(mode)
    assert rig.receiver.restart() == [ClearHeader(rig.layout.header_at)]


@pytest.mark.parametrize("mode", MODES)
def test_a_restart_after_the_end_does_nothing(mode: Mode) -> None:
    rig = Rig(mode)
    deliver_honestly(rig)
    assert rig.receiver.restart() == []
    assert rig.receiver.state is ReceiverState.DELIVERED


# -- hostile headers ----------------------------------------------------------------------------------------------


Lie = Callable[[ChunkHeader], ChunkHeader]

LIES_OF_ANY_HEADER: dict[str, Lie] = {
    "another total": lambda header: dataclasses.replace(header, total_bytes=11),
    "another count": lambda header: dataclasses.replace(header, count=4),
    "an index too high": lambda header: dataclasses.replace(header, index=3),
    "another length": lambda header: dataclasses.replace(header, length=header.length + 1),
    "another offset": lambda header: dataclasses.replace(header, offset=1),
    "the largest numbers": lambda header: dataclasses.replace(header, offset=2**64 - 1, length=2**64 - 1),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lie", LIES_OF_ANY_HEADER)
def test_a_header_that_contradicts_the_offer_is_refused(mode: Mode, lie: str) -> None:
    rig = Rig(mode)
    start_of_a_transfer(rig)
    honest = rig.chunk_header(0) if mode == "fedrdma" else rig.payload_header()
    rig.announce(LIES_OF_ANY_HEADER[lie](honest))
    (end,) = rig.ends
    assert isinstance(end, Failed)
    assert end.code is ErrorCode.UNEXPECTED_EVENT
    assert rig.frames == [Refused(TRANSFER, "FR305", end.reason)]


@pytest.mark.parametrize("index", [3, 2**32 - 1])
def test_a_header_of_a_chunk_that_does_not_exist_is_refused(index: int) -> None:
    rig = Rig("fedrdma")
    rig.announce(dataclasses.replace(rig.chunk_header(0), index=index))
    assert isinstance(rig.ends[0], Failed)


def test_a_header_of_one_chunk_with_the_place_of_another_is_refused() -> None:
    rig = Rig("fedrdma")
    rig.announce(dataclasses.replace(rig.chunk_header(0), index=1))
    assert isinstance(rig.ends[0], Failed)


@pytest.mark.parametrize("mode", MODES)
def test_a_header_of_the_other_kind_is_refused(mode: Mode) -> None:
    rig = Rig(mode)
    rig.write_all()
    rig.announce(rig.payload_header() if mode == "fedrdma" else rig.chunk_header(0))
    assert isinstance(rig.ends[0], Failed)


@pytest.mark.parametrize("mode", MODES)
def test_a_chunk_header_for_an_empty_payload_is_refused(mode: Mode) -> None:
    rig = Rig(mode, EMPTY)
    rig.announce(dataclasses.replace(rig.payload_header(), kind=HeaderKind.CHUNK))
    assert isinstance(rig.ends[0], Failed)


def test_a_second_payload_header_with_another_digest_is_refused() -> None:
    rig = Rig("fedrdma-e", slow=True)
    rig.write_all()
    rig.announce(rig.payload_header())
    rig.announce(dataclasses.replace(rig.payload_header(), digest=1))
    assert isinstance(rig.ends[0], Failed)
    rig.answer()
    assert len(rig.ends) == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_header_left_by_another_transfer_is_asked_for_again_and_not_believed(mode: Mode) -> None:
    rig = Rig(mode)
    start_of_a_transfer(rig)
    honest = rig.chunk_header(0) if mode == "fedrdma" else rig.payload_header()
    rig.announce(dataclasses.replace(honest, transfer=TRANSFER - 1))
    assert rig.ends == []
    assert [type(frame) for frame in rig.frames] == [ResendChunks]


@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_digest_for_an_empty_payload_is_not_delivered(mode: Mode) -> None:
    rig = Rig(mode, EMPTY)
    rig.announce(dataclasses.replace(rig.payload_header(), digest=1))
    assert rig.ends == []
    assert rig.frames == [ResendChunks(TRANSFER, ())]


# -- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_abort_ends_the_transfer_with_the_senders_reason_and_no_answer(mode: Mode) -> None:
    rig = Rig(mode)
    rig.do(rig.receiver.on_abort(ErrorCode.IDLE_TIMEOUT, "stalled"))
    assert rig.ends == [Failed(ErrorCode.IDLE_TIMEOUT, "stalled")]
    assert rig.frames == []


@pytest.mark.parametrize("mode", MODES)
def test_a_receiver_can_give_up_and_tells_the_sender(mode: Mode) -> None:
    rig = Rig(mode)
    rig.do(rig.receiver.cancel(ErrorCode.GATEWAY_STOPPING, "stopping"))
    assert rig.frames == [Refused(TRANSFER, "FR607", "stopping")]
    assert rig.ends == [Failed(ErrorCode.GATEWAY_STOPPING, "stopping")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "failed"])
def test_nothing_happens_after_the_end(mode: Mode, delivered: bool) -> None:
    rig = Rig(mode)
    if delivered:
        deliver_honestly(rig)
    else:
        rig.do(rig.receiver.on_abort(ErrorCode.IDLE_TIMEOUT, "stalled"))
    receiver = rig.receiver
    assert receiver.on_landed(4096, 4) == []
    assert receiver.on_announced(rig.payload_header().encode()) == []
    assert receiver.on_header(rig.chunk_header(0)) == []
    assert receiver.on_bad_header("bad") == []
    assert receiver.on_digest(0, 1) == []
    assert receiver.on_abort(ErrorCode.IDLE_TIMEOUT, "stalled") == []
    assert receiver.cancel(ErrorCode.GATEWAY_STOPPING, "stopping") == []
    assert len(rig.ends) == 1
