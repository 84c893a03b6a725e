"""A payload that is sent while it is still being written, from its end to its start."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fedrdma_fate.core.actions import Action, ComputeDigest, Finished, WriteChunk, WriteHeader
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sender import Sender, SenderState, SendSettings
from fedrdma_fate.wire.frames import Mode

PLAN = ChunkPlan(10, 4)
ENABLED = ChunkPlan(10, 4, 1)


class Rig:
    """Answers digests at once, and remembers which chunks were posted."""

    def __init__(self, mode: Mode, plan: ChunkPlan, written_from: int) -> None:
        self.sender = Sender(7, plan, SendSettings(mode), written_from)
        self.posted: list[int] = []
        self.under_way: list[WriteChunk] = []
        self.headers: list[WriteHeader] = []
        self.finished = False

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case WriteChunk():
                    self.posted.append(action.chunk.index)
                    self.under_way.append(action)
                case WriteHeader():
                    self.headers.append(action)
                case ComputeDigest(chunk):
                    self.do(self.sender.on_digest(chunk.index, 100 + chunk.index))
                case Finished():
                    self.finished = True

    def complete(self) -> None:
        """Everything posted arrives."""
        while self.under_way:
            write = self.under_way.pop(0)
            self.do(self.sender.on_write_done(write.work_request, 0.0))
            self.do(self.sender.on_chunk_ack(write.chunk.index, 0.0))


def test_nothing_is_posted_before_it_is_written() -> None:
    rig = Rig("fedrdma-e", PLAN, written_from=10)
    rig.do(rig.sender.start(0.0))
    assert rig.posted == []
    rig.do(rig.sender.on_written(9, 1.0))
    assert rig.posted == [], "the last chunk begins at 8"
    rig.do(rig.sender.on_written(8, 1.0))
    assert rig.posted == [2]


@pytest.mark.parametrize("plan", [PLAN, ENABLED])
@pytest.mark.parametrize("mode", ["grpc", "fedrdma", "fedrdma-e"])
@pytest.mark.parametrize("steps", [[0], [8, 0], [9, 8, 7, 4, 3, 0], [5, 1, 0]])
def test_every_chunk_is_sent_once_however_the_writing_proceeds(mode: Mode, plan: ChunkPlan, steps: list[int]) -> None:
    rig = Rig(mode, plan, written_from=10)
    rig.do(rig.sender.start(0.0))
    written = 10
    for written in steps:
        rig.do(rig.sender.on_written(written, 0.0))
        rig.complete()
        assert all(plan.chunk(index).offset >= written for index in rig.posted)
    assert sorted(rig.posted) == list(range(plan.count))
    assert rig.sender.state is SenderState.AWAITING_DELIVERY
    rig.do(rig.sender.on_delivered(0.0))
    assert rig.finished
    assert rig.sender.resent_bytes == 0


def test_waiting_for_the_owner_of_the_payload_is_never_timed_out() -> None:
    rig = Rig("fedrdma-e", PLAN, written_from=8)
    rig.do(rig.sender.start(0.0))
    assert rig.sender.timer() is not None, "a chunk is on its way"
    rig.complete()
    assert rig.sender.timer() is None
    assert rig.sender.on_timer(1e6) == []
    rig.do(rig.sender.on_written(0, 1e6))
    due = rig.sender.timer()
    assert due is not None
    assert due > 1e6, "from here on the network is waited for, and only from here on"


def test_after_a_pause_what_is_not_written_is_still_waited_for() -> None:
    rig = Rig("fedrdma-e", PLAN, written_from=4)
    rig.do(rig.sender.start(0.0))
    rig.sender.pause()
    rig.do(rig.sender.on_written(4, 0.0))
    assert rig.posted == [2]
    rig.under_way.clear()
    rig.do(rig.sender.resume(0.0, same_slot=True))
    rig.complete()
    assert rig.posted == [2, 2, 1]
    rig.do(rig.sender.on_written(0, 0.0))
    assert rig.posted == [2, 2, 1, 0]


def test_news_that_come_late_take_nothing_back() -> None:
    rig = Rig("fedrdma-e", PLAN, written_from=0)
    rig.do(rig.sender.start(0.0))
    rig.do(rig.sender.on_written(8, 0.0))
    rig.complete()
    assert rig.posted == [2, 1, 0]
