"""`fedrdma-x` on simulated paths that are not ideal: policers, small buffers of fast links, slow short links."""

from __future__ import annotations

import dataclasses

import pytest

from fedrdma_fate.core.x.rate_control import RateController
from tests.support.sim.bad_paths import FullLine, Policer
from tests.support.sim.bottleneck import BottleneckProfile
from tests.support.sim.compare import Case, single_cases, transfers


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


def test_a_policer_whose_bucket_lets_the_probes_train_through_does_not_starve_the_first_transfer() -> None:
    # of chunks of several packets none comes whole at twice its rate
    def profile() -> BottleneckProfile:
        return BottleneckProfile(1e9, nic_bps=10e9, policer=Policer(0.5e9, 300e3))

    (seconds, resent), *_ = transfers(Case("a large bucket", 8_000_000, profile, 0.5e9), RateController, count=1)
    assert seconds <= 2
    assert resent <= 1


def test_transfers_that_are_over_within_a_few_round_trips_do_not_climb_over_a_policer_again_and_again() -> None:
    short = dataclasses.replace(case("policed"), total=1_100_000)
    later = transfers(short, RateController, count=10)[6:]
    assert max(seconds for seconds, _ in later) <= 1.05
    assert max(resent for _, resent in later) <= 0.01


def full_line() -> BottleneckProfile:
    return BottleneckProfile(10e9, nic_bps=10e9, line=FullLine(1000, 0.01))


@pytest.mark.parametrize(("payload", "most_seconds"), [(4_719_000, 0.084), (9_437_000, 0.108)], ids=["4.7MB", "9.4MB"])
def test_a_delay_line_that_drops_behind_its_thousandth_packet_costs_no_more_than_chunks_one_by_one(
    payload: int, most_seconds: float
) -> None:
    # what fedrdma-e takes for LoRA's ranks 16 and 32 in the paper's network, in the testbed
    path = Case("a line of 1,000 packets", payload, full_line, 10e9)
    measured = transfers(path, RateController)
    assert max(times for times, _ in measured) * path.best_seconds() <= most_seconds
    assert max(resent for _, resent in measured) <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["10G 2 ms", "10G 0.5 ms"])
def test_a_fast_short_link_with_a_small_buffer_is_filled_and_hardly_overrun(path: str) -> None:
    for seconds, resent in transfers(case(path), RateController):
        assert seconds <= 1 / 0.95
        assert resent <= 0.015
