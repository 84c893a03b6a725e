"""One sender to many receivers, in virtual time, with the links as they ship and the sender's shares."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import main
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.outcast import Case, Outcast

MIB = 1 << 20
EIGHT = Case(8, 1e9, total=MIB)
EDGE = Case(4, 20e6, 0.002, total=MIB // 2, nic=1.0, mtu_bytes=1442)
"""Four behind a slow card."""


def test_to_eight_at_once_takes_no_longer_than_the_own_link_does_and_all_end_together() -> None:
    for one in EIGHT.rounds("even", 2):
        assert one.seconds <= 1.05
        assert one.resent_bytes <= 0.01 * 8 * MIB
        assert min(one.ended) >= 0.9 * max(one.ended)


def test_what_trials_try_for_costs_little_where_chunks_are_lost_by_chance() -> None:
    case = Case(8, 1e9, loss=0.002, total=16 * MIB)
    (one,) = case.rounds("even", 1)
    assert one.seconds <= 1.07
    assert one.resent_bytes <= 0.03 * 8 * case.total


@pytest.mark.parametrize("early", [0.001, 0.003])
def test_reports_that_are_early_and_late_make_no_link_faster_than_it_is(early: float) -> None:
    case = Case(8, 2e8, buffer_bytes=4e5, total=4 * MIB, early=early)
    for one in case.rounds("even", 2):
        assert one.seconds <= 1.07
        assert one.resent_bytes <= 0.02 * 8 * case.total
        assert min(one.ended) >= 0.9 * max(one.ended)


def test_where_each_finds_its_rate_as_if_alone_it_takes_twice_as_long_and_most_goes_again() -> None:
    (one,) = EIGHT.rounds("off", 1)
    assert one.seconds > 2
    assert one.resent_bytes > 8 * MIB


def test_one_after_the_other_is_later_in_the_end_by_the_round_trips_between_and_sooner_on_average() -> None:
    (after,), (together,) = EIGHT.rounds("one by one", 1), EIGHT.rounds("even", 1)
    assert after.seconds > 1.5 * together.seconds
    long = Case(4, 1e9, 0.005, total=4 * MIB)
    (after,), (together,) = long.rounds("one by one", 1), long.rounds("even", 1)
    assert after.mean < 0.8 * together.mean


@pytest.mark.parametrize("rate_bps", [1e9, 1e10])
def test_what_goes_to_one_of_eight_takes_exactly_as_long_as_with_sharing_off(rate_bps: float) -> None:
    case = Case(8, rate_bps, total=MIB)
    took = []
    for order in ("even", "off"):
        outcast = Outcast(case, VirtualClock(), order)
        took.append([outcast.play([3]).seconds for _ in range(2)])
    # but for how sums of moments are rounded
    assert took[0] == pytest.approx(took[1], rel=1e-12)
    assert max(map(max, took)) < 1


@pytest.mark.parametrize("buffer_bytes", [0.5e6, 4e6])
def test_a_slow_card_is_shared_by_four(buffer_bytes: float) -> None:
    case = dataclasses.replace(EDGE, buffer_bytes=buffer_bytes)
    (one,) = case.rounds("even", 1)
    assert one.seconds <= 1.03
    assert one.resent_bytes <= 0.02 * 4 * case.total


def test_a_card_ten_times_as_fast_as_the_silos_links_holds_nobody_up_in_the_first_round() -> None:
    (slow,) = dataclasses.replace(EDGE, nic=10.0, access=1.0).rounds("even", 1)
    (fast,) = Case(8, 1e9, total=4 * MIB, access=1.0).rounds("even", 1)
    assert slow.seconds <= 1.03
    assert fast.seconds <= 1.05
    assert slow.resent_bytes == fast.resent_bytes == 0


def seconds_of_cubic_beside_cubic(case: Case, later: float) -> float:
    """What a CUBIC flow takes for a payload that begins so many seconds after another CUBIC flow on its way."""
    clock, buffer_bytes = VirtualClock(), case.buffer_bytes
    profile = BottleneckProfile(
        case.rate_bps, case.rtt, buffer_bytes=buffer_bytes, mtu_bytes=case.mtu_bytes, drops_whole_packets=True
    )
    link = Bottleneck(clock, profile, random.Random(1))
    rival, flow = (CubicFlow(clock, link, until=10) for _ in range(2))
    rival.start()
    clock.at(later, flow.start)
    clock.run_until(lambda: flow.arrived_bytes >= case.total, 10, 0.01)
    return clock.now - later


def test_foreign_flows_on_most_ways_do_not_make_the_own_link_a_slow_one_for_good() -> None:
    """Each lose at once where these begin, and the link that all lead over is ten times as fast."""
    case = Case(4, 20e6, 0.002, 125e3, total=MIB // 2, access=1.0, mtu_bytes=1442)
    clock = VirtualClock()
    outcast = Outcast(case, clock, "even")
    # the last of three counts, and by when one begins a flow of theirs would take twice the least, or nearly five times
    of_cubic = max(seconds_of_cubic_beside_cubic(case, later) for later in (0.02, 0.04, 0.06, 0.08))
    assert 4 * outcast.least_seconds <= of_cubic <= 5 * outcast.least_seconds
    for _ in range(2):
        for flow in outcast.flows[:3]:
            CubicFlow(clock, flow.way, clock.now + 3).start()
        assert outcast.play().seconds <= of_cubic
        clock.run(clock.now + 3)
    assert (outcast.shares.link.rate or 0.0) * 8 >= 60e6


def test_without_trains_to_all_at_once_the_link_is_taken_for_as_fast_as_one_way() -> None:
    clock = VirtualClock()
    outcast = Outcast(Case(8, 1e9, total=4 * MIB, access=1.0), clock, "even", probes=False)
    assert outcast.play().seconds > 3 * outcast.least_seconds


@pytest.mark.parametrize(
    ("case", "bits"),
    [
        (EIGHT, 1e9),
        (Case(64, 1e9), 1e9),
        (Case(8, 1e9, loss=0.01), 1e9),
        (EDGE, 20e6),
        # FedComm's 3G: queues of a quarter of a train behind a card that all ways together do not fill
        (Case(4, 5e6, 0.002, 32_850, mtu_bytes=1442, access=1.0), 20e6),
        # no more than all ways do together can be known
        (Case(8, 1e9, access=1.0), 8e9),
    ],
)
def test_trains_to_all_at_one_moment_tell_what_the_own_link_carries(case: Case, bits: float) -> None:
    outcast = Outcast(case, VirtualClock(), "even", probes=False)
    rate = outcast.probe_jointly()
    assert rate is not None
    assert 0.85 * bits <= rate * 8 <= 1.05 * bits


@pytest.mark.sweep
def test_64_do_not_overrun_the_buffer_with_a_chunk_of_each() -> None:
    (one,) = Case(64, 1e9, total=MIB).rounds("even", 1)
    assert one.seconds <= 1.05
    assert one.resent_bytes <= 0.01 * 64 * MIB


@pytest.mark.sweep
def test_an_aggregate_of_64_mib_to_eight() -> None:
    (one,) = Case(8, 1e9, total=64 * MIB).rounds("even", 1)
    assert one.seconds <= 1.05
    assert one.resent_bytes <= 0.01 * 8 * 64 * MIB


@pytest.mark.sweep
def test_random_loss_costs_little_more_than_what_is_lost() -> None:
    assert max(one.seconds for one in Case(8, 1e9, loss=0.01).rounds("even", 2)) <= 1.25


def test_the_table_has_a_row_for_each_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["outcast", "--silos", "2", "--rate", "1e8", "--size", "0.5", "--rounds", "1"]) == 0
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["silos, link", "order", "round 1"]
    assert [row[1] for row in rows[2:]] == ["even", "one by one", "off"]


@pytest.mark.timeout(60)
def test_a_round_in_which_nothing_happens_for_a_while_ends() -> None:
    # one chunk, and then only what is on its way
    (one,) = Case(1, 1e9, rtt=0.5, total=4096).rounds("even", 1, seed=1)
    assert one.seconds < 10
