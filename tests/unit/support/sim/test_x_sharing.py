"""`fedrdma-x` on a simulated bottleneck: transfers one after the other, beside those of others."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES, best_chunk_bytes
from fedrdma_fate.core.x.sender import XSendSettings
from fedrdma_fate.engine.path_memory import PathMemory
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.x_flow import XFlow

MIB = 1 << 20
RATE_BPS = 1e9
BETWEEN_SECONDS = 0.03
LOOK_SECONDS = 0.001


class Job:
    """Sends one payload after the other, and remembers the path from one to the next, as a link does."""

    def __init__(self, clock: VirtualClock, link: Bottleneck, payload_bytes: int, begins: float) -> None:
        self._clock = clock
        self._link = link
        self._payload_bytes = payload_bytes
        self._memory = PathMemory()
        self._memory.learn(PathState(0.985 * RATE_BPS / 8, link.profile.rtt, None), "probed")
        self._before_bytes = 0
        self._flow: XFlow | None = None
        clock.at(begins, self._begin)

    @property
    def arrived_bytes(self) -> int:
        return self._before_bytes + (0 if self._flow is None else self._flow.sender.arrived_bytes)

    def _begin(self) -> None:
        state = self._memory.state
        assert state is not None
        chunk_bytes = (
            best_chunk_bytes(state.rate, state.loss, 4096, self._payload_bytes)
            if self._memory.proved
            else FIRST_CHUNK_BYTES
        )
        settings = XSendSettings(tag=1, queue_pairs=4)
        plan = ChunkPlan(self._payload_bytes, chunk_bytes)
        self._flow = XFlow(self._clock, self._link, plan, self._memory.begin(), settings)
        self._flow.start()
        self._look()

    def _look(self) -> None:
        assert self._flow is not None
        if self._flow.outcome is None:
            self._clock.after(LOOK_SECONDS, self._look)
            return
        assert self._flow.outcome == Finished()
        self._memory.end(self._flow.sender.control)
        self._before_bytes, self._flow = self.arrived_bytes, None
        self._clock.after(BETWEEN_SECONDS, self._begin)


def shares(count: int, payload_bytes: int, buffer_bytes: float, apart: float) -> list[float]:
    """Of the link, over 10 s after the last of so many jobs has begun, from the least to the most."""
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(RATE_BPS, buffer_bytes=buffer_bytes, nic_bps=10e9), random.Random(1))
    jobs = [Job(clock, link, payload_bytes, apart * number) for number in range(count)]
    begin = apart * (count - 1)
    clock.run(begin)
    before = [job.arrived_bytes for job in jobs]
    clock.run(begin + 10)
    return sorted(8 * (job.arrived_bytes - then) / 10 / RATE_BPS for job, then in zip(jobs, before, strict=True))


@pytest.mark.parametrize("apart", [0.0, 1.0])
@pytest.mark.parametrize("buffer_bytes", [0.5e6, 4e6])
@pytest.mark.parametrize("payload_bytes", [32 * MIB, 128 * MIB])
def test_two_jobs_share_within_a_fifth(payload_bytes: int, buffer_bytes: float, apart: float) -> None:
    less, more = shares(2, payload_bytes, buffer_bytes, apart)
    assert more <= 1.2 * less
    # a job is idle between two payloads
    assert less + more >= 0.85


@pytest.mark.parametrize("buffer_bytes", [0.5e6, 4e6])
def test_none_of_three_jobs_starves(buffer_bytes: float) -> None:
    each = shares(3, 32 * MIB, buffer_bytes, 0.5)
    assert min(each) >= 0.2
    assert sum(each) >= 0.8
