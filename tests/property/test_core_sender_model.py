"""Every event in every state of the sender: long random walks, by peers and drivers of any kind."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, Finished, SendFrame, WriteChunk, WriteHeader
from fedrdma_fate.core.damage import pack_digests
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sender import GRPC_WINDOW, Sender, SenderState, SendSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, ChunkDigests, Mode
from fedrdma_fate.wire.header import HEADER_BYTES, HeaderKind

MODES: list[Mode] = ["grpc", "fedrdma", "fedrdma-e"]


def any_plan(chance: random.Random) -> ChunkPlan:
    total = chance.choice([0, 1, chance.randint(2, 40)])
    chunk = chance.randint(max(1, total // 7), 41)
    enable = chance.choice([0, chance.randint(0, min(chunk, max(0, total - 1)))])
    return ChunkPlan(total, chunk, enable)


class Walk:
    """A sender, and the events that may be fired at it; checks whatever it asks for."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.plan = any_plan(chance)
        self.mode = chance.choice(MODES)
        self.sender = Sender(7, self.plan, SendSettings(self.mode, idle_timeout=10.0))
        self.now = 0.0
        self.ends: list[Action] = []
        self.requests: list[int] = [0, 10**9]
        self.unanswered: list[int] = []
        self.written: set[int] = set()
        self.staged: int | None = None

    def any_event(self) -> None:
        often = [self.answer_a_digest, self.complete_a_write, self.acknowledge_a_chunk]
        middling = [self.ask_again, self.ask_for_digests, self.pause, self.resume]
        seldom = [self.start, self.let_time_pass, self.answer_a_digest_of_no_chunk, self.end_now_and_then]
        self.chance.choice([*often, *often, *often, *middling, *middling, *seldom])()
        self.check_state()

    def start(self) -> None:
        if self.sender.state is SenderState.IDLE or self.sender.finished:
            self.carry_out(self.sender.start(self.now))
        else:
            with pytest.raises(RuntimeError):
                self.sender.start(self.now)

    def resume(self) -> None:
        same_slot = self.chance.random() < 0.5
        if self.sender.state is SenderState.PAUSED or self.sender.finished:
            if not same_slot:
                self.written.clear()
            self.carry_out(self.sender.resume(self.now, same_slot=same_slot))
        else:
            with pytest.raises(RuntimeError):
                self.sender.resume(self.now, same_slot=same_slot)

    def pause(self) -> None:
        self.sender.pause()

    def answer_a_digest(self) -> None:
        if self.unanswered:
            index = self.unanswered.pop(self.chance.randrange(len(self.unanswered)))
            self.carry_out(self.sender.on_digest(index, 100 + index))

    def answer_a_digest_of_no_chunk(self) -> None:
        self.carry_out(self.sender.on_digest(self.chance.choice([-1, self.plan.count]), 1))

    def complete_a_write(self) -> None:
        self.carry_out(self.sender.on_write_done(self.chance.choice(self.requests[-6:]), self.now))

    def acknowledge_a_chunk(self) -> None:
        self.carry_out(self.sender.on_chunk_ack(self.chance.randint(-1, 8), self.now))

    def ask_again(self) -> None:
        lowest, highest = (-1, 8) if self.chance.random() < 0.05 else (0, self.plan.count - 1)
        wanted = [index for index in range(lowest, highest + 1) if self.chance.random() < 0.4]
        was_idle = self.sender.state is SenderState.IDLE
        self.carry_out(self.sender.on_resend(wanted, self.now))
        if not was_idle and any(not 0 <= index < self.plan.count for index in wanted):
            assert self.sender.finished

    def ask_for_digests(self) -> None:
        self.carry_out(self.sender.on_digest_request())

    def end_now_and_then(self) -> None:
        match self.chance.randrange(20):
            case 0:
                self.carry_out(self.sender.on_delivered(self.now))
            case 1:
                self.carry_out(self.sender.on_refused(ErrorCode.SPILL_FAILED, "no room"))
            case 2:
                self.carry_out(self.sender.cancel(ErrorCode.SESSION_CLOSED, "gone"))

    def let_time_pass(self) -> None:
        self.now += self.chance.choice([0.1, 0.1, 1.0, 4.0, 11.0])
        due = self.sender.timer()
        actions = self.sender.on_timer(self.now)
        assert bool(actions) == (due is not None and self.now >= due)
        self.carry_out(actions)

    def carry_out(self, actions: Iterable[Action]) -> None:
        was_over = bool(self.ends)
        for action in actions:
            assert not was_over, "an action after the end"
            match action:
                case WriteChunk(request, chunk, at):
                    assert chunk == self.plan.chunk(chunk.index)
                    assert at + chunk.length <= self.sender.layout.slot_bytes
                    self.written.add(chunk.index)
                    self.staged = chunk.index
                    self.requests.append(request)
                case WriteHeader(request, header, at):
                    assert at + HEADER_BYTES <= self.sender.layout.slot_bytes
                    self.check_header(header.kind, header.index, header.digest)
                    self.requests.append(request)
                case ComputeDigest(chunk):
                    self.unanswered.append(chunk.index)
                case SendFrame(frame):
                    assert isinstance(frame, Abort | ChunkDigests)
                    if isinstance(frame, ChunkDigests):
                        assert frame.digests == pack_digests([100 + index for index in range(self.plan.count)])
                case Finished() | Failed():
                    self.ends.append(action)
                case _:
                    raise AssertionError(f"a sender must not ask for {action}")
        assert len(set(self.requests)) == len(self.requests)

    def check_header(self, kind: HeaderKind, index: int, digest: int) -> None:
        if self.mode == "fedrdma" and self.plan.count:
            assert kind is HeaderKind.CHUNK
            assert index == self.staged, "the header of another chunk than the staged one"
            assert digest == 100 + index
        else:
            assert kind is HeaderKind.PAYLOAD
            assert self.written == set(range(self.plan.count)), "a payload header before all its chunks"
            assert digest == payload_digest([100 + chunk.index for chunk in self.plan])

    def check_state(self) -> None:
        assert len(self.ends) <= 1
        assert bool(self.ends) == self.sender.finished
        running = self.sender.state in (SenderState.SENDING, SenderState.AWAITING_DELIVERY)
        assert (self.sender.timer() is not None) == running
        window = GRPC_WINDOW if self.mode == "grpc" else 1
        assert self.sender.in_flight_bytes <= window * self.plan.chunk_bytes
        assert 0 <= self.sender.arrived_bytes <= self.plan.total_bytes


@settings(max_examples=800)
@given(seed=st.integers(0, 2**64))
def test_no_order_of_events_makes_a_sender_break_its_word(seed: int) -> None:
    walk = Walk(random.Random(seed))
    if walk.chance.random() < 0.95:
        walk.start()
    for _ in range(40):
        walk.any_event()
