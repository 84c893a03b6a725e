"""`fedrdma-x` where what comes on the way back does so every 10 to 100 ms, as on a radio link."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fedrdma_fate.core.path import Sample
from fedrdma_fate.core.x.rate_control import RateController
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import Case, transfers

pytestmark = pytest.mark.slow

MIB = 1 << 20


class WithoutWayBack(RateController):
    """Is not told when reports left."""

    def on_sample(self, sample: Sample, now: float) -> None:
        super().on_sample(dataclasses.replace(sample, way_back=None), now)


def case(megabits: float, back: float, *, out: float = 0.0, loss: float = 0.0, mebibytes: float = 2.25) -> Case:
    rate_bps = megabits * 1e6

    def profile() -> BottleneckProfile:
        slow = megabits < 100
        return BottleneckProfile(
            rate_bps,
            buffer_bytes=rate_bps / 8 * 0.05 if slow else 4e6,
            loss=loss,
            mtu_bytes=1442 if slow else 4096,
            nic_bps=10 * rate_bps,
            slot=out,
            back_slot=back,
        )

    return Case("", int(mebibytes * MIB), profile, rate_bps, loss)


@pytest.mark.parametrize("packets", [True, False])
@pytest.mark.parametrize("slot", [0.01, 0.02, 0.05])
@pytest.mark.parametrize(("megabits", "mebibytes"), [(20, 2.25), (60, 8), (1000, 32)])
def test_transfers_take_no_longer_than_the_wait_for_the_last_report_has_it(
    megabits: float, mebibytes: float, slot: float, packets: bool
) -> None:
    path = case(megabits, slot, mebibytes=mebibytes)
    taken = transfers(path, RateController, packets=packets)
    possible = 1 + slot / path.best_seconds()
    assert min(seconds for seconds, _ in taken) <= 1.05 * possible
    for seconds, resent in taken:
        assert seconds <= 1.12 * possible
        assert resent <= 0.1


@pytest.mark.parametrize("slot", [0.01, 0.02])
@pytest.mark.parametrize(("megabits", "mebibytes"), [(20, 2.25), (60, 8), (1000, 32)])
def test_so_do_those_of_a_path_that_has_slots_both_ways(megabits: float, mebibytes: float, slot: float) -> None:
    path = case(megabits, slot, out=slot, mebibytes=mebibytes)
    for seconds, resent in transfers(path, RateController, packets=True):
        assert seconds <= 1.02 * (1 + 2 * slot / path.best_seconds())
        assert resent <= 0.05


def test_where_reports_do_not_say_when_they_left_it_takes_more_than_twice_as_long() -> None:
    taken = transfers(case(20, 0.01), WithoutWayBack, packets=True)
    assert min(seconds for seconds, _ in taken) > 2


def test_where_packets_are_lost_what_is_held_up_does_not_go_again() -> None:
    taken = transfers(case(20, 0.05, loss=0.05), RateController, packets=True)
    for seconds, resent in taken:
        assert seconds <= 1.15
        assert resent <= 0.1


def test_what_comes_back_does_so_every_so_often() -> None:
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(1e9, back_slot=0.01), random.Random(1))
    came = []
    for number in range(10):
        clock.at(0.002 * number, lambda: came.append(round(clock.now + link.answers.half_trip(), 6)))
    clock.run(1.0)
    assert came == [0.01, *[0.02] * 5, *[0.03] * 4]
