"""What round trips that vary say of a queue."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fedrdma_fate.core.x.competition import QUEUED_SECONDS
from fedrdma_fate.core.x.queue_delay import STANDING_SAMPLES, QueueDelay

RTT = 0.02
WINDOW = 10.0
EVERY = 0.002


def feed(delay: QueueDelay, since: float, seconds: float, late: Iterator[float]) -> list[float | None]:
    """What it makes of reports that come every 2 ms, so late."""
    count = round(seconds / EVERY)
    return [delay.update(RTT + next(late), since + number * EVERY, WINDOW) for number in range(count)]


def evenly(jitter: float, queue: float = 0.0, seed: int = 1) -> Iterator[float]:
    """Early or late by this at most."""
    chance = random.Random(seed)
    while True:
        yield queue + chance.uniform(-jitter, jitter)


def share_queued(queues: list[float | None]) -> float:
    told = [queue for queue in queues if queue is not None]
    assert told
    return sum(queue > QUEUED_SECONDS for queue in told) / len(told)


def test_where_round_trips_hardly_vary_each_of_them_tells() -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    assert feed(delay, 0.0, 0.5, evenly(0.00005))[-1] is not None
    assert delay.update(RTT + 0.005, 1.0, WINDOW) == pytest.approx(0.005, abs=0.0002)


@pytest.mark.parametrize("jitter", [0.0003, 0.001, 0.003])
def test_round_trips_that_vary_by_chance_are_no_queue(jitter: float) -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    feed(delay, 0.0, 0.3, evenly(jitter))
    # a single answer that came as early as can be, which none that comes later is near
    delay.update(RTT - 2 * jitter, 0.3, WINDOW)
    # of single ones a few in a thousand are beyond six deviations, of means none
    assert share_queued(feed(delay, 0.302, 5.0, evenly(jitter, seed=2))) <= 0.01
    assert delay.variation == pytest.approx(jitter / 3**0.5, rel=0.4)


@pytest.mark.parametrize("jitter", [0.0003, 0.001, 0.003])
def test_a_queue_of_3_milliseconds_shows_however_round_trips_vary(jitter: float) -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    feed(delay, 0.0, 1.0, evenly(jitter))
    feed(delay, 1.0, 0.2, evenly(jitter, queue=0.003, seed=2))
    assert share_queued(feed(delay, 1.2, 1.0, evenly(jitter, queue=0.003, seed=3))) == 1.0


def test_what_is_remembered_of_a_path_tells_a_queue_that_is_there_when_a_transfer_begins() -> None:
    before = QueueDelay(0.0, 0.0, 0.0)
    feed(before, 0.0, 1.0, evenly(0.001))
    delay = QueueDelay(RTT - 0.001, before.variation, before.least_mean)
    assert share_queued(feed(delay, 5.0, 1.0, evenly(0.001, queue=0.003, seed=2))) == 1.0


def test_a_queue_that_was_there_from_the_first_mean_on_shows_when_it_is_longer_than_round_trips_vary() -> None:
    delay = QueueDelay(RTT - 0.001, 0.0, 0.0)
    assert share_queued(feed(delay, 0.0, 1.0, evenly(0.001, queue=0.02))[200:]) == 1.0


def test_after_a_restart_nothing_is_told_before_as_many_have_come_as_it_takes() -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    assert feed(delay, 0.0, 1.0, evenly(0.001))[-1] is not None
    delay.restart()
    told = feed(delay, 1.0, 0.2, evenly(0.001, seed=2))
    assert told[:30] == [None] * 30
    assert told[-1] is not None


def test_a_queue_that_grows_and_drains_is_no_variation() -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    there_and_back = [step * 0.0005 for step in [*range(12), *range(12, 0, -1)]]
    feed(delay, 0.0, 1.0, iter(there_and_back * 30))
    assert delay.variation == pytest.approx(0.0, abs=1e-9)


def test_acknowledgements_that_come_together_count_once() -> None:
    delay = QueueDelay(0.0, 0.001, RTT)
    assert [delay.update(RTT + 0.02, 1 + number * 1e-5, WINDOW) for number in range(49)] == [None] * 49


def test_a_queue_far_beyond_what_round_trips_vary_by_shows_within_a_few_of_them_also_after_a_restart() -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    feed(delay, 0.0, 1.0, evenly(0.001))
    delay.restart()
    told = feed(delay, 1.0, 0.02, evenly(0.001, queue=0.03, seed=2))
    assert told[: STANDING_SAMPLES - 1] == [None] * (STANDING_SAMPLES - 1)
    assert all(queue is not None and queue > 0.02 for queue in told[STANDING_SAMPLES - 1 :])


def test_a_round_trip_that_is_late_for_once_is_no_queue_after_a_restart_either() -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    feed(delay, 0.0, 1.0, evenly(0.001))
    delay.restart()
    told = feed(delay, 1.0, 0.01, evenly(0.001, seed=2))
    told += feed(delay, 1.01, 0.004, evenly(0.001, queue=0.03, seed=3))
    told += feed(delay, 1.014, 0.01, evenly(0.001, seed=4))
    assert told == [None] * len(told)


def test_a_single_short_round_trip_shows_that_there_is_no_queue_and_a_long_one_does_not() -> None:
    delay = QueueDelay(0.0, 0.0, 0.0)
    feed(delay, 0.0, 1.0, evenly(0.001))
    assert delay.is_short(RTT)
    assert not delay.is_short(RTT + 0.004)


def test_the_first_of_a_transfer_which_wait_for_none_in_front_of_them_are_no_measure_of_those_behind() -> None:
    # where they keep their order, and a fast flow has some that are as late as can be under way all the time
    delay = QueueDelay(RTT - 0.004, 0.0008, RTT + 0.004)
    told = feed(delay, 0.0, 0.002, iter([-0.004]))
    told += feed(delay, 0.002, 0.4, evenly(0.0008, queue=0.004))
    assert share_queued(told) <= 0.01


def test_a_path_that_is_longer_is_so_for_single_round_trips_and_for_means_of_them() -> None:
    delay = QueueDelay(RTT, 0.0, 0.0)
    feed(delay, 0.0, 1.0, evenly(0.001))
    assert share_queued(feed(delay, 1.0, 0.5, evenly(0.001, queue=0.01, seed=2))) > 0.5
    delay.reset(RTT + 0.009, RTT + 0.01, 1.5)
    assert share_queued(feed(delay, 1.5, 0.5, evenly(0.001, queue=0.01, seed=3))) == 0.0
    assert share_queued(feed(delay, 2.0, 0.5, evenly(0.001, queue=0.015, seed=4))) > 0.5
