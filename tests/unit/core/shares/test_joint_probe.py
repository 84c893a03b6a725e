"""What the own link carries, of trains to all peers at one moment."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.path_probe import TRAIN_DATAGRAMS
from fedrdma_fate.core.shares.joint_probe import (
    MORE_FACTOR,
    Arrived,
    datagrams_each,
    joint_rate,
    wanted_delays,
    wanted_rate,
)
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES

LINK = 1e8
"""Fast enough for the least time that is looked at to count for nothing, and no faster."""


def arrivals(
    ways: list[float], link: float = LINK, *, turns: bool = False, each: int = 8, late: float = 0.0
) -> list[Arrived]:
    """As trains arrive that leave by one link, one after the other or by turns, and go on by ways of their own."""
    order = [way for way in range(len(ways)) for _ in range(each)]
    if turns:
        order = list(range(len(ways))) * each
    free = [0.0] * len(ways)
    came: list[list[float]] = [[] for _ in ways]
    for place, way in enumerate(order):
        leaves = (place + 1) * DATAGRAM_BYTES / link
        # a way that is as fast has no other slow link than this one
        free[way] = max(free[way], leaves) + (DATAGRAM_BYTES / ways[way] if ways[way] < link else 0.0)
        came[way].append(free[way])
    trip = 0.02
    return [
        Arrived(times[-1] + trip + late, trip, rate, each, times[-1] - times[0], each)
        for rate, times in zip(ways, came, strict=True)
    ]


def test_ways_that_were_queued_when_their_round_trips_were_told_do_not_make_the_link_look_faster() -> None:
    # four at 20 Mbit/s, 2 ms away, whose paths came up at once: what the trains of the others had queued counted
    rates, known = (2.358e6, 0.884e6, 2.366e6, 2.366e6), (0.199, 0.136, 0.257, 0.167)
    seconds = (0.0285, 0.0562, 0.1116, 0.0839)
    trains = [Arrived(took, trip, rate, 16, 0.026, 16) for took, trip, rate in zip(seconds, known, rates, strict=True)]
    assert 2.3e6 < joint_rate(trains) < 2.9e6, "and not what all ways do together, 8e6"


def test_who_says_that_its_train_was_spread_out_for_long_changes_no_round_trip_of_another() -> None:
    honest = arrivals([LINK] * 8)
    liar = honest[0]._replace(spread=honest[0].seconds - honest[0].round_trip / 10)
    assert joint_rate([liar, *honest[1:]]) >= 0.7 * joint_rate(honest)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("peers", [2, 8, 16])
def test_one_link_that_all_ways_lead_over_is_found(peers: int, turns: bool) -> None:
    assert joint_rate(arrivals([LINK] * peers, turns=turns)) == pytest.approx(LINK, rel=0.01)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("slower", [2.0, 4.0])
def test_a_link_that_carries_several_ways_and_not_all_is_found(slower: float, turns: bool) -> None:
    rate = joint_rate(arrivals([LINK / slower] * 8, turns=turns))
    assert 0.85 * LINK <= rate <= 1.05 * LINK


@given(
    st.lists(st.floats(0.02, 1.0), min_size=2, max_size=32),
    st.booleans(),
    st.booleans(),
    st.floats(0, 0.05),
)
def test_the_link_never_looks_faster_than_it_is_unless_it_carries_nearly_what_all_ways_do(
    ways: list[float], turns: bool, more: bool, late: float
) -> None:
    each = datagrams_each(len(ways), more=more)
    # one datagram earlier or later is more than that where there are few
    exactness = 1 / (each * len(ways))
    rates = [LINK * way for way in ways]
    rate = joint_rate(arrivals(rates, turns=turns, each=each, late=late))
    assert 0 < rate <= sum(rates) * (1 + 1e-9)
    assert rate <= (1.05 + exactness) * LINK or 0.7 * sum(rates) <= LINK


def held_up(trains: list[Arrived], *which: int) -> list[Arrived]:
    """Those trains behind what a foreign flow has queued on their ways."""
    return [
        train._replace(seconds=train.seconds + 0.05, spread=2 * train.spread) if number in which else train
        for number, train in enumerate(trains)
    ]


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("which", [(0,), (7,), (0, 2, 4, 6), (4, 5, 6, 7)])
def test_foreign_flows_on_half_of_the_ways_hide_no_link_that_carries_all(which: tuple[int, ...], turns: bool) -> None:
    ways = [LINK / 32] * 8
    assert joint_rate(held_up(arrivals(ways, turns=turns), *which)) >= 0.8 * sum(ways)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("which", [(0,), (7,), (0, 2, 4, 6), (0, 1, 2, 3, 4, 5)])
def test_a_shared_link_looks_no_faster_for_foreign_flows_on_some_of_the_ways(
    which: tuple[int, ...], turns: bool
) -> None:
    assert joint_rate(held_up(arrivals([LINK] * 8, turns=turns), *which)) <= 1.01 * LINK


def test_foreign_flows_on_most_ways_make_the_link_look_slower() -> None:
    assert joint_rate(held_up(arrivals([LINK] * 8), *range(5))) < LINK / 4


def test_of_trains_of_which_some_are_lost_the_others_tell() -> None:
    ways = [LINK / 32] * 8
    trains = arrivals(ways)
    assert joint_rate(trains[:4], 8) >= 0.45 * sum(ways)
    assert joint_rate(trains[:3], 8) == 0
    assert joint_rate(trains[:1], 2) == 0
    assert joint_rate([]) == 0
    assert joint_rate(arrivals([LINK] * 8)[:4], 8) <= 1.01 * LINK


@pytest.mark.parametrize("spread", [0.0, 1e9])
@pytest.mark.parametrize("seconds", [-1.0, 0.0, 0.02])
def test_one_peer_that_says_its_train_came_at_once_makes_the_link_no_faster(seconds: float, spread: float) -> None:
    trains = arrivals([LINK] * 8)
    lied = [*trains[:3], trains[3]._replace(seconds=seconds, spread=spread), *trains[4:]]
    assert joint_rate(lied) <= 1.05 * LINK


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("seconds", [-1.0, 0.0])
@pytest.mark.parametrize(("peers", "gain"), [(5, 1.34), (8, 1.17), (16, 1.08)])
def test_whoever_of_five_and_more_lies_makes_the_link_look_as_if_it_had_carried_one_train_besides(
    peers: int, gain: float, seconds: float, turns: bool
) -> None:
    trains = arrivals([LINK] * peers, turns=turns)
    for liar in range(peers):
        lied = [train._replace(seconds=seconds, spread=0.0) if at == liar else train for at, train in enumerate(trains)]
        assert 0 < joint_rate(lied) <= gain * LINK


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("liars", range(1, 8))
def test_however_many_lie_the_link_looks_no_faster_than_all_ways_together(liars: int, turns: bool) -> None:
    trains = arrivals([LINK] * 8, turns=turns)
    lied = [train._replace(seconds=-1.0, spread=0.0, came=1) for train in trains[:liars]]
    assert 0 < joint_rate([*lied, *trains[liars:]]) <= 8 * LINK


@pytest.mark.parametrize("more", [False, True])
def test_all_trains_together_are_no_longer_than_one_of_the_path_probe_and_later_four(more: bool) -> None:
    most = TRAIN_DATAGRAMS * (MORE_FACTOR if more else 1)
    for peers in range(2, 65):
        count = datagrams_each(peers, more=more)
        assert 1 <= count <= TRAIN_DATAGRAMS
        assert count * peers <= most
    assert datagrams_each(10_000, more=more) == 1
    assert math.isfinite(joint_rate(arrivals([LINK] * 64, each=1)))


def wanted(spans: list[tuple[float, float]], trip: float = 0.04, each: int = 8, rate: float = LINK) -> list[Arrived]:
    """Trains that came from one moment to another after the one at which all were to."""
    return [Arrived(trip + last, trip, rate, each, last - first, each) for first, last in spans]


OWN = DATAGRAM_BYTES / LINK


def test_the_farthest_is_asked_first_so_that_all_come_at_one_moment() -> None:
    assert wanted_delays({"near": 0.01, "far": 0.06, "next door": 0.0}) == pytest.approx(
        {"near": 0.05, "far": 0.0, "next door": 0.06}
    )
    assert wanted_delays({}) == {}


def test_trains_that_met_at_the_receivers_link_tell_what_it_carries() -> None:
    # by turns, each over a way of half its rate
    trains = wanted([((place + 1) * OWN, (28 + place + 1) * OWN) for place in range(4)], rate=LINK / 2)
    assert wanted_rate(trains, 4) == pytest.approx(LINK, rel=0.04)


def test_trains_found_at_one_moment_that_came_before_do_not_make_the_link_look_fast() -> None:
    assert wanted_rate(wanted([(64 * OWN, 64 * OWN)] * 4), 4) <= LINK


def test_trains_that_came_sooner_than_they_could_do_not_either() -> None:
    trains = wanted([(place * 8 * OWN - 0.02, (place + 1) * 8 * OWN - 0.02) for place in range(4)])
    assert wanted_rate(trains, 4) <= 1.1 * LINK


def test_of_half_the_trains_nothing_is_concluded_and_of_more_no_more_than_they_show() -> None:
    trains = wanted([((place + 1) * OWN, (28 + place + 1) * OWN) for place in range(4)])
    assert wanted_rate(trains[:2], 4) == 0
    assert 0 < wanted_rate(trains[:3], 4) <= 0.8 * LINK
