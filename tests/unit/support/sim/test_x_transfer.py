"""`fedrdma-x` on a simulated bottleneck: how full it keeps the link, nothing set by hand."""

from __future__ import annotations

import importlib
import random
import statistics
from collections.abc import Callable

import pytest

from fedrdma_fate.core.actions import Finished
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.chunking import FIRST_CHUNK_BYTES, best_chunk_bytes
from tests.support.sim.bottleneck import Bottleneck, BottleneckProfile
from tests.support.sim.clock import VirtualClock
from tests.support.sim.compare import CONTROLLERS, Case, transfers
from tests.support.sim.cubic import CubicFlow
from tests.support.sim.unanswered import first_transfer
from tests.support.sim.x_flow import XFlow

pytestmark = pytest.mark.slow

MIB = 1 << 20
FOREVER = 4 << 30


def world(profile: BottleneckProfile) -> tuple[VirtualClock, Bottleneck]:
    clock = VirtualClock()
    return clock, Bottleneck(clock, profile, random.Random(1))


def flow(
    clock: VirtualClock,
    link: Bottleneck,
    total: int,
    path: PathState | None = None,
    *,
    reliable: bool = False,
    proved: bool = True,
) -> XFlow:
    chunk = FIRST_CHUNK_BYTES if path is None else best_chunk_bytes(path.rate, path.loss, 4096, total)
    return XFlow(clock, link, ChunkPlan(total, chunk), path, proved=proved, reliable=reliable)


def share(profile: BottleneckProfile, total: int, *, later: bool = False, reliable: bool = False) -> float:
    """Payload bits over link bits until the sender knew of the delivery; `later`: with what a first one taught."""
    path = None
    for _ in range(2 if later else 1):
        clock, link = world(profile)
        transfer = flow(clock, link, total, path, reliable=reliable)
        transfer.start()
        clock.run(60)
        assert transfer.outcome == Finished()
        path = transfer.path
    return total * 8 / transfer.ended_at / profile.rate_bps


@pytest.mark.parametrize(
    ("rate", "buffer", "loss", "mebibytes", "goal"),
    [
        pytest.param(1e9, 0.5e6, 0.0, 256, 0.93, id="1G small buffer"),
        pytest.param(10e9, 4e6, 0.0, 1024, 0.92, id="10G"),
        pytest.param(10e9, 4e6, 0.001, 1024, 0.85, id="10G 0.1% 1 GB"),
        pytest.param(1e9, 4e6, 0.01, 256, 0.85, id="1G 1%"),
        pytest.param(100e9, 25e6, 0.0, 1024, 0.50, id="100G"),
    ],
)
def test_a_first_transfer_fills_the_link(rate: float, buffer: float, loss: float, mebibytes: int, goal: float) -> None:
    profile = BottleneckProfile(rate, buffer_bytes=buffer, loss=loss, nic_bps=10 * rate)
    assert share(profile, mebibytes * MIB) >= goal


@pytest.mark.parametrize(
    ("wrong_by", "goal"), [(0.25, 0.65), (0.5, 0.80), (1.0, 0.88), (2.0, 0.82), (4.0, 0.70), (10.0, 0.35)]
)
def test_a_rate_that_was_only_estimated_is_a_start_and_does_little_harm_when_it_is_wrong(
    wrong_by: float, goal: float
) -> None:
    clock, link = world(BottleneckProfile(10e9, buffer_bytes=4e6, nic_bps=100e9))
    transfer = flow(clock, link, 256 * MIB, PathState(1.22e9 * wrong_by, 0.02, None), proved=False)
    transfer.start()
    clock.run(60)
    assert transfer.outcome == Finished()
    assert 256 * MIB * 8 / transfer.ended_at / 10e9 >= goal


@pytest.mark.parametrize("buffer", [25e6, 250e6])
def test_a_first_transfer_at_100_gigabits_a_second_loses_one_round_trip_and_no_more(buffer: float) -> None:
    clock, link = world(BottleneckProfile(100e9, buffer_bytes=buffer, nic_bps=1e12))
    transfer = flow(clock, link, 256 * MIB, PathState(12.2e9, 0.02, 1 / 1024), proved=False)
    transfer.start()
    clock.run(60)
    assert transfer.outcome == Finished()
    assert 256 * MIB * 8 / transfer.ended_at / 100e9 >= 0.50
    assert transfer.stats is not None
    assert transfer.stats.resent_bytes == 0


def test_a_later_transfer_begins_at_the_known_rate() -> None:
    profile = BottleneckProfile(10e9, buffer_bytes=4e6, nic_bps=100e9)
    # a round trip is 4 % of so short a transfer
    assert share(profile, 512 * MIB, later=True) >= 0.92


def test_a_later_transfer_of_256_mib_pays_only_for_what_was_lost() -> None:
    profile = BottleneckProfile(10e9, buffer_bytes=4e6, loss=0.001, nic_bps=100e9)
    assert share(profile, 256 * MIB, later=True) >= 0.78


def test_reliable_queue_pairs_fill_a_link_without_loss() -> None:
    assert share(BottleneckProfile(1e9, buffer_bytes=4e6, nic_bps=10e9), 128 * MIB, reliable=True) >= 0.90


def halve_the_rate(profile: BottleneckProfile) -> None:
    profile.rate_bps /= 2


def double_the_round_trip(profile: BottleneckProfile) -> None:
    profile.rtt *= 2


def lose_one_in_a_hundred(profile: BottleneckProfile) -> None:
    profile.loss = 0.01


@pytest.mark.parametrize("buffer", [0.5e6, 4e6])
@pytest.mark.parametrize("change", [halve_the_rate, double_the_round_trip, lose_one_in_a_hundred])
def test_a_change_in_the_middle_is_met_within_a_second(
    change: Callable[[BottleneckProfile], None], buffer: float
) -> None:
    profile = BottleneckProfile(1e9, buffer_bytes=buffer, nic_bps=10e9)
    clock, link = world(profile)
    transfer = flow(clock, link, FOREVER)
    transfer.start()
    clock.at(1.5, lambda: change(profile))
    clock.run(3.5)
    assert transfer.goodput_bps(2.5, 3.5) >= 0.85 * profile.rate_bps


@pytest.mark.parametrize("chunk_bytes", [FIRST_CHUNK_BYTES, 256 << 10])
@pytest.mark.parametrize("seconds", [0.03, 0.3, 3.0])
def test_an_outage_does_not_make_the_path_look_slow(seconds: float, chunk_bytes: int) -> None:
    profile = BottleneckProfile(1e9, nic_bps=10e9)
    clock, link = world(profile)
    transfer = XFlow(clock, link, ChunkPlan(FOREVER, chunk_bytes))
    transfer.start()

    def lose(share: float) -> None:
        profile.loss = share

    back = 1.5 + seconds
    clock.at(1.5, lambda: lose(1.0))
    clock.at(back, lambda: lose(0.0))
    clock.run(back + 2)
    assert transfer.goodput_bps(back + 1, back + 2) >= 0.85 * profile.rate_bps


def test_a_window_smaller_than_what_was_lost_of_it_opens_again_at_once() -> None:
    profile = BottleneckProfile(0.2e9, rtt=0.04, buffer_bytes=1e5, loss=0.01, nic_bps=2e9)
    clock, link = world(profile)
    transfer = flow(clock, link, FOREVER)
    transfer.start()
    clock.at(2, lambda: halve_the_rate(profile))
    clock.run(4)
    assert transfer.goodput_bps(3, 4) >= 0.85 * profile.rate_bps


@pytest.mark.parametrize("unrest", [0.002, pytest.param(0.005, marks=pytest.mark.sweep), 0.02])
def test_answers_that_come_late_for_other_reasons_than_a_queue_do_not_wear_the_rate_down(
    unrest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = BottleneckProfile(1e9, rtt=0.0005, nic_bps=10e9)
    clock, link = world(profile)
    transfer = flow(clock, link, FOREVER)
    chance = random.Random(2)
    monkeypatch.setattr(transfer, "_half_trip", lambda: profile.rtt / 2 + chance.random() ** 4 * unrest)
    transfer.start()
    clock.run(4)
    # a host that is busy now and then is not as quick, and not a hundred times slower
    assert transfer.goodput_bps(2, 4) >= 0.2 * profile.rate_bps


# test_x_sharing has two jobs that begin together
@pytest.mark.sweep
def test_two_that_begin_together_share_within_a_fifth() -> None:
    clock, link = world(BottleneckProfile(1e9, buffer_bytes=4e6, nic_bps=10e9))
    first, second = flow(clock, link, FOREVER), flow(clock, link, FOREVER)
    first.start()
    second.start()
    clock.run(6)
    shares = sorted([first.goodput_bps(1, 6), second.goodput_bps(1, 6)])
    assert shares[1] <= 1.2 * shares[0]
    assert sum(shares) >= 0.85e9


# test_x_sharing has two jobs of which one begins later, and tests/nic/test_x_sharing.py two that share a small buffer
@pytest.mark.sweep
@pytest.mark.parametrize("buffer", [0.5e6, 4e6])
def test_one_that_begins_later_gets_its_share(buffer: float) -> None:
    clock, link = world(BottleneckProfile(1e9, buffer_bytes=buffer, nic_bps=10e9))
    first, second = flow(clock, link, FOREVER), flow(clock, link, FOREVER)
    first.start()
    clock.at(1, second.start)
    clock.run(9)
    shares = sorted([first.goodput_bps(1, 9), second.goodput_bps(1, 9)])
    assert shares[1] <= 1.25 * shares[0]
    assert sum(shares) >= 0.9e9


@pytest.mark.parametrize(
    ("buffer", "first", "least"),
    [
        # test_x_sharing has a small buffer, tests/nic/test_x_sharing.py a large one
        pytest.param(0.5e6, "ours", 0.25, id="ours first small buffer", marks=pytest.mark.sweep),
        pytest.param(0.5e6, "cubic", 0.25, id="cubic first small buffer"),
        pytest.param(4e6, "ours", 0.35, id="ours first", marks=pytest.mark.sweep),
        pytest.param(4e6, "cubic", 0.30, id="cubic first", marks=pytest.mark.sweep),
    ],
)
def test_beside_a_cubic_flow_neither_starves(buffer: float, first: str, least: float) -> None:
    clock, link = world(BottleneckProfile(1e9, buffer_bytes=buffer, nic_bps=10e9))
    ours, rival = flow(clock, link, FOREVER), CubicFlow(clock, link, until=11)
    clock.at(0.0 if first == "ours" else 1.0, ours.start)
    clock.at(0.0 if first == "cubic" else 1.0, rival.start)
    clock.run(11)
    assert min(ours.goodput_bps(1, 11), rival.goodput_bps(1, 11)) >= least * 1e9


@pytest.mark.parametrize(("rate_bps", "buffer_bytes"), [(20e6, 126_600), (60e6, 379_800)])
def test_beside_a_cubic_flow_that_fills_25_round_trips_of_buffer_neither_starves_nor_goes_all_of_it_again(
    rate_bps: float, buffer_bytes: float
) -> None:
    clock, total = VirtualClock(), 2 * MIB
    profile = BottleneckProfile(
        rate_bps, 0.002, buffer_bytes=buffer_bytes, nic_bps=10 * rate_bps, mtu_bytes=1448, drops_whole_packets=True
    )
    link = Bottleneck(clock, profile, random.Random(1))
    ours = XFlow(clock, link, ChunkPlan(total, FIRST_CHUNK_BYTES), recut=True, probed=True, repairs=True)
    clock.run(2)
    rival = CubicFlow(clock, link, until=60)
    rival.start()
    clock.run(4)
    for _ in range(4):
        began, before = clock.now, rival.arrived_bytes
        ours.outcome = None
        ours.start()
        clock.run_until(lambda: ours.outcome is not None, began + 30, 0.01)
        seconds = ours.ended_at - began
        # half of the link would take it two thirds of this
        assert seconds <= 3 * total * 8 / rate_bps
        assert rival.arrived_bytes - before >= 0.35 * rate_bps / 8 * seconds
        assert ours.stats is not None
        assert ours.stats.resent_bytes <= 0.15 * total
        clock.run(clock.now + 2)


@pytest.mark.parametrize("most", [0.9, 1.25])
def test_what_we_are_let_send_beside_others_does_not_starve_a_cubic_flow(most: float) -> None:
    clock, link = world(BottleneckProfile(1e8, buffer_bytes=0.4e6, nic_bps=1e9))
    ours, rival = flow(clock, link, FOREVER), CubicFlow(clock, link, until=8)
    rival.start()
    clock.at(1, ours.start)
    clock.at(0.5, lambda: ours.sender.do(lambda to: to.limit(most * 1e8 / 8, 0.0)))
    clock.run(8)
    assert min(ours.goodput_bps(3, 8), rival.goodput_bps(3, 8)) >= 0.3e8


def test_the_whole_link_is_ours_again_when_the_other_has_gone() -> None:
    clock, link = world(BottleneckProfile(1e9, buffer_bytes=4e6, nic_bps=10e9))
    ours, rival = flow(clock, link, FOREVER), CubicFlow(clock, link, until=3)
    ours.start()
    clock.at(1, rival.start)
    clock.run(11)
    assert ours.goodput_bps(10, 11) >= 0.9e9


def seconds_of_a_lossy_transfer(total: int, seed: int, *, repairs: bool) -> float:
    """10 Gbit/s, 20 ms, 1 % of the packets lost, all of it known."""
    known, clock = PathState(1.2e9, 0.02, 0.01), VirtualClock()
    profile = BottleneckProfile(10e9, buffer_bytes=4e6, loss=0.01, nic_bps=100e9)
    plan = ChunkPlan(total, best_chunk_bytes(known.rate, known.loss, 4096, total))
    transfer = XFlow(clock, Bottleneck(clock, profile, random.Random(seed)), plan, known, repairs=repairs)
    transfer.start()
    clock.run(60)
    assert transfer.outcome == Finished()
    return transfer.ended_at


@pytest.mark.parametrize("mebibytes", [4, 18])
def test_repair_chunks_save_the_round_trip_of_what_was_lost_last_but_now_and_then(mebibytes: int) -> None:
    assert importlib.import_module("numpy"), "sums are added with it, and it is loaded between transfers"
    repeated, repaired = (
        [seconds_of_a_lossy_transfer(mebibytes * MIB, seed, repairs=repairs) for seed in range(9)]
        for repairs in (False, True)
    )
    assert statistics.median(repaired) <= statistics.median(repeated) - 0.5 * 0.02
    assert statistics.median(repaired) <= 0.02 + mebibytes * MIB * 8 / 10e9 + 0.25 * 0.02


@pytest.mark.parametrize(("loss", "seed", "most"), [(0.1, 3, 5.0), (0.2, 1, 20.0), (0.2, 4, 20.0), (0.3, 4, 40.0)])
def test_a_first_transfer_of_which_hardly_anything_came_at_first_still_finds_what_is_lost(
    loss: float, seed: int, most: float
) -> None:
    """All of it goes at once, for nothing is known, and most is lost: by a full queue, and chunks are four packets.

    Then nothing but what went again tells of the path. These took 80, 343, more than 400, and more than 400 s.
    """
    clock = VirtualClock()
    profile = BottleneckProfile(
        20e6, buffer_bytes=126_600, nic_bps=200e6, mtu_bytes=1024, loss=loss, loses_in_front=True
    )
    link = Bottleneck(clock, profile, random.Random(seed))
    transfer = XFlow(clock, link, ChunkPlan(2_338_944, 4096))
    transfer.start()
    clock.run(400)
    assert transfer.outcome == Finished()
    assert transfer.ended_at <= most


def test_a_path_that_is_probed_begins_at_its_rate() -> None:
    clock, link = world(BottleneckProfile(1e9, buffer_bytes=0.5e6, nic_bps=10e9))
    transfer = XFlow(clock, link, ChunkPlan(64 * MIB, FIRST_CHUNK_BYTES), probed=True, recut=True)
    clock.run(1.0)
    assert transfer.path is not None
    assert transfer.path.rate * 8 == pytest.approx(link.profile.rate_bps, rel=0.05)
    began = clock.now
    transfer.start()
    clock.run(60)
    assert transfer.outcome == Finished()
    assert 64 * MIB * 8 / (transfer.ended_at - began) >= 0.85 * link.profile.rate_bps


@pytest.mark.parametrize("rtt", [0.0025, 0.02])
def test_a_first_transfer_that_begins_before_the_probe_is_answered_waits_a_round_trip_for_that(rtt: float) -> None:
    waits, known = (first_transfer(10e9, rtt, 0.5e6, 4 * MIB, answered=answered) for answered in (False, True))
    least = rtt + 4 * MIB * 8 / 10e9
    assert known.seconds < waits.seconds <= known.seconds + 1.15 * rtt / least
    assert waits.resent <= known.resent


@pytest.mark.parametrize(("rtt", "most"), [(0.0025, 6.2), (0.02, 5.0)])
def test_and_on_a_faster_path_it_does_not_wait_for_the_longer_train(rtt: float, most: float) -> None:
    # which overruns a small buffer together with its own; to wait for its answer took 16 times the least
    first = first_transfer(25e9, rtt, 0.5e6, 4 * MIB, answered=False)
    assert first.seconds <= most
    assert first.resent <= 1.1


@pytest.mark.parametrize("rtt", [0.002, 0.0005])
def test_what_a_small_buffer_on_a_fast_path_has_no_room_for_is_seldom_sent(rtt: float) -> None:
    case = Case("", 256 * MIB, lambda: BottleneckProfile(10e9, rtt, buffer_bytes=0.5e6, nic_bps=100e9), 10e9)
    (first_seconds, first_again), *later = transfers(case, CONTROLLERS["ours"], 4)
    assert first_again < 0.007
    assert max(again for _, again in later) < 0.003
    assert max(first_seconds, *(seconds for seconds, _ in later)) < 1.03
