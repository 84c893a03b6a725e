"""What a busy host makes of pace, reports and what was not sent."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.lateness import MOST_LOST_SECONDS, CatchUp, Lateness
from fedrdma_fate.core.x.probe_queue import LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES


def test_who_comes_after_what_was_due_is_late_for_all_that_is_looked_at_then() -> None:
    lateness = Lateness()
    lateness.on_event(1.0, 1.008)
    assert lateness.seconds(1.008) == pytest.approx(0.008)
    lateness.on_event(1.02, 1.008)
    assert lateness.seconds(1.008) == pytest.approx(0.008), "the next report of the same moment has waited as well"
    lateness.on_event(1.02, 1.009)
    assert lateness.seconds(1.009) == 0.0


@pytest.mark.parametrize("due", [None, 1.0, 0.9995, 2.0])
def test_who_comes_in_time_or_was_not_awaited_is_not_late(due: float | None) -> None:
    lateness = Lateness()
    lateness.on_event(due, 1.0)
    assert lateness.seconds(1.0) == lateness.take() == 0.0


def test_what_became_due_by_what_was_learnt_when_it_was_looked_at_last_has_waited_since_then() -> None:
    lateness = Lateness()
    lateness.on_event(2.0, 1.0)
    # a shorter round trip, or a larger share, and a chunk is overdue since long ago
    lateness.on_event(0.5, 1.0005)
    assert lateness.seconds(1.0005) == lateness.take() == 0.0
    lateness.on_event(0.5, 1.0085)
    assert lateness.seconds(1.0085) == lateness.take() == pytest.approx(0.008)


def test_pace_is_lost_once_each_time() -> None:
    lateness = Lateness()
    lateness.on_event(1.0, 1.008)
    assert lateness.take() == pytest.approx(0.008)
    assert lateness.take() == 0.0
    lateness.on_event(2.0, 2.004)
    assert lateness.take() == pytest.approx(0.004)


def test_who_stood_still_for_long_is_late_for_all_of_it_and_makes_up_for_little() -> None:
    lateness = Lateness()
    lateness.on_event(1.0, 31.0)
    assert lateness.seconds(31.0) == 30.0
    assert lateness.take() == MOST_LOST_SECONDS


def judged(catch_up: CatchUp, lost: int, arrived: int, usual_loss: float = 0.0) -> float:
    catch_up.start(1.0)
    catch_up.on_sample(lost, arrived, usual_loss, 0.5)
    catch_up.on_sample(0, 0, usual_loss, 1.0)
    return catch_up.most_bytes


def test_what_was_made_up_for_and_lost_nothing_may_be_more_the_next_time_up_to_a_bound() -> None:
    catch_up = CatchUp()
    assert catch_up.most_bytes == LEAST_QUEUE_BYTES
    assert judged(catch_up, 0, 100) > LEAST_QUEUE_BYTES
    for _ in range(100):
        judged(catch_up, 0, 100)
    assert catch_up.most_bytes == MOST_QUEUE_BYTES


def test_what_found_no_room_is_less_the_next_time_down_to_nothing() -> None:
    catch_up = CatchUp()
    for _ in range(20):
        judged(catch_up, 20, 80)
    assert catch_up.most_bytes < 1


def test_what_the_path_loses_anyway_is_no_want_of_room() -> None:
    catch_up = CatchUp()
    assert judged(catch_up, 20, 80, usual_loss=0.2) > LEAST_QUEUE_BYTES


def test_nothing_is_judged_that_was_not_made_up_for_nor_before_it_is_all_told() -> None:
    catch_up = CatchUp()
    catch_up.on_sample(100, 0, 0.0, 5.0)
    catch_up.start(6.0)
    catch_up.start(9.0)
    catch_up.on_sample(100, 0, 0.0, 5.9)
    assert catch_up.most_bytes == LEAST_QUEUE_BYTES
    catch_up.on_sample(0, 0, 0.0, 6.0)
    assert catch_up.most_bytes < LEAST_QUEUE_BYTES
