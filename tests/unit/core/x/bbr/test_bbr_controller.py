"""BBRv3's states, step by step, on a path of which every detail is set: draft-ietf-ccwg-bbr-06, section 5.3."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.bbr.bbr_controller import BbrController
from fedrdma_fate.core.x.bbr.states import BbrState
from fedrdma_fate.core.x.flight_recorder import LostChunk, RateSample

RTT = 0.02
RATE = 100e6
CHUNK = 16_384
KNOWN = PathState(RATE, RTT, 0.0)
PRODUCT = RATE * RTT


class Path:
    """Acknowledges a round trip of what the controller sends at each step, as a path of RATE would."""

    def __init__(self, control: BbrController, now: float = 0.0) -> None:
        self.control = control
        control.chunk_bytes = CHUNK
        self.now = now
        self.total = 0
        self.states: list[BbrState] = []

    def round(self, *, lost_share: float = 0.0, rtt: float = RTT, rate: float = RATE) -> None:
        control = self.control
        in_flight = min(control.window_bytes, control.rate * rtt)
        delivered = int(min(in_flight, rate * rtt))
        prior, self.total = self.total, self.total + delivered
        count = int(in_flight * lost_share / CHUNK)
        lost = tuple(LostChunk(CHUNK, int(in_flight), CHUNK * (k + 1), False) for k in range(count))
        flight = RateSample(
            delivered,
            self.total,
            int(in_flight),
            lost,
            prior,
            delivered,
            delivered / rtt,
            int(in_flight),
            CHUNK * count,
        )
        self.now += rtt
        control.on_sample(Sample(rtt, None, delivered // CHUNK, count, 1, flight=flight), self.now)
        if not self.states or self.states[-1] is not control.state_now:
            self.states.append(control.state_now)

    def rounds(self, count: int, **how: float) -> None:
        for _ in range(count):
            self.round(**how)


def test_startup_doubles_the_rate_until_the_pipe_is_full_then_drains_and_probes() -> None:
    path = Path(BbrController())
    path.rounds(30)
    assert path.states[:2] == [BbrState.STARTUP, BbrState.DRAIN]
    assert path.states[2].is_probe_bw
    found = path.control.state()
    assert found is not None
    assert found.rate == pytest.approx(RATE, rel=0.01)
    assert found.min_rtt == RTT
    assert path.control.settled


def test_startup_ends_where_more_than_one_in_fifty_is_lost() -> None:
    path = Path(BbrController(), now=1.0)
    while path.control.window_bytes < PRODUCT:
        path.round(rate=1e12)
    assert path.control.state_now is BbrState.STARTUP
    path.rounds(2, lost_share=0.1, rate=1e12)
    assert path.control.state_now is not BbrState.STARTUP
    assert path.control.in_flight_long_term < math.inf


def test_what_is_proved_begins_in_cruise_and_what_is_not_probes_at_once() -> None:
    assert BbrController(KNOWN).state_now is BbrState.PROBE_BW_CRUISE
    assert BbrController(KNOWN).rate == pytest.approx(0.99 * RATE)
    estimated = BbrController(KNOWN, proved=False)
    assert estimated.state_now is BbrState.PROBE_BW_REFILL
    assert not estimated.settled


def test_a_cycle_goes_through_refill_up_down_and_cruise() -> None:
    path = Path(BbrController(KNOWN))
    path.rounds(240)
    cycle = [BbrState.PROBE_BW_REFILL, BbrState.PROBE_BW_UP, BbrState.PROBE_BW_DOWN, BbrState.PROBE_BW_CRUISE]
    at = path.states.index(BbrState.PROBE_BW_REFILL)
    assert path.states[at : at + 4] == cycle


def test_it_waits_no_longer_than_63_round_trips_or_three_seconds_between_two_probes() -> None:
    path = Path(BbrController(KNOWN))
    path.rounds(70)
    assert BbrState.PROBE_BW_REFILL in path.states


def test_a_probe_that_loses_more_than_one_in_fifty_bounds_what_may_be_in_flight_and_ends() -> None:
    path = Path(BbrController(KNOWN))
    while path.control.state_now is not BbrState.PROBE_BW_UP:
        path.round()
    path.round()
    assert path.control.in_flight_long_term == math.inf
    path.round(lost_share=0.1)
    assert path.control.state_now is BbrState.PROBE_BW_DOWN
    assert 0.7 * PRODUCT <= path.control.in_flight_long_term <= 1.3 * PRODUCT


def test_a_probe_that_loses_less_goes_on() -> None:
    path = Path(BbrController(KNOWN))
    while path.control.state_now is not BbrState.PROBE_BW_UP:
        path.round()
    path.round(lost_share=0.015)
    assert path.control.state_now is BbrState.PROBE_BW_UP
    assert path.control.in_flight_long_term == math.inf


def test_cruising_leaves_room_below_the_bound() -> None:
    path = Path(BbrController(KNOWN))
    path.rounds(2)
    path.control.in_flight_long_term = PRODUCT
    path.round()
    assert path.control.state_now is BbrState.PROBE_BW_CRUISE
    assert path.control.window_bytes <= 0.85 * PRODUCT + 1


def test_losses_outside_of_probes_slow_it_down_until_the_next_probe() -> None:
    path = Path(BbrController(KNOWN))
    path.rounds(2)
    path.rounds(3, lost_share=0.05, rate=0.6 * RATE)
    assert path.control.rate < 0.75 * RATE
    assert path.control.state() == PathState(RATE, RTT, pytest.approx(path.control.loss, rel=0.5))
    while path.control.state_now is not BbrState.PROBE_BW_REFILL:
        path.round(rate=0.6 * RATE)
    assert path.control.short_term.bandwidth == math.inf


def test_the_round_trip_is_looked_for_after_five_seconds_without_as_short_a_one() -> None:
    path = Path(BbrController(KNOWN))
    path.round()
    while path.now < 5.0:
        path.round(rtt=RTT + 0.002)
    assert BbrState.PROBE_RTT not in path.states
    path.rounds(10, rtt=RTT + 0.002)
    assert path.control.state_now is BbrState.PROBE_RTT
    assert path.control.window_bytes <= 0.5 * PRODUCT * 1.01
    path.rounds(15)
    assert path.control.state_now is BbrState.PROBE_BW_CRUISE
    assert path.control.min_rtt == RTT


def test_of_chunks_of_many_packets_more_may_be_lost() -> None:
    path = Path(BbrController(KNOWN))
    while path.control.state_now is not BbrState.PROBE_BW_UP:
        path.round()
    control = path.control
    flight = RateSample(CHUNK, path.total, int(PRODUCT), (LostChunk(CHUNK, int(PRODUCT), int(0.05 * PRODUCT), False),))
    control.on_sample(Sample(RTT, None, 1, 1, 4, flight=flight), path.now)
    assert control.state_now is BbrState.PROBE_BW_UP
    control.on_sample(Sample(RTT, None, 1, 1, 1, flight=flight), path.now)
    assert control.state_now is BbrState.PROBE_BW_DOWN
