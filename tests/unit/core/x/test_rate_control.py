"""What `fedrdma-x` makes of a queue that is not its own, and of one that is none."""

from __future__ import annotations

import dataclasses

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.competition import SHARED_SECONDS
from fedrdma_fate.core.x.rate_control import Phase, RateController

RTT = 0.02
RATE = 100e6


def controller(**remembered: float) -> RateController:
    return RateController(dataclasses.replace(PathState(RATE, RTT, 0.0), **remembered))


def play(
    control: RateController, since: float, until: float, rtt: float, *, lost: int = 0, drained: float = 0.0
) -> None:
    """Reports every 2 ms: everything is delivered, but so many chunks in ten, after this round trip.

    Args:
        drained: what our draining takes off the round trip.
    """
    now = since
    while now < until:
        control.on_time(now)
        seen = rtt - (drained if control.phase is Phase.PROBE_DOWN else 0.0)
        control.on_sample(Sample(seen, min(control.rate, RATE), 10 - lost, lost, 4), now)
        now += 0.002


def settled(control: RateController) -> PathState:
    """What it found."""
    state = control.state()
    assert state is not None
    return state


def test_a_longer_path_is_not_taken_for_a_queue() -> None:
    control = controller()
    play(control, 0.0, 1.0, RTT)
    play(control, 1.0, 2.0, 2 * RTT)
    assert control.min_rtt == 2 * RTT
    assert not control.competing
    assert control.rate >= 0.7 * RATE


@pytest.mark.parametrize(
    ("proved", "overrated"),
    [(True, [1.005]), (True, [1.02]), (True, [1.05]), (False, [1.02]), (False, [1.004, 1.008, 1.012, 1.016])],
)
def test_the_queue_of_a_rate_that_some_samples_overrated_is_not_taken_for_that_of_others(
    proved: bool, overrated: list[float]
) -> None:
    control = RateController(PathState(RATE, RTT, 0.0), proved=proved)
    samples = iter(overrated)
    queue = now = 0.0
    while now < 1.0:
        control.on_time(now)
        queue = max(0.0, queue + (control.rate / RATE - 1) * 0.002)
        seen = RATE * next(samples, min(control.rate / RATE, 1.0))
        control.on_sample(Sample(RTT + queue, seen, 10, 0, 4), now)
        now += 0.002
        assert not control.competing
    assert settled(control).rate >= 0.97 * RATE


def test_a_queue_that_does_not_give_way_makes_us_yield_half() -> None:
    control = controller()
    play(control, 0.0, 1.0, RTT)
    play(control, 1.0, 4.0, RTT + 0.009, drained=0.003)
    assert control.competing
    assert 0.49 * RATE <= settled(control).rate <= 0.6 * RATE


def test_the_next_transfer_neither_begins_at_the_whole_rate_nor_halves_its_share() -> None:
    control = controller(rate=RATE / 2, capacity=RATE, shared_seconds=SHARED_SECONDS)
    assert control.rate <= 0.5 * RATE
    play(control, 0.0, 3.0, RTT + 0.009, drained=0.003)
    assert control.competing
    assert settled(control).capacity == RATE
    assert settled(control).rate >= 0.49 * RATE


def test_rounds_of_loss_beside_a_full_queue_make_us_yield_below_the_fair_share() -> None:
    control = controller(capacity=RATE, shared_seconds=SHARED_SECONDS)
    play(control, 0.0, 2.0, RTT + 0.004, lost=2)
    assert settled(control).rate < 0.49 * RATE
    assert control.loss == 0.0, "what a full buffer drops says nothing about the path"


def test_random_loss_without_a_queue_does_not() -> None:
    control = controller()
    play(control, 0.0, 2.0, RTT, lost=2)
    assert settled(control).rate >= 0.95 * RATE
    assert control.loss > 0.0
    assert not control.competing


def test_a_remembered_round_trip_outlives_the_first_sample_whatever_the_clock_says() -> None:
    control = controller()
    play(control, 1000.0, 1000.1, RTT + 0.002)
    assert control.min_rtt == RTT
