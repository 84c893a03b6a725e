"""What long round trips of a path are taken for."""

from __future__ import annotations

import itertools

import pytest

from fedrdma_fate.core.x.queue_detection import (
    LEAST_DRAIN_SAMPLES,
    PERSISTENT_QUEUE_ROUNDS,
    LongerPath,
    LongerPathCheck,
    Overload,
    StandingQueue,
)

RTT = 0.02


def standing(queue: StandingQueue, seconds: float, now: float, *, chunk_seconds: float = 0.0) -> bool:
    return queue.update(seconds, now, RTT, chunk_seconds, ignored=False)


@pytest.mark.parametrize(
    ("min_rtt", "chunk_seconds", "limit"), [(0.001, 0.0, 0.003), (0.1, 0.0, 0.015), (0.02, 0.01, 0.04)]
)
def test_a_queue_stands_from_a_time_a_share_of_the_round_trip_and_some_chunks_on(
    min_rtt: float, chunk_seconds: float, limit: float
) -> None:
    queue = StandingQueue()
    assert not queue.update(0.99 * limit, 0.0, min_rtt, chunk_seconds, ignored=False)
    assert queue.update(1.01 * limit, 0.0, min_rtt, chunk_seconds, ignored=False)


def test_a_queue_that_stands_for_many_round_trips_persists_until_it_has_gone() -> None:
    queue = StandingQueue()
    assert standing(queue, 0.01, 1.0)
    assert standing(queue, 0.01, 1.0 + PERSISTENT_QUEUE_ROUNDS * RTT - 0.001)
    assert not queue.persists
    assert standing(queue, 0.01, 1.0 + PERSISTENT_QUEUE_ROUNDS * RTT + 0.001)
    assert queue.persists
    assert not standing(queue, 0.002, 2.0), "below the limit, but not gone"
    assert queue.persists
    assert not standing(queue, 0.001, 2.0)
    assert not queue.persists


def test_a_queue_shortly_after_a_reduction_does_not_count() -> None:
    queue = StandingQueue()
    assert not queue.update(0.01, 1.0, RTT, 0.0, ignored=True)
    assert standing(queue, 0.01, 9.0)
    assert not queue.persists, "it stands since it counts"


def overloaded(overload: Overload, lost: float, *, queued: bool = True, latest_rtt: float = RTT) -> bool:
    return overload.on_round(lost, 0.01, queued=queued, min_rtt=RTT, latest_rtt=latest_rtt)


def test_rounds_of_loss_in_a_row_beside_a_queue_are_overload_and_single_ones_are_not() -> None:
    overload = Overload()
    assert [overloaded(overload, 0.1) for _ in range(5)] == [False, False, False, True, False]
    assert [overloaded(overload, lost) for lost in (0.1, 0.1, 0.06, 0.1, 0.1, 0.1)] == [False] * 6
    assert not any(overloaded(Overload(), 0.1, queued=False) for _ in range(10))


def test_in_a_full_buffer_rounds_of_overload_are_counted_by_the_longer_round_trip() -> None:
    overload = Overload()
    assert [overloaded(overload, 0.1, latest_rtt=2 * RTT) for _ in range(8)] == [False] * 7 + [True]


def check(least: float, most: float, lost: float, samples: int = LEAST_DRAIN_SAMPLES) -> float | None:
    longer = LongerPathCheck()
    longer.note_rate(5.0)
    longer.start(most, 0.0, 1.0)
    for _ in range(samples):
        longer.on_rtt(least, 0.5)
    assert longer.on_round(lost, 0.0, RTT, 0.9) is None, "what was sent since has not come back yet"
    found = longer.on_round(lost, 0.0, RTT, 1.0)
    return None if found is None else found.least


def test_round_trips_that_no_drain_shortens_are_a_longer_path() -> None:
    assert check(0.0399, 0.04, 0.0) == 0.0399


@pytest.mark.parametrize("samples", range(LEAST_DRAIN_SAMPLES))
def test_a_drain_of_which_hardly_a_round_trip_was_seen_tells_of_no_longer_path(samples: int) -> None:
    assert check(0.0399, 0.04, 0.0, samples) is None


@pytest.mark.parametrize(("least", "lost"), [(0.035, 0.0), (0.0399, 0.05)])
def test_round_trips_that_a_drain_shortens_or_a_lossy_round_are_a_queue(least: float, lost: float) -> None:
    assert check(least, 0.04, lost) is None


def test_the_largest_rate_before_the_reductions_of_one_check_comes_back() -> None:
    longer = LongerPathCheck()
    longer.note_rate(5.0)
    longer.start(RTT, 0.0, 1.0)
    longer.note_rate(3.0)
    assert longer.rate_before == 5.0
    longer.on_round(0.0, 0.0, RTT, 1.0)
    longer.note_rate(3.0)
    assert longer.rate_before == 3.0


def check_of_means(before: float, after: float, variation: float, *, lost: float = 0.0) -> LongerPath | None:
    """Round trips of 25 ms that vary by some, and a drain of 20 ms, which has made the mean from the one the other."""
    longer, late = LongerPathCheck(), itertools.cycle((0.002, -0.001, 0.001, -0.002, 0.0))
    longer.start(before, 0.0, 0.045)
    for report in range(23):
        now = report * 0.002
        # by and by, as a queue goes
        mean = before + (after - before) * max(0.0, now - 0.025) / 0.02
        longer.on_rtt(mean + next(late), now)
    return longer.on_round(lost, 0.0, RTT, 0.045, variation)


def test_round_trips_that_vary_by_chance_and_that_no_drain_shortens_on_the_average_are_a_longer_path() -> None:
    found = check_of_means(0.025, 0.025, 0.001)
    assert found is not None
    assert found.least == pytest.approx(0.023)
    assert found.mean == pytest.approx(0.025, abs=0.0005)


@pytest.mark.parametrize(
    ("after", "variation", "lost"),
    [
        # a quarter of the time that we drained, and half of that where half of the path is another's
        pytest.param(0.02, 0.001, 0.0, id="all of it ours"),
        pytest.param(0.0225, 0.001, 0.0, id="half of it"),
        pytest.param(0.025, 0.001, 0.05, id="a buffer that is overrun"),
        pytest.param(0.025, 0.002, 0.0, id="means of so few vary as much"),
        pytest.param(0.025, 0.0, 0.0, id="round trips that are not known to vary by chance"),
    ],
)
def test_of_round_trips_that_vary_by_chance_a_drain_that_shortens_them_or_that_nobody_can_tell_shows_a_queue(
    after: float, variation: float, lost: float
) -> None:
    assert check_of_means(0.025, after, variation, lost=lost) is None
