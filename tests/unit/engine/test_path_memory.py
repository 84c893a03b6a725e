"""What is remembered of a path from transfer to transfer."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.controller import Controller
from fedrdma_fate.core.x.short_path import MOST_WINDOW_BYTES, SHORT_ROUND_TRIP_SECONDS
from fedrdma_fate.engine.path_memory import KnownPath, PathMemory


def state_of(control: Controller) -> PathState:
    state = control.state()
    assert state is not None
    return state


def test_transfers_that_run_together_begin_with_a_share_and_the_whole_is_remembered() -> None:
    memory = PathMemory()
    memory.learn(PathState(8e6, 0.02, 0.0), "measured")
    first = memory.begin()
    second = memory.begin()
    assert first.state() == PathState(8e6, 0.02, 0.0)
    assert second.state() == PathState(4e6, 0.02, 0.0, capacity=8e6)
    memory.end(second)
    assert memory.state == PathState(8e6, 0.02, 0.0)
    memory.end(first)
    assert memory.state == PathState(8e6, 0.02, 0.0)


def test_a_transfer_that_learnt_nothing_leaves_the_memory_as_it_is() -> None:
    memory = PathMemory()
    memory.end(memory.begin())
    assert memory.state is None


def test_what_the_path_lately_gave_is_for_a_transfer_alone_and_outlives_those_that_run_together() -> None:
    memory = PathMemory()
    memory.learn(PathState(8e6, 0.02, 0.0, recent_rate=2e7, held_bytes=1e6), "measured")
    alone = memory.begin()
    assert state_of(alone).recent_rate == 2e7
    beside = memory.begin()
    assert state_of(beside).recent_rate == 0.0
    beside.on_sample(Sample(0.02, 4e6, 10, 0, 4), 0.1)
    memory.end(beside)
    assert memory.state is not None
    assert memory.state.recent_rate == 2e7


def test_a_transfer_that_was_held_to_a_share_of_the_path_leaves_what_that_loses_and_nothing_else() -> None:
    memory = PathMemory()
    probed = PathState(8e6, 0.02, None)
    memory.learn(probed, "probed")
    assert memory.loss is None
    control = memory.begin()
    for number in range(8):
        # faster than the share nothing arrived, which says nothing of the path
        control.on_time(0.1 * number)
        control.on_sample(Sample(0.02, None, 96, 4, 4), 0.1 * number)
    memory.end(control)
    assert (memory.state, memory.proved) == (probed, False)
    assert memory.loss == pytest.approx(0.01, rel=0.1)


def test_what_a_transfer_of_all_of_the_path_has_found_counts_for_its_loss() -> None:
    memory = PathMemory()
    memory.learn(PathState(8e6, 0.02, 0.02), "measured")
    assert memory.loss == 0.02


def of_busy_hosts(memory: PathMemory, round_trip: float = 1.4 * SHORT_ROUND_TRIP_SECONDS) -> Controller:
    """A transfer behind one that busy or slow hosts have made take so long, on a path of a third of a millisecond."""
    memory.hint(SHORT_ROUND_TRIP_SECONDS / 6)
    memory.learn(PathState(5e8, round_trip, 0.0), "measured")
    control = memory.begin()
    control.counts_packets = memory.repairs_packets
    return control


def test_a_short_path_stays_one_where_busy_hosts_made_chunks_take_longer() -> None:
    memory = PathMemory()
    memory.repairs_packets = True
    control = of_busy_hosts(memory)
    assert control.report_clocked
    # paced, it would have more under way than a socket holds, and what that loses would be sent again
    assert control.window_bytes <= MOST_WINDOW_BYTES
    assert memory.state is not None
    assert memory.state.min_rtt < SHORT_ROUND_TRIP_SECONDS


def test_what_the_control_channel_takes_is_heard_of_late_and_counts_then() -> None:
    memory = PathMemory(KnownPath(PathState(5e8, 1.4 * SHORT_ROUND_TRIP_SECONDS, 0.0), "remembered"))
    memory.repairs_packets = True
    assert not memory.begin().report_clocked
    memory.hint(SHORT_ROUND_TRIP_SECONDS / 6)
    assert memory.state is not None
    assert memory.state.min_rtt == SHORT_ROUND_TRIP_SECONDS / 6


def test_a_path_that_is_paced_keeps_the_round_trip_that_its_chunks_have() -> None:
    memory = PathMemory()
    assert of_busy_hosts(memory).min_rtt == 1.4 * SHORT_ROUND_TRIP_SECONDS


def test_a_long_path_is_none_that_is_short_for_a_control_channel_by_another_way() -> None:
    memory = PathMemory()
    memory.repairs_packets = True
    assert not of_busy_hosts(memory, 0.02).report_clocked


def test_a_path_is_no_shorter_than_its_chunks_say_where_frames_take_as_long() -> None:
    memory = PathMemory()
    memory.repairs_packets = True
    memory.hint(1.2 * SHORT_ROUND_TRIP_SECONDS)
    memory.learn(PathState(5e8, 1.4 * SHORT_ROUND_TRIP_SECONDS, 0.0), "measured")
    assert memory.begin().min_rtt == 1.4 * SHORT_ROUND_TRIP_SECONDS


@pytest.mark.parametrize(
    ("rate", "round_trip", "is_short"), [(5e8, 0.0025, True), (4e9, 0.0025, False), (4e7, 0.004, False)]
)
def test_what_a_long_chunk_takes_itself_is_no_round_trip_of_the_path(
    rate: float, round_trip: float, is_short: bool
) -> None:
    memory = PathMemory()
    memory.repairs_packets = True
    control = memory.begin()
    control.chunk_bytes = 512 * 1024
    control.counts_packets = True
    control.on_sample(Sample(round_trip, rate, 8, 0, 8, True), 0.1)
    assert not control.report_clocked
    memory.end(control)
    following = memory.begin()
    following.counts_packets = True
    assert following.report_clocked is is_short
    for number in range(4):
        # and is not taken off again
        memory.end(following)
        following = memory.begin()
        assert following.min_rtt == pytest.approx(round_trip - 512 * 1024 / rate if is_short else round_trip), number


def test_a_slow_path_is_none_that_is_short_for_its_packets_take_half_of_its_round_trip() -> None:
    memory = PathMemory()
    memory.repairs_packets = True
    memory.hint(SHORT_ROUND_TRIP_SECONDS / 6)
    control = memory.begin()
    control.chunk_bytes, control.counts_packets = 1442, True
    # 5 Mbit/s
    control.on_sample(Sample(0.0035, 6.25e5, 8, 0, 8, True), 0.1)
    memory.end(control)
    following = memory.begin()
    following.counts_packets = True
    assert following.min_rtt == 0.0035
    assert not following.report_clocked
