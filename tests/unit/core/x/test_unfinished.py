"""`fedrdma-x`: a payload that is sent while it is still being written, from its end to its start."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fedrdma_fate.core.actions import Action, ComputeDigest, Failed, PostChunk, WriteHeader
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.sender import XSender, XSendSettings

CHUNK = 16 * 1024
COUNT = 64
PLAN = ChunkPlan(COUNT * CHUNK, CHUNK)
PATH = PathState(rate=125e6, min_rtt=0.02, loss=0.0)


class Rig:
    """Reliable queue pairs that complete on demand; digests are answered at once."""

    def __init__(self, written_from: int, *, path: PathState | None = PATH, paced: bool = False) -> None:
        settings = XSendSettings(tag=1, reliable=True, paced=paced, window_bytes=None if paced else PLAN.total_bytes)
        self.sender = XSender(7, PLAN, settings, RateController(path), written_from)
        self.posted: list[int] = []
        self.under_way: list[PostChunk] = []
        self.headers = 0
        self.failures: list[Failed] = []

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case PostChunk():
                    self.posted.append(action.chunk.index)
                    self.under_way.append(action)
                case ComputeDigest(chunk):
                    self.do(self.sender.on_digest(chunk.index, 100 + chunk.index))
                case WriteHeader():
                    self.headers += 1
                case Failed():
                    self.failures.append(action)

    def complete(self, now: float) -> None:
        """Everything posted arrives."""
        while self.under_way:
            self.do(self.sender.on_write_done(self.under_way.pop(0).work_request, now))


def test_only_whole_chunks_that_are_written_are_sent_and_the_header_goes_when_all_are() -> None:
    rig = Rig(PLAN.total_bytes)
    rig.do(rig.sender.start(0.0))
    assert rig.posted == []
    rig.do(rig.sender.on_written(61 * CHUNK + 1, 0.0))
    assert rig.posted == [63, 62]
    rig.complete(0.02)
    rig.do(rig.sender.on_written(0, 0.03))
    assert rig.posted == list(range(COUNT))[::-1]
    assert rig.headers == 1
    rig.complete(0.05)
    assert rig.sender.resent_bytes == 0


def test_waiting_for_the_owner_of_the_payload_is_never_timed_out_and_the_network_is() -> None:
    rig = Rig(62 * CHUNK)
    rig.do(rig.sender.start(0.0))
    assert rig.sender.timer() is not None, "chunks are on their way"
    rig.complete(0.02)
    assert rig.sender.timer() is None
    rig.do(rig.sender.on_timer(1e6))
    rig.do(rig.sender.on_written(0, 1e6))
    due = rig.sender.timer()
    assert due is not None
    assert due > 1e6
    assert not rig.failures
    rig.do(rig.sender.on_timer(due + 1e3))
    assert rig.failures, "chunks under way do not arrive"


def test_after_a_pause_what_was_under_way_goes_again_and_the_rest_when_it_is_written() -> None:
    rig = Rig(62 * CHUNK)
    rig.do(rig.sender.start(0.0))
    rig.sender.pause()
    rig.under_way.clear()
    rig.do(rig.sender.on_written(61 * CHUNK, 0.1))
    assert rig.posted == [63, 62], "there is no path"
    rig.do(rig.sender.resume(0.2, same_slot=True))
    rig.complete(0.22)
    assert rig.posted == [63, 62, 63, 62, 61]
    rig.do(rig.sender.on_written(0, 0.3))
    assert sorted(set(rig.posted)) == list(range(COUNT))


@pytest.mark.parametrize("slow_writer", [True, False])
def test_a_task_that_writes_slowly_does_not_make_the_path_look_slow(slow_writer: bool) -> None:
    rig = Rig(PLAN.total_bytes if slow_writer else 0, paced=True)
    now = 1.0
    rig.do(rig.sender.start(now))
    for index in reversed(range(COUNT)):
        now += 0.001
        if slow_writer:
            rig.do(rig.sender.on_written(index * CHUNK, now))
        rig.do(rig.sender.on_timer(now))
        # one chunk a millisecond: an eighth of the rate of the path
        if rig.under_way:
            rig.do(rig.sender.on_write_done(rig.under_way.pop(0).work_request, now + 0.0001))
    slowest = PATH.rate / 2
    assert (rig.sender.control.rate > slowest) == slow_writer
