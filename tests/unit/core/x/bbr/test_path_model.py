"""What BBRv3 believes of a path, step by step: draft-ietf-ccwg-bbr-06, section 5.5."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.core.x.bbr.path_model import ExtraAcked, FullPipe, MaxBandwidth, MinRtt, Rounds, ShortTerm
from fedrdma_fate.core.x.flight_recorder import RateSample


def sample(rate: float = 0.0, *, acked: int = 1, total: int = 0, prior: int = 0, limited: bool = False) -> RateSample:
    return RateSample(acked, total, 0, (), prior, acked, rate, 0, 0, limited)


def test_the_largest_rate_is_that_of_this_cycle_and_the_last() -> None:
    most = MaxBandwidth(0.0)
    most.update(sample(5.0))
    most.advance()
    most.update(sample(3.0))
    assert most.value == 5.0
    most.advance()
    most.update(sample(2.0))
    assert most.value == 3.0


def test_a_rate_with_too_little_to_send_counts_only_where_it_is_larger() -> None:
    most = MaxBandwidth(5.0)
    most.advance()
    most.update(sample(4.0, limited=True))
    most.advance()
    assert most.value == 5.0
    most.update(sample(6.0, limited=True))
    assert most.value == 6.0


def test_a_round_is_over_when_what_was_sent_after_it_began_is_acknowledged() -> None:
    rounds = Rounds()
    rounds.update(sample(total=10, prior=0))
    assert (rounds.started, rounds.count) == (True, 1)
    rounds.update(sample(total=15, prior=5))
    assert not rounds.started
    rounds.update(sample(total=20, prior=10))
    assert (rounds.started, rounds.count) == (True, 2)


def test_the_least_round_trip_is_forgotten_after_ten_seconds_and_looked_for_after_five() -> None:
    least = MinRtt(0.0)
    least.update(0.02, 0.0)
    least.update(0.03, 4.0)
    assert (least.value, least.is_expired) == (0.02, False)
    least.update(0.03, 5.1)
    assert (least.value, least.is_expired) == (0.02, True)
    least.update(0.03, 10.3)
    assert least.value == 0.03


def test_the_pipe_is_full_after_three_rounds_that_grew_by_less_than_a_quarter() -> None:
    pipe = FullPipe()
    for rate in (1.0, 1.3, 1.4, 1.5):
        pipe.update(sample(rate), round_started=True)
        assert not pipe.now
    pipe.update(sample(1.6), round_started=True)
    assert pipe.now


def test_rounds_with_too_little_to_send_do_not_show_a_full_pipe() -> None:
    pipe = FullPipe()
    for _ in range(9):
        pipe.update(sample(1.0, limited=True), round_started=True)
    assert not pipe.now


def test_a_round_that_lost_something_leaves_seven_tenths_or_what_was_delivered() -> None:
    short = ShortTerm()
    short.on_loss(100)
    short.update(sample(5.0, acked=40, total=200, prior=100), 10.0, 1000.0, is_probing=False)
    assert (short.bandwidth, short.in_flight) == (7.0, 700.0)
    short.on_loss(200)
    short.update(sample(6.0, acked=600, total=300, prior=200), 10.0, 1000.0, is_probing=False)
    assert (short.bandwidth, short.in_flight) == (6.0, 600.0)
    short.reset()
    assert math.isinf(short.bandwidth)


def test_what_a_probe_loses_is_no_matter_of_the_short_term() -> None:
    short = ShortTerm()
    short.on_loss(100)
    short.update(sample(5.0, total=200, prior=100), 10.0, 1000.0, is_probing=True)
    assert math.isinf(short.bandwidth)


def test_what_comes_in_batches_counts_as_extra_and_is_forgotten() -> None:
    extra = ExtraAcked()
    extra.update(sample(acked=100), 1000.0, 1e6, 1.0, 0, 10)
    extra.update(sample(acked=300), 1000.0, 1e6, 1.1, 1, 10)
    assert extra.value == pytest.approx(300)
    for count in range(2, 14):
        extra.update(sample(acked=50), 1000.0, 1e6, 1.1 + count, count, 10)
    assert extra.value <= 100
