"""Updates on gateways, by every policy: each once, none beyond its room, and by the best fit on the fewest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.planning import (
    BUSY_SHARE,
    Gateway,
    Load,
    Policy,
    parents,
    place,
    plan,
    tops_of,
    workers_wanted,
)

GATEWAYS = st.lists(st.builds(Gateway, st.just("g"), st.floats(0, 30), st.floats(0, 30)), max_size=8)
"""Some have no room at all."""


@given(st.integers(0, 200), GATEWAYS, st.sampled_from(Policy))
def test_each_update_is_placed_once_within_capacity_or_told_to_wait(
    updates: int, gateways: list[Gateway], policy: Policy
) -> None:
    placement = place(updates, gateways, policy)
    assert len(placement.gateway_of) + placement.waiting == updates
    for number, gateway in enumerate(gateways):
        assert placement.gateway_of.count(number) == placement.counts[number]
        assert placement.counts[number] <= gateway.residual + 1e-6
    # nothing waits where there is room
    left = sum(gateway.room for gateway in gateways) - sum(placement.counts)
    assert not placement.waiting or not left


@given(st.integers(0, 200), GATEWAYS)
def test_the_best_fit_uses_no_more_gateways_than_any_other_policy(updates: int, gateways: list[Gateway]) -> None:
    best = place(updates, gateways, Policy.BEST_FIT)
    for policy in Policy:
        assert len(best.used) <= len(place(updates, gateways, policy).used)


@given(st.integers(0, 200), GATEWAYS)
def test_the_best_fit_uses_as_few_gateways_as_there_can_be(updates: int, gateways: list[Gateway]) -> None:
    best = place(updates, gateways)
    rooms = sorted((gateway.room for gateway in gateways), reverse=True)
    placed = updates - best.waiting
    assert len(best.used) == next(count for count in range(len(rooms) + 1) if sum(rooms[:count]) >= placed)


@given(st.integers(0, 200), st.integers(1, 8), st.integers(0, 30))
def test_of_equal_gateways_the_least_connected_and_the_worst_fit_share_evenly(
    updates: int, count: int, capacity: int
) -> None:
    for policy in (Policy.LEAST_CONNECTION, Policy.WORST_FIT):
        counts = place(updates, [Gateway("g", capacity)] * count, policy).counts
        assert max(counts) - min(counts) <= 1


@given(st.integers(0, 200), GATEWAYS, st.sampled_from(Policy))
def test_a_tree_has_no_more_sums_at_a_gateway_than_its_fan_in_and_no_more_levels_than_asked_for(
    updates: int, gateways: list[Gateway], policy: Policy
) -> None:
    for fan_in in (1, 2, 5):
        made = plan(updates, gateways, policy, fan_in=fan_in)
        assert sum(adder.sums for adder in made.adders) == max(0, len(made.adders) - 1)
        assert all(adder.sums <= fan_in for adder in made.adders)
        known: set[int | None] = {None}
        for adder in made.adders:
            assert adder.parent in known
            known.add(adder.gateway)
        count = len(made.adders)
        for levels in (1, 2, 4):
            above = parents(count, fan_in, tops_of(count, fan_in, levels))
            for number in range(count):
                way = [number]
                while (parent := above[way[-1]]) is not None:
                    assert parent < way[-1]
                    way.append(parent)
                assert len(way) <= levels


def test_a_tree_without_a_fan_in_is_none() -> None:
    for fan_in, tops in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="a tree with"):
            parents(3, fan_in, tops)


@given(st.integers(0, 200), GATEWAYS, st.sampled_from(Policy))
def test_a_plan_has_every_placed_update_and_every_gateway_s_sum_added_once(
    updates: int, gateways: list[Gateway], policy: Policy
) -> None:
    made = plan(updates, gateways, policy)
    assert sum(adder.updates for adder in made.adders) == len(made.placement.gateway_of)
    assert sum(adder.sums for adder in made.adders) == max(0, len(made.adders) - 1)
    assert all(not adder.sums for adder in made.adders[1:])
    assert all(adder.updates <= made.adders[0].updates for adder in made.adders)


@given(st.floats(0, 100), st.integers(1, 64))
def test_as_many_workers_as_are_busy_for_their_share_but_one_and_no_more_than_there_may_be(
    queue: float, most: int
) -> None:
    wanted = workers_wanted(queue, most)
    assert 1 <= wanted <= most
    assert wanted == most or queue <= wanted * BUSY_SHARE * (1 + 1e-6)
    assert wanted == 1 or queue > (wanted - 1) * BUSY_SHARE * (1 - 1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9)), max_size=30),
    st.floats(0.01, 3),
    st.floats(0, 50),
)
def test_the_rate_is_never_more_than_the_fullest_window_s_and_reading_it_changes_nothing(
    steps: list[tuple[float, int]], window: float, later: float
) -> None:
    load, now, all_came = Load(0.0, window), 0.0, 0
    for apart, updates in steps:
        now += apart
        load.arrived(now, updates)
        all_came += updates
    read = load.rate(now + later)
    assert 0 <= read <= all_came / window
    load.rate(now + 2 * later)
    assert load.rate(now + later) == read


def test_a_steady_rate_is_found_and_forgotten() -> None:
    load = Load(10.0)
    for number in range(400):
        load.arrived(10.0 + number * 0.05)
    load.added(0.1)
    assert load.rate(30.0) == pytest.approx(20, rel=0.01)
    assert load.queue(30.0) == pytest.approx(2, rel=0.01)
    assert workers_wanted(load.queue(30.0), 8) == math.ceil(2 / BUSY_SHARE)
    assert load.rate(60.0) < 0.01
    assert workers_wanted(load.queue(60.0), 8) == 1
