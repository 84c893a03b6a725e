"""Estimates of what comes, and where updates are put."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.planning import Gateway, Load, Policy, no_slower_than, place, plan, smoothed, workers_wanted

NODES = [Gateway(f"node {number}", 20) for number in range(5)]
"""The paper's Figure 8."""


@pytest.mark.parametrize(("updates", "nodes"), [(20, 1), (60, 3), (100, 5)])
def test_the_paper_s_updates_are_put_on_one_three_and_five_nodes(updates: int, nodes: int) -> None:
    assert len(place(updates, NODES, Policy.BEST_FIT).used) == nodes
    assert len(place(updates, NODES, Policy.LEAST_CONNECTION).used) == 5


def test_what_finds_no_room_is_told() -> None:
    assert place(101, NODES).waiting == 1
    assert place(3, []).waiting == 3
    assert place(1, [Gateway("busy", 4, 3.5)]).waiting == 1


def test_the_best_fit_takes_the_smallest_gateway_that_takes_all() -> None:
    nodes = [Gateway("large", 20), Gateway("small", 5), Gateway("medium", 8)]
    assert place(5, nodes).counts == (0, 5, 0)
    assert place(6, nodes).counts == (0, 0, 6)
    assert place(24, nodes).counts == (20, 4, 0)


def test_the_first_fit_takes_them_in_order_and_the_others_share_out() -> None:
    nodes = [Gateway("one", 3, 1), Gateway("two", 9), Gateway("three", 4)]
    assert place(6, nodes, Policy.FIRST_FIT).counts == (2, 4, 0)
    assert place(6, nodes, Policy.WORST_FIT).counts == (0, 6, 0)
    assert place(6, nodes, Policy.LEAST_CONNECTION).gateway_of == (1, 2, 0, 1, 2, 0)


def test_the_top_is_where_the_most_updates_are() -> None:
    made = plan(25, [Gateway("small", 6), Gateway("large", 20)], wanted=lambda gateway, _updates: len(gateway.name))
    assert [(adder.gateway, adder.updates, adder.sums, adder.workers) for adder in made.adders] == [
        (1, 20, 1, 5),
        (0, 5, 0, 5),
    ]
    assert made.adders[0].fan_in == 21


def test_nobody_adds_nothing() -> None:
    assert plan(0, NODES).adders == ()


def test_a_spike_is_smoothed() -> None:
    load = Load(0.0)
    load.arrived(0.5, 10)
    assert load.rate(0.9) == 0
    assert load.rate(1.0) == pytest.approx(smoothed(0, 10)) == pytest.approx(3)
    assert load.rate(2.0) == pytest.approx(2.1)


def test_the_first_addition_counts_whole_and_later_ones_by_their_weight() -> None:
    load = Load(0.0)
    assert load.seconds_per_update == 0
    load.added(1.0)
    load.added(2.0)
    assert load.seconds_per_update == pytest.approx(1.3)


def test_a_clock_that_stands_still_or_goes_back_counts_on() -> None:
    load = Load(5.0)
    load.arrived(5.0)
    load.arrived(4.0)
    assert load.rate(6.0) == pytest.approx(0.6)


def test_a_window_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 0"):
        Load(0.0, 0)


def test_one_worker_is_kept_where_nothing_comes() -> None:
    assert workers_wanted(0.0, 4) == 1
    assert workers_wanted(0.7, 4) == 1
    assert workers_wanted(0.8, 4) == 2
    assert workers_wanted(float("inf"), 4) == 4


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ({"p": 10.0, "a": 1.0, "b": 11.0}, ("b",)),
        ({"p": 1.0, "a": 1.0, "b": 0.5}, ("a",)),
        ({"p": 10.0, "a": 1.0}, ()),
        ({"p": 10.0}, ()),
        ({"a": 1.0, "b": 2.0}, ()),
        ({}, ()),
    ],
    ids=["one is faster", "no slower", "slower", "nothing known of theirs", "nothing known of the parent", "nothing"],
)
def test_who_is_reached_as_fast_as_the_parent_is_known_where_both_paths_are(
    rates: dict[str, float], found: tuple[str, ...]
) -> None:
    assert no_slower_than("p", ("a", "b"), rates) == found


def test_a_parent_that_asks_itself_is_no_detour() -> None:
    assert no_slower_than("p", ("p",), {"p": 1.0}) == ()
