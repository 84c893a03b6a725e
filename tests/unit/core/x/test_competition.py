"""What `fedrdma-x` makes of a queue that is not its own, and of one that is none."""

from __future__ import annotations

import dataclasses

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.competition import HOLD_SECONDS, MEMORY_SECONDS, Sharing, Sign
from fedrdma_fate.core.x.rate_control import Phase, RateController

RTT = 0.02
RATE = 100e6


def cruised(sharing: Sharing, queue: float, rate: float = RATE, *, doubtful: bool = False) -> Sign:
    """A CRUISE at this rate, with a queue so long."""
    sharing.start_phase()
    for _ in range(10):
        sharing.on_sample(queue)
    return sharing.on_cruised(rate, doubtful=doubtful)


def test_a_queue_late_in_cruise_is_of_others() -> None:
    sharing = Sharing(RATE, 0.0)
    assert cruised(sharing, 0.0) is Sign.NONE
    assert not sharing.holding
    assert cruised(sharing, 0.002) is Sign.OTHERS
    assert sharing.holding


def test_where_it_may_be_our_own_it_must_come_back_after_a_drain() -> None:
    sharing = Sharing(RATE, 0.0)
    assert cruised(sharing, 0.002, doubtful=True) is Sign.QUEUE
    assert not sharing.holding
    assert cruised(sharing, 0.0, doubtful=True) is Sign.NONE
    assert cruised(sharing, 0.002, doubtful=True) is Sign.QUEUE
    assert cruised(sharing, 0.002, doubtful=True) is Sign.OTHERS


def test_too_few_round_trips_show_nothing() -> None:
    sharing = Sharing(RATE, 0.0)
    sharing.on_sample(0.01)
    assert sharing.on_cruised(RATE, doubtful=False) is Sign.NONE


def test_one_comes_down_step_by_step_to_the_fair_share_and_no_further() -> None:
    sharing = Sharing(RATE, 0.0)
    rates = [RATE]
    for _ in range(4):
        rates.append(sharing.yielded(rates[-1]))
    assert rates == pytest.approx([RATE, 0.8 * RATE, 0.64 * RATE, 0.512 * RATE, 0.5 * RATE], rel=0.2)
    assert rates[-1] == sharing.fair == RATE / 2
    assert sharing.yielded(0.3 * RATE) == 0.3 * RATE


def test_others_are_expected_for_a_while_of_sending() -> None:
    sharing = Sharing(RATE, 0.0)
    sharing.on_time(0.0)
    cruised(sharing, 0.002)
    sharing.on_time(HOLD_SECONDS - 0.1)
    assert sharing.holding
    sharing.on_time(HOLD_SECONDS + 0.1)
    assert not sharing.holding
    assert cruised(sharing, 0.0, RATE / 2) is Sign.NONE
    assert sharing.capacity == RATE, "what the path gave us alone is not forgotten yet"
    sharing.on_time(MEMORY_SECONDS + 0.1)
    for _ in range(100):
        cruised(sharing, 0.0, RATE / 2)
    assert sharing.capacity == RATE / 2


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
        seen = rtt - (drained if control.phase is Phase.DRAIN else 0.0)
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
    control = controller(rate=RATE / 2, capacity=RATE, shared_seconds=MEMORY_SECONDS)
    assert control.rate <= 0.5 * RATE
    play(control, 0.0, 3.0, RTT + 0.009, drained=0.003)
    assert control.competing
    assert settled(control).capacity == RATE
    assert settled(control).rate >= 0.49 * RATE


def test_rounds_of_loss_beside_a_full_queue_make_us_yield_below_the_fair_share() -> None:
    control = controller(capacity=RATE, shared_seconds=MEMORY_SECONDS)
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
