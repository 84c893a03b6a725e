"""`fedrdma-x` on slow links that lose packets, simulated: chunks of one packet come through."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from tests.support.sim.bottleneck import PACKET_OVERHEAD_BYTES, Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.x_flow import XFlow

pytestmark = pytest.mark.slow

TOTAL = 2_340_000
RTT = 0.02


def transfer(rate_bps: float, loss: float, mtu: int, *, cut_for_the_path: bool = True) -> XFlow:
    """One over a path that is known, to its end."""
    clock = VirtualClock()
    profile = BottleneckProfile(rate_bps, RTT, loss=loss, nic_bps=10 * rate_bps, mtu_bytes=mtu)
    known = PathState(rate_bps / 8 * mtu / (mtu + PACKET_OVERHEAD_BYTES), RTT, loss)
    plan = ChunkPlan(TOTAL, FIRST_CHUNK_BYTES)
    made = XFlow(clock, Bottleneck(clock, profile, random.Random(1)), plan, known, recut=cut_for_the_path)
    made.start()
    clock.run(600)
    assert made.outcome == Finished()
    return made


def best_seconds(rate_bps: float, loss: float, mtu: int) -> float:
    """Every packet that is lost goes again, and nothing else does."""
    return TOTAL * 8 * (mtu + PACKET_OVERHEAD_BYTES) / mtu / rate_bps / (1 - loss) + RTT


@pytest.mark.parametrize("mtu", [1024, 1442])
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("rate", [5e6, 20e6, 60e6])
def test_a_slow_link_that_loses_packets_takes_little_longer_than_what_is_lost(
    rate: float, loss: float, mtu: int
) -> None:
    made = transfer(rate, loss, mtu)
    assert made.ended_at <= 1.08 * best_seconds(rate, loss, mtu) + 4 * RTT
    assert made.stats is not None
    assert TOTAL + made.stats.resent_bytes <= 1.1 * TOTAL / (1 - loss)


def test_in_chunks_of_many_packets_it_takes_much_longer() -> None:
    made = transfer(20e6, 0.05, 1442, cut_for_the_path=False)
    assert made.ended_at > 2 * best_seconds(20e6, 0.05, 1442)
