"""`fedrdma-x` between hosts whose processors others keep: its threads wait for their turn."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES
from fedrdma_fate.core.x.rate_control import RateController
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.busy import Busy, Turns
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import Case, single_cases, transfers
from tests.support.sim.x_flow import XFlow

pytestmark = pytest.mark.slow


def case(name: str) -> Case:
    return next(each for each in single_cases() if each.name == name)


@pytest.mark.parametrize(
    ("path", "waits", "most"),
    [
        # a third of the time, and two thirds of it: sent at the rate alone, it would take 3 and 1.5 times as long
        pytest.param("1G 20 ms, 4 MB", 0.008, 2.5, id="idle path"),
        pytest.param("1G 20 ms, 4 MB", 0.002, 1.2, id="idle path, less busy"),
        pytest.param("1G 20 ms, 1 % lost", 0.008, 2.6, id="loss"),
        pytest.param("20M 20 ms, 5 % lost", 0.008, 1.3, id="slow link"),
    ],
)
def test_hosts_that_run_a_part_of_the_time_have_no_slower_path_for_it(path: str, waits: float, most: float) -> None:
    slowest = max(seconds for seconds, _ in transfers(case(path), RateController, 3, busy=Busy(0.004, waits)))
    assert slowest <= most


def test_reliable_queue_pairs_of_such_a_host_are_no_slower_for_their_completions_lie_unread() -> None:
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(1e9, nic_bps=10e9), random.Random(1))
    plan = ChunkPlan(16 << 20, FIRST_CHUNK_BYTES)
    flow = XFlow(clock, link, plan, recut=True, probed=True, reliable=True, busy=Busy(0.004, 0.008))
    for _ in range(3):
        flow.start()
        clock.run(clock.now + 60)
        assert flow.stats is not None
        # it took 0.16 s on an idle host, and many seconds here by the second transfer
        assert flow.stats.seconds < 0.5


def test_of_a_path_that_becomes_slower_a_late_host_learns_by_what_it_loses() -> None:
    clock = VirtualClock()
    link = Bottleneck(clock, BottleneckProfile(1e9, nic_bps=10e9), random.Random(1))
    total = 24 << 20
    busy = Busy(0.004, 0.008)
    flow = XFlow(clock, link, ChunkPlan(total, FIRST_CHUNK_BYTES), recut=True, probed=True, repairs=True, busy=busy)
    clock.run(1.0)
    link.follow([(0.1, 250e6)])
    flow.start()
    clock.run(60)
    assert flow.stats is not None
    # an idle one loses nothing; this one sent all of it once more for nothing, and longer
    assert flow.stats.resent_bytes < 0.6 * total


def test_what_a_late_host_makes_up_for_overruns_no_policer_again_and_again() -> None:
    policed = case("1G 20 ms, policed at 0.5G, burst 100 kB")
    *_, (_, resent) = transfers(policed, RateController, 3, 1, Busy(0.004, 0.002))
    assert resent < 0.4


def test_a_thread_that_waits_has_its_turns_one_after_the_other() -> None:
    turns = Turns(Busy(0.004, 0.008), random.Random(1))
    moments = [turns.next(step / 1000) for step in range(1000)]
    assert moments == sorted(moments)
    assert all(moment >= step / 1000 for step, moment in enumerate(moments))
    late = sum(moment > step / 1000 for step, moment in enumerate(moments)) / len(moments)
    assert 0.5 < late < 0.8, "it waits two thirds of the time"
    assert turns.next(0.5) == moments[500], "also when it is asked for an earlier moment"
