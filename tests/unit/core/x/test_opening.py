"""A transfer begins at what the path lately gave, for as long as what that queues has been held before."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.opening import HELD_SHARE, LEAST_GAIN, LEAST_QUEUED_BYTES, Opening
from fedrdma_fate.core.x.pacing import BURST_SECONDS

RATE = 25e6
RECENT = 100e6
HELD = 1e6
RTT = 0.02
ROOM = 12.5e6


def opening(recent: float = RECENT, held: float = HELD) -> Opening:
    return Opening(recent, held, RATE)


def test_it_begins_at_the_most_that_the_path_lately_gave_and_queues_no_more_than_it_has_held() -> None:
    begun = opening().begin(RATE, ROOM, RTT)
    assert begun is not None
    gain, seconds = begun
    assert gain == RECENT / RATE
    assert (RECENT - RATE) * seconds + RECENT * BURST_SECONDS == pytest.approx(HELD_SHARE * HELD)


def test_a_round_trip_later_the_rate_is_known_however_much_the_path_holds() -> None:
    assert opening(held=ROOM).begin(RATE, ROOM, RTT) == (RECENT / RATE, RTT)


def test_it_queues_no_more_than_a_probe_may() -> None:
    room = 300e3
    begun = opening().begin(RATE, room, RTT)
    assert begun is not None
    assert (RECENT - RATE) * begun[1] + RECENT * BURST_SECONDS == pytest.approx(room)


@pytest.mark.parametrize(
    ("recent", "held"),
    [
        pytest.param(0.0, HELD, id="never more"),
        pytest.param((LEAST_GAIN - 0.01) * RATE, HELD, id="hardly more"),
        pytest.param(RECENT, 0.0, id="nothing was queued"),
        pytest.param(RECENT, RECENT * BURST_SECONDS / HELD_SHARE, id="no more than goes at once"),
        pytest.param(RECENT, (RECENT * BURST_SECONDS + LEAST_QUEUED_BYTES - 1) / HELD_SHARE, id="hardly more queued"),
    ],
)
def test_without_a_reason_or_room_it_begins_as_it_ended(recent: float, held: float) -> None:
    assert opening(recent, held).begin(RATE, ROOM, RTT) is None


def test_of_a_path_that_has_become_slower_less_is_expected_each_time() -> None:
    recent, tried = RECENT, 0
    while recent:
        made = opening(recent)
        if made.begin(RATE, ROOM, RTT) is None:
            break
        tried += 1
        recent = made.remembered_rate(RATE)
        assert tried < 30
    assert tried >= 3


def test_what_an_opening_found_is_remembered_and_what_was_not_tried_stays() -> None:
    found = opening()
    assert found.begin(RATE, ROOM, RTT) is not None
    assert found.remembered_rate(1.1 * RECENT) == 0.0
    assert opening().remembered_rate(RATE) == RECENT


def test_a_cycle_that_has_probed_tells_as_much_as_an_opening() -> None:
    made = opening()
    made.on_cycle(RATE)
    assert RATE < made.recent_rate < RECENT


def test_a_queue_counts_as_held_where_nothing_of_it_was_lost_and_a_full_buffer_holds_less() -> None:
    made = opening(held=0.0)
    made.on_queue(2e5, lost=False)
    made.on_queue(5e5, lost=True)
    made.on_queue(1e5, lost=False)
    assert made.held_bytes == 2e5
    made.on_full()
    assert made.held_bytes < 2e5
