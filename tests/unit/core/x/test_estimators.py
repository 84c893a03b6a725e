"""What a sender measures of a path."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from fedrdma_fate.core.x.estimators import (
    DELIVERY_WINDOW_SECONDS,
    LEAST_PRECISE_SECONDS,
    DeliveryRateEstimator,
    LossEstimator,
    MaxRateFilter,
    RttFilter,
)

CHUNK = 100_000


def rates(
    estimator: DeliveryRateEstimator, spacing: float, count: int, at: float = 0.0, received: int = 0
) -> list[float | None]:
    """What it says while chunks arrive at even distances."""
    return [estimator.rate(at + number * spacing, received + (number + 1) * CHUNK) for number in range(count)]


@pytest.mark.parametrize("spacing", [1e-5, 1e-3, DELIVERY_WINDOW_SECONDS, 2.0])
def test_any_rate_can_be_told_after_some_chunks(spacing: float) -> None:
    told = rates(DeliveryRateEstimator(4 * CHUNK), spacing, 40)
    assert told[:4] == [None] * 4
    assert told[4:] == pytest.approx([CHUNK / spacing] * 36)


def test_chunks_that_are_seen_in_one_look_count_to_the_moment_before_the_next() -> None:
    estimator = DeliveryRateEstimator(4 * CHUNK)
    told = [estimator.rate(look * 1e-3, (8 * look + each) * CHUNK) for look in range(10) for each in range(1, 9)]
    assert told[:8] == [None] * 8
    assert told[15::8] == pytest.approx([8 * CHUNK / 1e-3] * 9)
    assert max(rate for rate in told if rate is not None) == pytest.approx(8 * CHUNK / 1e-3)


def test_who_wants_to_be_sure_is_told_nothing_before_single_packets_matter_no_more() -> None:
    estimator = DeliveryRateEstimator(4 * CHUNK)
    spacing = LEAST_PRECISE_SECONDS / 10
    told = [estimator.rate(number * spacing, (number + 1) * CHUNK, LEAST_PRECISE_SECONDS) for number in range(30)]
    assert told[:10] == [None] * 10
    assert told[11:] == pytest.approx([CHUNK / spacing] * 19)


def test_a_change_shows_within_the_window() -> None:
    estimator = DeliveryRateEstimator(4 * CHUNK)
    rates(estimator, 1e-3, 100)
    slower = rates(estimator, 4e-3, 10, at=0.1, received=100 * CHUNK)
    assert slower[-1] == pytest.approx(CHUNK / 4e-3)


def test_after_a_silence_that_was_noticed_only_what_came_since_counts() -> None:
    estimator = DeliveryRateEstimator(4 * CHUNK)
    rates(estimator, 1e-3, 20)
    estimator.restart()
    after = rates(estimator, 1e-3, 8, at=3.0, received=20 * CHUNK)
    assert after[:4] == [None] * 4
    assert after[4:] == pytest.approx([CHUNK / 1e-3] * 4)


def test_a_report_that_comes_late_says_nothing() -> None:
    estimator = DeliveryRateEstimator(4 * CHUNK)
    rates(estimator, 1e-3, 20)
    assert estimator.rate(0.01, 10 * CHUNK) is None


def kept_bytes(take: Callable[[int], object], count: int) -> int:
    """Of memory, when so many samples were taken in."""
    tracemalloc.start()
    try:
        for number in range(count):
            take(number)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_who_reports_arrivals_that_are_no_time_apart_has_few_of_them_kept() -> None:
    estimator = DeliveryRateEstimator(4 * CHUNK)
    assert kept_bytes(lambda number: estimator.rate(number * 1e-12, number), 10_000) < 8e5


def test_who_reports_each_time_that_less_was_delivered_has_few_of_the_samples_kept() -> None:
    largest = MaxRateFilter()
    assert kept_bytes(lambda number: largest.update(1e9 - number, number * 1e-4, 600.0), 10_000) < 8e5
    assert largest.update(5e9, 2.0, 600.0) == 5e9


def test_the_first_round_of_an_unknown_path_counts_in_full() -> None:
    estimator = LossEstimator(None)
    assert estimator.loss is None
    # of chunks of four packets, four in a hundred: about one packet in a hundred
    estimator.on_round(8, 200, 4)
    assert estimator.loss == pytest.approx(0.0102, abs=1e-4)


def test_rounds_that_differ_are_averaged() -> None:
    estimator = LossEstimator(None)
    for lost in (8, 0, 8, 0):
        estimator.on_round(lost, 200, 1)
    assert estimator.loss == pytest.approx(0.02)


def test_what_is_remembered_weighs_as_much_as_some_rounds() -> None:
    estimator = LossEstimator(0.01)
    estimator.on_round(0, 200, 1)
    assert estimator.loss == pytest.approx(0.0075)
    for _ in range(20):
        estimator.on_round(0, 200, 1)
    assert estimator.loss is not None
    assert estimator.loss < 1e-4


def test_a_round_of_a_few_chunks_says_little() -> None:
    estimator = LossEstimator(0.01)
    estimator.on_round(0, 8, 1)
    assert estimator.loss == pytest.approx(0.01 * (1 - 0.25 / 8))


def test_what_is_only_supposed_gives_way_to_the_first_round() -> None:
    estimator = LossEstimator(0.001, measured=False)
    assert estimator.loss == 0.001
    estimator.on_round(0, 30, 128)
    assert estimator.loss == 0.0


def test_the_largest_rate_counts_for_its_window_and_the_largest_after_it_next() -> None:
    largest = MaxRateFilter()
    samples = ((0.0, 5.0), (0.4, 3.0), (0.8, 4.0), (1.0, 1.0))
    assert [largest.update(rate, now, 1.0) for now, rate in samples] == [5.0] * 4
    assert largest.update(1.0, 1.1, 1.0) == 4.0
    assert largest.update(1.0, 1.9, 1.0) == 1.0


def test_after_a_reduction_only_what_is_delivered_from_then_on_counts() -> None:
    largest = MaxRateFilter()
    largest.update(5.0, 0.0, 1.0)
    largest.restart(2.0, 0.1)
    assert largest.update(1.0, 0.2, 1.0) == 2.0
    largest.clear()
    assert largest.update(1.0, 0.3, 1.0) == 1.0


def test_the_least_round_trip_counts_for_its_window_and_then_the_latest() -> None:
    rtt = RttFilter(0.0)
    for now, seconds in ((0.0, 0.03), (1.0, 0.02), (2.0, 0.05)):
        rtt.update(seconds, now, 10.0)
    assert (rtt.least, rtt.latest, rtt.queue_seconds) == (0.02, 0.05, pytest.approx(0.03))
    rtt.update(0.04, 11.5, 10.0)
    assert rtt.least == 0.04


def test_a_remembered_round_trip_is_believed_from_the_first_sample_on() -> None:
    rtt = RttFilter(0.02)
    rtt.update(0.05, 1000.0, 10.0)
    assert rtt.least == 0.02
    rtt.update(0.05, 1010.5, 10.0)
    assert rtt.least == 0.05
    rtt.reset(0.03, 1011.0)
    assert (rtt.least, rtt.latest) == (0.03, 0.05)
