"""`fedrdma-x` transfers between which the path has become faster or slower, in the simulator."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.x_flow import XFlow

RTT = 0.02
PAUSE_SECONDS = 0.5
SHORT, LONG = 1_100_000, 18_000_000


def transfers(payload_bytes: int, megabits: Sequence[int], buffer_bytes: float = 4e6) -> list[tuple[float, float]]:
    """(seconds over the least possible, share sent again) of transfers for each of which the link has another rate."""
    clock = VirtualClock()
    profile = BottleneckProfile(megabits[0] * 1e6, rtt=RTT, buffer_bytes=buffer_bytes, nic_bps=10e9)
    link = Bottleneck(clock, profile, random.Random(1))
    flow = XFlow(clock, link, ChunkPlan(payload_bytes, FIRST_CHUNK_BYTES), recut=True, probed=True, repairs=True)
    clock.run(1.0)
    results = []
    for rate in megabits:
        began = clock.now + PAUSE_SECONDS
        link.set_rate(rate * 1e6)
        clock.at(began, flow.start)
        clock.run(began + 60)
        assert flow.outcome == Finished()
        assert flow.stats is not None
        least = RTT + link.wire_bytes(payload_bytes) * 8 / profile.rate_bps
        results.append(((flow.ended_at - began) / least, flow.stats.resent_bytes / payload_bytes))
    return results


def test_a_short_transfer_does_not_stay_as_slow_as_the_path_was_for_the_one_before() -> None:
    *_, risen, on = transfers(SHORT, [1000, 500, 200, 700, 1000])
    # it is over before anything it found could help it: 1.9 with the rate of the one before
    assert risen[0] <= 1.25
    assert on[0] <= 1.25


def test_to_try_what_the_path_gave_before_it_became_slower_costs_nothing_and_overruns_no_small_buffer() -> None:
    later = transfers(SHORT, [1000, 1000, *[300] * 8], buffer_bytes=0.5e6)[3:]
    assert max(seconds for seconds, _ in later) <= 1.05
    assert [resent for _, resent in later] == [0.0] * len(later)


@pytest.mark.slow
def test_a_transfer_that_meets_a_third_of_the_rate_comes_down_with_the_first_that_arrives() -> None:
    # it took 1.6 times the least, and sent a tenth again, while a queue was believed before any rate was seen
    _, slower = transfers(LONG, [1000, 300])
    assert slower[0] <= 1.05
    assert slower[1] == 0.0
