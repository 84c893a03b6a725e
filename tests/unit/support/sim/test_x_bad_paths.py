"""`fedrdma-x` on simulated paths that are not ideal: policers, small buffers of fast links, slow short links."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.rate_control import RateController
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import MIB, Case, single_cases, transfers
from tests.support.sim.x_flow import XFlow


def case(name: str) -> Case:
    """The path of the comparison's table with this in its name."""
    return next(made for made in single_cases() if name in made.name)


@pytest.mark.parametrize("path", ["5M 2 ms, 0 %", "60M 2 ms, 0 %"])
def test_a_slow_short_link_is_filled_for_its_own_queue_is_not_taken_for_that_of_others(path: str) -> None:
    assert max(seconds for seconds, _ in transfers(case(path), RateController)) <= 1.03


def test_a_policer_is_found_out_by_the_first_transfer_and_remembered() -> None:
    measured = transfers(case("policed"), RateController)
    assert max(seconds for seconds, _ in measured) <= 1 / 0.85
    assert max(resent for _, resent in measured) <= 0.05


def test_a_rate_that_has_risen_is_found_within_some_round_trips_however_far() -> None:
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(200e6, nic_bps=10e9), random.Random(1))
    transfer = XFlow(clock, link, ChunkPlan(64 * MIB, 16384), PathState(24e6, 0.02, 0.0))
    transfer.start()
    clock.run(0.2)
    link.set_rate(1e9)
    clock.run(0.9)
    assert transfer.goodput_bps(0.65, 0.85) >= 0.9e9


@pytest.mark.slow
@pytest.mark.parametrize("path", ["10G 2 ms", "10G 0.5 ms"])
def test_a_fast_short_link_with_a_small_buffer_is_filled_and_hardly_overrun(path: str) -> None:
    for seconds, resent in transfers(case(path), RateController):
        assert seconds <= 1 / 0.95
        assert resent <= 0.015
