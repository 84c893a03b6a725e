"""Every event in every state of the sender, in any order, from peers and drivers of any kind."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, Finished, SendFrame, WriteChunk, WriteHeader
from fedrdma_fate.core.digest import payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sender import GRPC_WINDOW, Sender, SenderState, SendSettings
from fedrdma_fate.wire.errors import ErrorCode
from fedrdma_fate.wire.frames import Abort, Mode
from fedrdma_fate.wire.header import HEADER_BYTES, HeaderKind

INDICES = st.integers(-1, 8)


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    total = draw(st.integers(0, 40))
    chunk = draw(st.integers(max(1, total // 7), 41))
    return ChunkPlan(total, chunk, draw(st.integers(0, min(chunk, max(0, total - 1)))))


class SenderMachine(RuleBasedStateMachine):
    """Fires events at a sender and checks what it asks for."""

    @initialize(plan=plans(), mode=st.sampled_from(["grpc", "fedrdma", "fedrdma-e"]))
    def begin(self, plan: ChunkPlan, mode: Mode) -> None:
        self.plan, self.mode = plan, mode
        self.sender = Sender(7, plan, SendSettings(mode, idle_timeout=10.0))
        self.now = 0.0
        self.ends: list[Action] = []
        self.requests: list[int] = []
        self.unanswered: list[int] = []
        self.written: set[int] = set()

    @rule()
    def start(self) -> None:
        if self.sender.state is SenderState.IDLE or self.sender.finished:
            self.carry_out(self.sender.start(self.now))
        else:
            with pytest.raises(RuntimeError):
                self.sender.start(self.now)

    @rule(same_slot=st.booleans())
    def resume(self, same_slot: bool) -> None:
        if self.sender.state is SenderState.PAUSED or self.sender.finished:
            if not same_slot:
                self.written.clear()
            self.carry_out(self.sender.resume(self.now, same_slot=same_slot))
        else:
            with pytest.raises(RuntimeError):
                self.sender.resume(self.now, same_slot=same_slot)

    @rule(data=st.data())
    def answer_a_digest(self, data: st.DataObject) -> None:
        if self.unanswered:
            index = self.unanswered.pop(data.draw(st.integers(0, len(self.unanswered) - 1)))
            self.carry_out(self.sender.on_digest(index, 100 + index))

    @rule(index=st.sampled_from([-1, 8]))
    def answer_a_digest_nobody_asked_for(self, index: int) -> None:
        self.carry_out(self.sender.on_digest(index, 1))

    @rule(data=st.data())
    def complete_a_write(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([*self.requests, 0, 10**9]))
        self.carry_out(self.sender.on_write_done(request, self.now))

    @rule(index=INDICES)
    def acknowledge_a_chunk(self, index: int) -> None:
        self.carry_out(self.sender.on_chunk_ack(index, self.now))

    @rule(indices=st.lists(INDICES, max_size=4))
    def ask_again(self, indices: list[int]) -> None:
        idle = self.sender.state is SenderState.IDLE
        actions = self.sender.on_resend(indices, self.now)
        self.carry_out(actions)
        if not idle and any(not 0 <= index < self.plan.count for index in indices):
            assert self.sender.finished

    @rule()
    def pause(self) -> None:
        self.sender.pause()

    @rule()
    def deliver(self) -> None:
        self.carry_out(self.sender.on_delivered(self.now))

    @rule()
    def refuse(self) -> None:
        self.carry_out(self.sender.on_refused(ErrorCode.SPILL_FAILED, "no room"))

    @rule()
    def cancel(self) -> None:
        self.carry_out(self.sender.cancel(ErrorCode.SESSION_CLOSED, "gone"))

    @rule(seconds=st.sampled_from([0.1, 4.0, 11.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
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
                    self.requests.append(request)
                case WriteHeader(request, header, at):
                    assert at + HEADER_BYTES <= self.sender.layout.slot_bytes
                    self.check_header(header.kind, header.index, header.digest)
                    self.requests.append(request)
                case ComputeDigest(chunk):
                    self.unanswered.append(chunk.index)
                case SendFrame(frame):
                    assert isinstance(frame, Abort)
                case Finished() | Failed():
                    self.ends.append(action)
                case _:
                    raise AssertionError(f"a sender must not ask for {action}")
        assert len(set(self.requests)) == len(self.requests)

    def check_header(self, kind: HeaderKind, index: int, digest: int) -> None:
        if self.mode == "fedrdma" and self.plan.count:
            assert kind is HeaderKind.CHUNK
            assert index in self.written
            assert digest == 100 + index
        else:
            assert kind is HeaderKind.PAYLOAD
            assert self.written == set(range(self.plan.count)), "a payload header before all its chunks"
            assert digest == payload_digest([100 + chunk.index for chunk in self.plan])

    @invariant()
    def ends_once_and_as_its_state_says(self) -> None:
        if not hasattr(self, "sender"):
            return
        assert len(self.ends) <= 1
        assert bool(self.ends) == self.sender.finished
        running = self.sender.state in (SenderState.SENDING, SenderState.AWAITING_DELIVERY)
        assert (self.sender.timer() is not None) == running
        window = GRPC_WINDOW if self.mode == "grpc" else 1
        assert self.sender.in_flight_bytes <= window * self.plan.chunk_bytes
        assert 0 <= self.sender.arrived_bytes <= self.plan.total_bytes


SenderMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestSenderMachine = SenderMachine.TestCase
