"""What the controller makes of reports that are held up on their way back: no queue, and a window with room for it."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.phases import Phase
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.receiver import REPORT_INTERVAL_SECONDS

RTT = 0.02
RATE = 2.5e6
OFFSET = 1234.5
SLOT = 0.01


def play(control: RateController, since: float, until: float, *, queue: float = 0.0, told: bool = True) -> None:
    """All is delivered, behind so long a queue; reports leave every 2 ms, and come when a radio lets them."""
    for slot in range(round(since / SLOT) + 1, round(until / SLOT) + 1):
        now = slot * SLOT
        control.on_time(now)
        for number in reversed(range(round(SLOT / REPORT_INTERVAL_SECONDS))):
            delay = number * REPORT_INTERVAL_SECONDS
            way_back = OFFSET + delay if told else None
            rate = min(control.rate, RATE)
            control.on_sample(Sample(RTT + queue + delay, rate, 5, 0, 1, True, way_back=way_back), now)


def controller() -> RateController:
    control = RateController(PathState(RATE, RTT, 0.0))
    control.chunk_bytes = 1442
    return control


def test_reports_that_are_held_up_are_no_queue() -> None:
    control = controller()
    play(control, 0.0, 5.0)
    assert control.bandwidth == pytest.approx(RATE, rel=0.02)
    assert (control.competing, control.min_rtt) == (False, pytest.approx(RTT, abs=0.003))


def test_where_nobody_tells_when_they_left_they_look_like_one() -> None:
    control = controller()
    play(control, 0.0, 5.0, told=False)
    assert control.bandwidth < 0.8 * RATE or control.competing


def test_a_queue_on_the_way_out_is_seen_all_the_same() -> None:
    control = controller()
    play(control, 0.0, 1.0)
    play(control, 1.0, 1.0 + SLOT, queue=0.05)
    assert control.rtt == pytest.approx(RTT + 0.05, abs=0.003)
    assert control.phase is Phase.PROBE_DOWN


def test_the_window_has_room_for_what_is_sent_meanwhile_and_no_more_when_none_are_held_up() -> None:
    control, without = controller(), controller()
    play(control, 0.0, 1.0)
    without.on_time(1.0)
    without.on_sample(Sample(RTT, RATE, 5, 0, 1, True, way_back=OFFSET), 1.0)
    more = control.window_bytes / control.bandwidth - without.window_bytes / without.bandwidth
    assert more == pytest.approx(SLOT, abs=0.003)
    assert control.report_delay == pytest.approx(SLOT, abs=0.003)
    control.on_time(60.0)
    assert control.report_delay < 1e-6


def test_what_is_known_of_the_way_back_is_kept_for_the_next_transfer() -> None:
    control = controller()
    play(control, 0.0, 1.0)
    state = control.state()
    assert state is not None
    assert state.way_back == pytest.approx(OFFSET + 0.002, abs=0.003)
    after = RateController(state)
    after.on_sample(Sample(RTT + 0.009, RATE, 5, 0, 1, True, way_back=OFFSET + 0.009), 1.1)
    assert after.rtt == pytest.approx(RTT, abs=0.004)


@pytest.mark.parametrize(("queue", "is_seen"), [(SLOT - 0.001, False), (2 * SLOT, True)])
def test_what_is_sent_may_be_held_up_as_long_which_is_no_queue_either(queue: float, is_seen: bool) -> None:
    control = controller()
    play(control, 0.0, 1.0)
    assert control.phase is Phase.CRUISE
    play(control, 1.0, 1.0 + SLOT, queue=queue)
    assert (control.phase is Phase.PROBE_DOWN) is is_seen
