"""Whatever is lost, repeated or reordered, a transfer ends whole or with a typed failure."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.actions import (
    Action,
    ClearHeader,
    ComputeDigest,
    Failed,
    Finished,
    PostChunk,
    SendFrame,
    SendReport,
    WriteHeader,
)
from fedrdma_fate.core.digest import chunk_digest
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import HEADER_SPACE_BYTES, ChunkPlan
from fedrdma_fate.core.x.arrival_map import ArrivalMap
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.core.x.repair_code import RepairPlan
from fedrdma_fate.core.x.sender import XSender, XSendSettings
from fedrdma_fate.wire.frames import Delivered, ResendChunks
from tests.support.sim.clock import VirtualClock


class Chaos:
    """Both ends with real bytes; every chunk and report is lost, repeated and delayed at random."""

    def __init__(
        self,
        plan: ChunkPlan,
        loss: float,
        report_loss: float,
        damage: float,
        seed: int,
        repairs: RepairPlan | None = None,
        known: PathState | None = None,
        tail: range = range(0),
    ) -> None:
        self.clock = VirtualClock()
        self.chance = random.Random(seed)
        self.plan, self.loss, self.report_loss, self.damage = plan, loss, report_loss, damage
        self.payload = self.chance.randbytes(plan.total_bytes)
        self.slot = bytearray(plan.total_bytes)
        settings = XSendSettings(tag=7, queue_pairs=3, mtu_bytes=16, repairs=repairs, tail=tail)
        self.sender = XSender(1, plan, settings, RateController(known))
        self.receiver = XReceiver(1, plan, XReceiveSettings(tag=7, repairs=repairs, tail=tail))
        self.sent: list[object] = []
        self.received: list[object] = []

    def run(self) -> None:
        self.act(self.sender.start(0.0))
        self.clock.run(100_000)

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case PostChunk():
                    for _ in range(self.chance.choice((1, 1, 2))):
                        if self.chance.random() >= self.loss:
                            self.clock.after(self.chance.uniform(0.01, 0.03), lambda post=action: self.land(post))
                case ComputeDigest(chunk):
                    piece = self.payload[chunk.offset : chunk.offset + chunk.length]
                    self.act(self.sender.on_digest(chunk.index, chunk_digest(piece)))
                case WriteHeader(_, header, _):
                    raw = header.encode()
                    self.clock.after(0.01, lambda raw=raw: self.answer(self.receiver.on_announced(raw)))
                case Finished() | Failed():
                    self.sent.append(action)
                case _:
                    self.carry_out(action)
        self.arm(self.sender)

    def carry_out(self, action: Action) -> None:
        """What only some transfers ask for."""
        assert isinstance(action, SendFrame | SendReport | ClearHeader), action

    def answer(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ComputeDigest(chunk):
                    piece = bytes(self.slot[chunk.offset : chunk.offset + chunk.length])
                    self.answer(self.receiver.on_digest(chunk.index, chunk_digest(piece)))
                case SendReport(report) if self.chance.random() >= self.report_loss:
                    delay = self.chance.uniform(0.01, 0.03)
                    self.clock.after(delay, lambda r=report: self.act(self.sender.on_report(r, self.clock.now)))
                case SendFrame(Delivered()):
                    self.clock.after(0.01, lambda: self.act(self.sender.on_delivered(self.clock.now)))
                case SendFrame(ResendChunks(chunks=chunks)):
                    self.clock.after(0.01, lambda c=chunks: self.act(self.sender.on_resend(c, self.clock.now)))
                case Finished() | Failed():
                    self.received.append(action)
                    if isinstance(action, Finished):
                        assert self.slot == self.payload
                case _:
                    self.carry_out(action)
        self.arm(self.receiver)

    def land(self, post: PostChunk) -> None:
        at = post.at - HEADER_SPACE_BYTES
        assert 0 <= at <= at + post.chunk.length <= self.plan.total_bytes
        assert (at, post.chunk) == (post.chunk.offset, self.plan.chunk(post.chunk.index))
        if self.receiver.finished:
            return
        data = bytearray(self.payload[at : at + post.chunk.length])
        if self.chance.random() < self.damage:
            data[0] ^= 1
        self.slot[at : at + post.chunk.length] = data
        self.answer(self.receiver.on_chunk(post.immediate, self.clock.now, self.clock.now))

    def arm(self, end: XSender | XReceiver) -> None:
        due = end.timer()
        if due is not None:
            self.clock.at(due, lambda: self.on_timer(end, due))

    def on_timer(self, end: XSender | XReceiver, due: float) -> None:
        if end.timer() == due:
            if isinstance(end, XSender):
                self.act(end.on_timer(self.clock.now))
            else:
                self.answer(end.on_timer(self.clock.now))


@settings(max_examples=60)
# where the difference of two times was rounded down, the idle time-out was due for ever
@example(total=540, chunk=28, loss=0.9, report_loss=0.5, seed=1753387754)
@given(
    total=st.integers(0, 600),
    chunk=st.integers(1, 64),
    loss=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    report_loss=st.sampled_from([0.0, 0.5, 0.9]),
    seed=st.integers(0, 2**32),
)
def test_loss_repetition_and_reordering_end_in_the_whole_payload(
    total: int, chunk: int, loss: float, report_loss: float, seed: int
) -> None:
    chaos = Chaos(ChunkPlan(total, chunk), loss, report_loss, 0.0, seed)
    chaos.run()
    assert chaos.received in ([Finished()], [])
    assert len(chaos.sent) == 1
    if chaos.sent == [Finished()]:
        assert chaos.slot == chaos.payload
    else:
        assert loss >= 0.5, "with so little loss nothing may fail"


@settings(max_examples=60)
@given(positions=st.permutations(range(40)), cut=st.integers(0, 40))
def test_a_report_says_exactly_what_has_arrived(positions: list[int], cut: int) -> None:
    theirs, ours = ArrivalMap(40), ArrivalMap(40)
    for position in positions[:cut]:
        theirs.add(position)
    for position in positions[: cut // 2]:
        ours.add(position)
    new = list(ours.merge(theirs.complete, theirs.beyond))
    assert sorted(new) == sorted(positions[cut // 2 : cut])
    assert [position in ours for position in range(40)] == [position in positions[:cut] for position in range(40)]
