"""Many senders into one receiver, in virtual time, with the links as they ship and the receiver's shares."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fedrdma_fate.core.path import PathState
from tests.support.sim.bottleneck import AccessLink, Bottleneck, BottleneckProfile, Nic
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import main
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.incast import Case, Incast, Round, beside_slow

MIB = 1 << 20
EIGHT = Case(8, 1e9, total=MIB)


def test_eight_that_begin_together_take_no_longer_than_the_link_does_in_the_first_round_as_in_the_second() -> None:
    first, second = EIGHT.rounds("even", 2, seed=1)
    assert first.seconds <= 1.15
    assert second.seconds <= 1.05 * first.seconds
    assert first.resent_bytes + second.resent_bytes <= 0.01 * 16 * MIB
    # of equal senders all end together
    assert min(first.ended) >= 0.9 * max(first.ended)


def test_without_sharing_they_take_twice_as_long_and_send_most_of_it_again() -> None:
    (first,) = EIGHT.rounds("off", 1, seed=1)
    assert first.seconds > 2
    assert first.resent_bytes > 8 * MIB


@pytest.mark.parametrize("jitter", [0.0, 0.015])
def test_whether_they_begin_at_one_moment_or_a_little_apart_makes_no_difference(jitter: float) -> None:
    case = Case(8, 1e9, total=MIB, jitter=jitter)
    (first,) = case.rounds("even", 1, seed=2)
    assert first.seconds <= 1.15 + jitter / 0.08
    assert first.resent_bytes <= 0.01 * 8 * MIB


@pytest.mark.sweep
def test_64_do_not_overrun_the_buffer_with_a_chunk_of_each() -> None:
    case = Case(64, 1e9, total=MIB // 2)
    (first,) = case.rounds("even", 1, seed=1)
    assert first.seconds <= 1.15
    assert first.resent_bytes <= 0.01 * 64 * MIB // 2


@pytest.mark.sweep
def test_random_loss_costs_little_more_than_what_is_lost() -> None:
    case = Case(8, 1e9, loss=0.01)
    rounds = case.rounds("even", 2, seed=1)
    assert max(each.seconds for each in rounds) <= 1.25


@pytest.mark.sweep
def test_four_at_the_edge_where_a_buffer_of_seconds_hides_every_loss() -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(20e6, 0.002, buffer_bytes=0.5e6, nic_bps=200e6, mtu_bytes=1442)
    incast = Incast(Bottleneck(clock, profile, random.Random(1)), clock, [MIB] * 4)
    one = incast.play(random.Random(1), 0.001)
    assert one.seconds <= 1.05 * incast.least_seconds
    assert one.resent_bytes <= 0.02 * 4 * MIB


def test_seven_share_a_link_of_which_each_has_less_than_a_megabit_a_second() -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(5e6, 0.002, buffer_bytes=32_850, nic_bps=50e6, mtu_bytes=1442)
    incast = Incast(Bottleneck(clock, profile, random.Random(1)), clock, [MIB // 4] * 7)
    one = incast.play(random.Random(1), 0.001)
    assert one.seconds <= 1.05 * incast.least_seconds
    assert one.resent_bytes <= 0.02 * 7 * MIB // 4


@pytest.mark.parametrize("part", [0.1, 0.25])
def test_one_with_a_tenth_or_a_quarter_of_the_rate_does_not_hold_the_others_up(part: float) -> None:
    for without, beside in beside_slow(dataclasses.replace(EIGHT, total=4 * MIB), part * 1e9 / 8, 1):
        # it takes an eightieth of the link itself, or a thirtieth
        assert beside <= 1.04 * without


@pytest.mark.sweep
@pytest.mark.parametrize("part", [0.1, 0.25])
def test_nor_does_it_in_later_rounds(part: float) -> None:
    for without, beside in beside_slow(dataclasses.replace(EIGHT, total=4 * MIB), part * 1e9 / 8, 3):
        assert beside <= 1.04 * without


@pytest.mark.sweep
def test_a_link_many_times_as_fast_as_each_sender_s_own_is_found_and_remembered() -> None:
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(1e9, buffer_bytes=4e6, nic_bps=10e9), random.Random(1))
    incast = Incast(link, clock, [4 * MIB] * 8, nics=[100e6] * 8)
    own = 0.01 + 4 * MIB * 8 * 1.0244 / 100e6
    rounds = [incast.play(random.Random(1), 0.001) for _ in range(2)]
    assert rounds[0].seconds <= 2.5 * own
    assert rounds[1].seconds <= 1.1 * own


def test_a_rate_by_hand_that_is_ten_times_too_low_holds() -> None:
    (low,) = Case(8, 1e9, total=MIB // 4, configured=0.1).rounds("even", 1, seed=1)
    assert 6 <= low.seconds <= 11
    assert low.resent_bytes == 0


@pytest.mark.sweep
def test_a_rate_by_hand_that_is_ten_times_too_high_is_no_worse_than_no_sharing() -> None:
    (high,) = Case(8, 1e9, total=2 * MIB, configured=10).rounds("even", 1, seed=1)
    (off,) = Case(8, 1e9, total=2 * MIB).rounds("off", 1, seed=1)
    assert high.seconds <= 1.1 * off.seconds


def test_by_turns_the_last_has_come_as_soon_and_the_others_sooner() -> None:
    case = dataclasses.replace(EIGHT, silos=16)
    (even,), (turns,) = case.rounds("even", 1, seed=1), case.rounds("turns", 1, seed=1)
    assert turns.seconds <= 1.05
    assert turns.mean <= 0.75 * even.mean
    assert turns.resent_bytes == 0


@pytest.mark.sweep
def test_by_turns_64_do_not_overrun_the_buffer_at_ten_gigabits() -> None:
    _, incast = Case(64, 1e10).make("turns", 1)
    one = incast.play(random.Random(1), 0.001)
    assert one.mean <= 0.63 * incast.least_seconds
    assert one.resent_bytes == 0
    assert incast._link.dropped_messages == 0


def test_the_table_has_a_row_for_each_way_to_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incast", "--silos", "2", "--rate", "1e8", "--size", "0.5", "--rounds", "1"]) == 0
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["silos, link", "share", "round 1"]
    assert [row[:2] for row in rows[2:]] == [["2, 0.1 Gbit/s", "even"], ["2, 0.1 Gbit/s", "off"]]


def test_what_comes_through_a_link_of_its_own_takes_the_time_of_the_slower_one_and_the_way() -> None:
    clock = VirtualClock()
    shared = Bottleneck(clock, BottleneckProfile(1e9, 0.0), random.Random(1))
    way = AccessLink(clock, BottleneckProfile(0.5e9, 0.04, nic_bps=10e9), random.Random(1), shared)
    came: list[float] = []
    for _ in range(2):
        way.post(Nic(10e9), 16 * 4096, lambda: came.append(clock.now))
    clock.run()
    of_one = shared.wire_bytes(16 * 4096) * 8 / 0.5e9
    assert came[0] == pytest.approx(0.02 + of_one, rel=0.05)
    assert came[1] - came[0] == pytest.approx(of_one, rel=0.05)


def test_some_of_many_with_ways_of_their_own_send_in_a_round_and_the_others_do_not() -> None:
    clock, chance = VirtualClock(), random.Random(1)
    shared = Bottleneck(clock, BottleneckProfile(1e9, 0.0), random.Random(1))
    profiles = [BottleneckProfile(0.7e9, rtt, nic_bps=10e9) for rtt in (0.02, 0.04, 0.06)]
    ways = [AccessLink(clock, profile, random.Random(1), shared) for profile in profiles]
    incast = Incast(shared, clock, [MIB] * 3, ways=ways)
    played = incast.play(chance, 0.001, [0, 2])
    assert len(played.ended) == 2
    assert not incast.flows[1].arrivals
    assert played.seconds == max(played.ended) < 0.2


def underrated(part: float) -> list[Round]:
    """Two rounds of four at an edge, one of whom takes its path for so much of an equal part of the link."""
    clock = VirtualClock()
    profile = BottleneckProfile(20e6, 0.002, buffer_bytes=126_600, nic_bps=200e6, mtu_bytes=1442)
    known = PathState(part * 20e6 / 4 / 8, 0.002, 0.0)
    link = Bottleneck(clock, profile, random.Random(1))
    incast = Incast(link, clock, [2 * MIB] * 4, paths=[None, None, None, known])
    rounds = []
    for _ in range(2):
        one = incast.play(random.Random(1), 0.001)
        rounds.append(dataclasses.replace(one, seconds=one.seconds / incast.least_seconds))
        clock.run(clock.now + 0.5)
    return rounds


@pytest.mark.parametrize("part", [0.7, 1.0])
def test_one_whose_train_met_others_takes_part_of_the_link_as_they_do_and_all_of_it_when_they_have_ended(
    part: float,
) -> None:
    for one in underrated(part):
        assert one.seconds <= 1.05
        assert one.resent_bytes <= 0.01 * 8 * MIB


def test_the_share_of_one_does_not_starve_a_cubic_flow_on_its_way() -> None:
    clock, until, rate = VirtualClock(), 12.0, 50e6
    shared = Bottleneck(clock, BottleneckProfile(1e9, 0.0), random.Random(1))
    profile = BottleneckProfile(rate, 0.02, buffer_bytes=200_000, nic_bps=1e9)
    ways = [AccessLink(clock, profile, random.Random(2 + number), shared) for number in range(2)]
    incast = Incast(shared, clock, [1 << 32] * 2, ways=ways)
    began, ours = clock.now, incast.flows[0]
    for flow in incast.flows:
        clock.at(began + 0.02, flow.start)
    rival = CubicFlow(clock, ways[0], began + until)
    clock.at(began + 1, rival.start)
    clock.run(began + until)
    assert min(each.goodput_bps(began + 5, began + until) for each in (ours, rival)) >= 0.33 * rate


def test_cubic_flows_on_the_ways_of_two_hold_up_neither_the_other_two_nor_these_by_more_than_their_part() -> None:
    clock, rate, total = VirtualClock(), 20e6, 2 * MIB
    shared = Bottleneck(clock, BottleneckProfile(10 * rate, 0.0, buffer_bytes=4e6, mtu_bytes=1448), random.Random(1))
    profile = BottleneckProfile(
        rate, 0.002, buffer_bytes=126_600, nic_bps=10 * rate, mtu_bytes=1448, drops_whole_packets=True
    )
    ways = [AccessLink(clock, profile, random.Random(10 + number), shared) for number in range(4)]
    incast = Incast(shared, clock, [total] * 4, ways=ways, repairs=True)
    rivals = [CubicFlow(clock, way, clock.now + 12) for way in ways[:2]]
    for rival in rivals:
        rival.start()
    clock.run(clock.now + 4)
    began = clock.now
    incast.play(random.Random(3), 0.001)
    *beside, alone, last = (ended or float("inf") for ended in incast.ended_of(range(4)))
    assert max(alone, last) <= 3 * total * 8 / rate
    # half of the link would take them two thirds of this
    assert max(beside) <= 3.3 * total * 8 / rate
    assert min(rival.goodput_bps(began, began + max(beside)) for rival in rivals) >= 0.4 * rate


def test_of_silos_whose_own_links_are_slower_trains_at_one_moment_tell_the_receivers_before_the_first_round() -> None:
    clock = VirtualClock()
    shared = Bottleneck(clock, BottleneckProfile(1e9, 0.0, buffer_bytes=4e6), random.Random(1))
    ways = [
        AccessLink(clock, BottleneckProfile(rate, rtt, buffer_bytes=4e6, nic_bps=1e10), random.Random(2), shared)
        for rate, rtt in ((3e8, 0.02), (4e8, 0.03), (3.5e8, 0.04), (2.5e8, 0.06))
    ]
    incast = Incast(shared, clock, [MIB] * len(ways), ways=ways)
    assert incast.shares.link.found_by == "probed"
    assert incast.shares.link.rate == pytest.approx(1e9 / 8, rel=0.06)


def test_what_is_left_of_a_chunk_that_lost_a_packet_on_a_silos_own_link_takes_room_on_the_receivers() -> None:
    clock = VirtualClock()
    shared = Bottleneck(clock, BottleneckProfile(1e9, 0.0), random.Random(1))
    way = AccessLink(clock, BottleneckProfile(0.5e9, 0.04, loss=0.999), random.Random(1), shared)
    lost: list[int] = []
    for length in (1000, 16_000):
        way.post(Nic(), length, lambda: pytest.fail("it has lost a packet"), lambda each=length: lost.append(each))
        clock.run(clock.now + 1)
        assert lost[-1] == length
        # of one packet nothing is left
        assert (shared.deepest_queue_bytes > 0) is (length > 4096)
