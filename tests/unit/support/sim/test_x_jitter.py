"""`fedrdma-x` where packets and answers are early and late by chance: that is no queue, and nobody is made room for."""

from __future__ import annotations

import itertools
import random

import pytest

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile, DelayLine, Nic
from tests.support.sim.clock import VirtualClock
from tests.support.sim.core_flow import CoreFlow
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.x_flow import XFlow

MIB = 1 << 20
RATE_BPS = 1e9


def shares_of_the_possible(
    profile: BottleneckProfile, total: int, count: int, *, jitter_seed: int = 2, packets: bool = False
) -> list[float]:
    """Of a round trip and the payload at the link's rate: each of so many transfers over a path that was probed."""
    clock = VirtualClock()
    transfer = XFlow(
        clock,
        Bottleneck(clock, profile, random.Random(1), jitter_seed=jitter_seed),
        ChunkPlan(total, FIRST_CHUNK_BYTES),
        probed=True,
        recut=True,
        packets=packets,
    )
    clock.run(1.0)
    shares = []
    for _ in range(count):
        began = clock.now
        transfer.start()
        clock.run(began + 60)
        assert transfer.outcome == Finished()
        shares.append((profile.rtt + total * 8 / profile.rate_bps) / (transfer.ended_at - began))
    return shares


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.0003, 0.001, 0.003])
@pytest.mark.parametrize("rtt", [0.005, 0.02, 0.1])
def test_transfers_fill_a_path_whose_round_trips_vary(rtt: float, jitter: float) -> None:
    profile = BottleneckProfile(RATE_BPS, rtt=rtt, jitter=min(jitter, rtt / 2), nic_bps=10e9)
    assert min(shares_of_the_possible(profile, 64 * MIB, 3)) >= 0.93


@pytest.mark.slow
def test_transfers_fill_a_fast_path_whose_round_trips_vary() -> None:
    profile = BottleneckProfile(10e9, jitter=0.001, nic_bps=100e9)
    assert min(shares_of_the_possible(profile, 256 * MIB, 2)) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("packets", [False, True])
@pytest.mark.parametrize("jitter_seed", [12, pytest.param(42, marks=pytest.mark.sweep)])
def test_on_a_fast_path_neither_a_train_that_was_held_up_nor_the_first_answers_make_transfers_slow(
    jitter_seed: int, packets: bool
) -> None:
    profile = BottleneckProfile(10e9, jitter=0.003, nic_bps=100e9)
    first, later = shares_of_the_possible(profile, 256 * MIB, 2, jitter_seed=jitter_seed, packets=packets)
    assert first >= 0.87
    assert later >= 0.93


@pytest.mark.slow
# of two of ours neither is more patient than the other, however their round trips vary
@pytest.mark.parametrize("rival", [pytest.param("ours", marks=pytest.mark.sweep), "cubic"])
def test_others_are_still_noticed_where_round_trips_vary(rival: str) -> None:
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(RATE_BPS, jitter=0.001, nic_bps=10e9), random.Random(1))
    plan = ChunkPlan(4 << 30, FIRST_CHUNK_BYTES)
    ours = XFlow(clock, link, plan)
    other = XFlow(clock, link, plan) if rival == "ours" else CubicFlow(clock, link, until=11)
    ours.start()
    clock.at(1, other.start)
    clock.run(11)
    shares = [flow.goodput_bps(1, 11) / RATE_BPS for flow in (ours, other)]
    assert min(shares) >= 0.4
    assert sum(shares) >= 0.85


@pytest.mark.parametrize("reorders", [False, True])
def test_jitter_makes_messages_early_and_late_by_no_more_than_it_and_keeps_their_order_where_it_should(
    reorders: bool,
) -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(100e9, jitter=0.003, reorders=reorders)
    line = DelayLine(clock, profile, random.Random(1))
    landed: list[int] = []
    late: list[float] = []

    def send(number: int) -> None:
        way = line.half_trip()
        late.append(way - profile.rtt / 2)
        clock.after(way, lambda: landed.append(number))

    for number in range(500):
        clock.at(number * 0.002, lambda number=number: send(number))  # type: ignore[misc]
    clock.run()
    assert -0.003 <= min(late) < -0.0025
    assert 0.0025 < max(late) <= 0.003
    assert (landed == sorted(landed)) is not reorders


@pytest.mark.parametrize("queue", [0.04, 0.064])
def test_a_queue_of_others_that_is_there_at_once_makes_nothing_go_again_that_is_only_late(queue: float) -> None:
    clock = VirtualClock()
    rate_bps = RATE_BPS / 5
    link = Bottleneck(clock, BottleneckProfile(rate_bps, jitter=0.001, nic_bps=10e9), random.Random(1))
    flow = CoreFlow(clock, link, itertools.repeat(MIB << 8))
    flow.start()
    clock.run(0.3)
    others = Nic()
    for _ in range(int(queue * rate_bps / 8 / FIRST_CHUNK_BYTES)):
        link.post(others, FIRST_CHUNK_BYTES, lambda: None)
    clock.run(0.8)
    assert link.dropped_messages == 0
    assert flow.resent_bytes <= 2 * FIRST_CHUNK_BYTES
