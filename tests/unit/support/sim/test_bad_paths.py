"""Losses in bursts, policers, full delay lines and rates that follow a trace, simulated: they are as they say."""

from __future__ import annotations

import random

import pytest

from tests.support.sim.bad_paths import BurstLoss, FullLine, Policer
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile, Nic
from tests.support.sim.clock import VirtualClock


@pytest.mark.parametrize("mean", [1, 5, 30])
def test_as_many_packets_are_lost_as_is_said_and_as_many_in_a_row(mean: int) -> None:
    bursts = BurstLoss(0.05, mean, random.Random(1))
    lost = [bursts.loses_any(1) for _ in range(200_000)]
    runs = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
    assert sum(lost) / len(lost) == pytest.approx(0.05, rel=0.15)
    assert sum(lost) / runs == pytest.approx(mean, rel=0.15)


def test_a_message_of_many_packets_is_lost_with_any_of_them() -> None:
    one, many = (BurstLoss(0.02, 4, random.Random(2)) for _ in range(2))
    packets = [one.loses_any(1) for _ in range(40_000)]
    assert [any(packets[at : at + 8]) for at in range(0, 40_000, 8)] == [many.loses_any(8) for _ in range(5000)]


def test_a_policer_lets_its_burst_through_at_once_and_then_its_rate() -> None:
    policer = Policer(8e6, 10_000)
    assert policer.passes(8_000, 0.0, 1_000, 0.0) == 8_000
    assert policer.passes(4_000, 0.0, 1_000, 0.0) == 2_000
    assert policer.passes(4_000, 0.0, 1_000, 0.001) == 1_000
    passed = sum(policer.passes(2_000, 0.0, 1_000, 1 + step * 0.001) for step in range(1000))
    assert passed == pytest.approx(1e6 + 10_000, rel=0.01)


def test_what_a_policer_drops_does_not_arrive_and_is_in_no_queue() -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(1e9, policer=Policer(8e6, 10_000))
    link, landed = Bottleneck(clock, profile, random.Random(1)), list[float]()
    for _ in range(100):
        link.post(Nic(), 1_000, lambda: landed.append(clock.now))
    clock.run()
    assert len(landed) == 9
    assert link.deepest_queue_bytes < 15_000


def test_a_delay_line_takes_what_it_has_room_for_until_others_have_left_it() -> None:
    line = FullLine(10, 0.01)
    assert [line.takes(4, 0.001 * step) for step in range(4)] == [4, 4, 2, 0]
    assert line.takes(20, 0.01) == 4
    assert line.takes(1, 0.0105) == 0
    assert line.takes(20, 0.02) == 10


def test_what_a_full_line_drops_does_not_arrive_and_has_queued_nothing() -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(1e9, rtt=0.02, nic_bps=1e9, line=FullLine(100, 0.01))
    link, nic, landed = Bottleneck(clock, profile, random.Random(1)), Nic(), list[float]()
    for _ in range(100):
        link.post(nic, 2 * 4096, lambda: landed.append(clock.now))
    clock.run()
    assert len(landed) == 50
    assert link.deepest_queue_bytes <= 2 * 4196 + 1


def test_a_packet_that_does_not_fit_takes_no_room_from_those_that_do() -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(1e9, buffer_bytes=100e3, nic_bps=10e9, drops_whole_packets=True)
    link, nic, landed = Bottleneck(clock, profile, random.Random(1)), Nic(), list[float]()
    # a seventh more than it can carry: between two packets there is room for a part of one
    seconds = 10_000 * 4196 * 8 / 1.143e9
    for number in range(10_000):
        clock.at(number / 10_000 * seconds, lambda: link.post(nic, 4096, lambda: landed.append(clock.now)))
    clock.run()
    assert link.dropped_messages > 0
    assert len(landed) * 4196 * 8 / 1e9 >= 0.99 * seconds
    assert link.deepest_queue_bytes <= 100e3


def test_an_idle_link_with_a_token_bucket_lets_its_bytes_pass_at_once() -> None:
    clock = VirtualClock()
    profile = BottleneckProfile(1e6, rtt=0.0, nic_bps=1e12, burst_bytes=3_300)
    link, landed = Bottleneck(clock, profile, random.Random(1)), list[float]()
    clock.at(1.0, lambda: [link.post(Nic(), 1_000, lambda: landed.append(clock.now)) for _ in range(5)] and None)
    clock.run()
    # 1100 bytes each, headers and all, take 8.8 ms
    assert landed == pytest.approx([1.0, 1.0, 1.0, 1.0088, 1.0176], abs=1e-6)


def test_a_link_follows_its_trace() -> None:
    clock = VirtualClock()
    link, nic, landed = (
        Bottleneck(clock, BottleneckProfile(1e6, buffer_bytes=10_000), random.Random(1)),
        Nic(),
        list[float](),
    )
    link.follow([(1.0, 2e6), (2.0, 1e6)])
    for step in range(3000):
        clock.at(step * 0.001, lambda: link.post(nic, 1_000, lambda: landed.append(clock.now)))
    clock.run(3.0)
    each = [sum(second <= at - 0.1 < second + 0.8 for at in landed) for second in range(3)]
    assert each[1] == pytest.approx(2 * each[0], rel=0.05)
