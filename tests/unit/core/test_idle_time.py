"""When a transfer fails of which nothing arrives."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.actions import Failed
from fedrdma_fate.core.idle_time import SLOWEST_MOVING_BYTES_PER_SECOND
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.sender import Sender, SendSettings
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.sender import XSender, XSendSettings

IDLE_SECONDS = 10.0
PLAN = ChunkPlan(4 * SLOWEST_MOVING_BYTES_PER_SECOND, 2 * SLOWEST_MOVING_BYTES_PER_SECOND)


def begun(mode: str, *, reliable: bool = True) -> Sender | XSender:
    """A transfer whose first chunk is under way, or all of them are."""
    if mode == "fedrdma-x":
        settings = XSendSettings(tag=1, reliable=reliable, paced=False, window_bytes=8192, idle_timeout=IDLE_SECONDS)
        machine: Sender | XSender = XSender(7, PLAN, settings, RateController(None))
    else:
        machine = Sender(7, PLAN, SendSettings(mode, IDLE_SECONDS))  # type: ignore[arg-type]
    machine.start(0.0)
    return machine


def fails(machine: Sender | XSender, now: float) -> bool:
    return any(isinstance(action, Failed) for action in machine.on_timer(now))


@pytest.mark.parametrize("mode", ["grpc", "fedrdma", "fedrdma-e", "fedrdma-x"])
def test_bytes_that_move_put_the_idle_time_out_off_and_not_for_ever(mode: str) -> None:
    machine = begun(mode)
    due = machine.fails_at
    assert due is not None
    assert due == pytest.approx(IDLE_SECONDS, abs=0.01)
    under_way = PLAN.total_bytes if mode in ("grpc", "fedrdma-x") else PLAN.chunk_bytes
    most = IDLE_SECONDS + under_way / SLOWEST_MOVING_BYTES_PER_SECOND
    machine.on_moving(due)
    # no further than the slowest path takes for what is under way
    assert machine.fails_at == pytest.approx(min(due + IDLE_SECONDS, most), abs=0.01)
    assert not fails(machine, due)
    machine.on_moving(machine.fails_at)
    assert machine.fails_at == pytest.approx(most, abs=0.01)
    assert fails(machine, most)


def test_on_a_path_that_may_lose_chunks_bytes_that_move_are_not_looked_at() -> None:
    assert begun("fedrdma-x", reliable=False).fails_at is None
