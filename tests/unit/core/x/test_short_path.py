"""`fedrdma-x` on a path too short to be paced: a window that reports clock."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.rate_control import RateController
from fedrdma_fate.core.x.short_path import (
    DECREASE_FACTOR,
    FIRST_WINDOW_BYTES,
    GROWTH_BYTES,
    LEAST_WINDOW_BYTES,
    MOST_WINDOW_BYTES,
    SHORT_ROUND_TRIP_SECONDS,
    ReportClockedWindow,
)
from fedrdma_fate.engine.path_memory import KnownPath, PathMemory

CHUNK = 16 * 1024
SHORT = PathState(rate=1e9, min_rtt=SHORT_ROUND_TRIP_SECONDS / 2, loss=0.0)


def sample(rtt: float, *, counts_packets: bool = True, rate: float | None = None) -> Sample:
    return Sample(rtt, rate, 4, 0, 4, counts_packets)


def a_window(window: ReportClockedWindow, lost: float = 0.0) -> int:
    """One window is answered, of which this share was lost."""
    size = window.window_bytes
    window.on_sample(size - int(lost * size), int(lost * size), CHUNK)
    return window.window_bytes


def test_the_window_doubles_until_some_of_it_is_lost_and_grows_by_a_chunk_from_then_on() -> None:
    window = ReportClockedWindow()
    assert [a_window(window) for _ in range(2)] == [2 * FIRST_WINDOW_BYTES, 4 * FIRST_WINDOW_BYTES]
    smaller = int(4 * FIRST_WINDOW_BYTES * DECREASE_FACTOR)
    assert a_window(window, lost=0.2) == smaller
    assert a_window(window, lost=0.2) == smaller, "what was under way already"
    assert a_window(window) == smaller + CHUNK


def test_the_window_grows_as_it_arrives_and_not_by_all_of_it_at_once() -> None:
    window = ReportClockedWindow()
    window.on_sample(CHUNK, 0, CHUNK)
    assert window.window_bytes == FIRST_WINDOW_BYTES + CHUNK


def test_what_goes_at_once_has_no_bound_until_a_window_was_too_large() -> None:
    window = ReportClockedWindow()
    for _ in range(3):
        a_window(window)
    assert window.burst_bytes == math.inf
    assert a_window(window, lost=0.2) > 4 * FIRST_WINDOW_BYTES
    assert FIRST_WINDOW_BYTES < window.burst_bytes < window.window_bytes / 3


def test_a_window_that_was_too_large_grows_by_some_packets_however_long_chunks_are() -> None:
    window = ReportClockedWindow()
    smaller = a_window(window, lost=0.2)
    window.on_sample(smaller, 0, 128 * 1024)
    assert window.window_bytes == smaller + GROWTH_BYTES


def test_what_a_link_loses_by_itself_does_not_shrink_the_window() -> None:
    window = ReportClockedWindow()
    assert a_window(window, lost=0.01) == FIRST_WINDOW_BYTES + FIRST_WINDOW_BYTES - int(0.01 * FIRST_WINDOW_BYTES)


def test_the_window_stays_within_its_bounds() -> None:
    window = ReportClockedWindow()
    assert max(a_window(window) for _ in range(20)) == MOST_WINDOW_BYTES
    assert min(a_window(window, lost=0.5) for _ in range(60)) == LEAST_WINDOW_BYTES


@pytest.mark.parametrize(
    ("rtt", "counts_packets", "clocked"),
    [
        (SHORT_ROUND_TRIP_SECONDS / 2, True, True),
        (SHORT_ROUND_TRIP_SECONDS / 2, False, False),
        (SHORT_ROUND_TRIP_SECONDS * 2, True, False),
    ],
)
def test_reports_clock_short_paths_on_which_packets_are_repaired_and_no_others(
    rtt: float, counts_packets: bool, clocked: bool
) -> None:
    control = RateController(PathState(1e9, rtt, 0.0))
    control.on_sample(sample(rtt, counts_packets=counts_packets), 0.0)
    assert control.report_clocked is clocked


def test_on_a_short_path_a_host_that_answers_late_makes_no_queue_and_no_newcomer() -> None:
    control = RateController(SHORT)
    control.chunk_bytes = CHUNK
    for turn in range(1000):
        now = turn * 0.002
        control.on_time(now)
        control.on_sample(sample(SHORT.min_rtt if turn % 50 == 0 else 0.02, rate=2e9), now)
    state = control.state()
    assert state is not None
    assert (state.rate, state.shared_seconds) == (2e9, 0.0)
    assert control.window_bytes == MOST_WINDOW_BYTES


def test_the_next_flow_begins_with_half_of_the_window_and_doubles_it_up_to_what_was_found() -> None:
    first = ReportClockedWindow()
    for lost in (0.0, 0.0, 0.2):
        found = a_window(first, lost=lost)
    following = ReportClockedWindow(first.remembered_bytes, found=first.is_found)
    assert following.window_bytes == -(-found // 2)
    grown = [a_window(following) for _ in range(2)]
    assert grown == [found, found + CHUNK]


def test_where_no_window_was_too_large_the_next_flow_doubles_on() -> None:
    first = ReportClockedWindow()
    found = a_window(first)
    following = ReportClockedWindow(first.remembered_bytes, found=first.is_found)
    assert [a_window(following) for _ in range(2)] == [found, 2 * found]


def test_flows_that_are_soon_over_do_not_shrink_what_is_remembered() -> None:
    remembered, found = MOST_WINDOW_BYTES // 2, True
    for _ in range(8):
        window = ReportClockedWindow(remembered, found=found)
        window.on_sample(CHUNK, 0, CHUNK)
        remembered, found = window.remembered_bytes, window.is_found
    assert (remembered, found) == (MOST_WINDOW_BYTES // 2, True)


@pytest.mark.parametrize("remembered", [1.0, LEAST_WINDOW_BYTES, 1e12])
def test_what_is_remembered_is_brought_within_the_bounds(remembered: float) -> None:
    window = ReportClockedWindow(remembered, found=True)
    assert LEAST_WINDOW_BYTES // 2 <= window.window_bytes <= MOST_WINDOW_BYTES // 2


def test_a_controller_hands_its_window_on_by_what_is_remembered_of_the_path() -> None:
    memory = PathMemory(KnownPath(SHORT, "measured"))
    control = memory.begin()
    control.chunk_bytes = CHUNK
    now = 0.0
    while not control.report_clocked or control.window_bytes < 4 * FIRST_WINDOW_BYTES:
        now += 0.002
        control.on_sample(sample(SHORT.min_rtt, rate=1e9), now)
    memory.end(control)
    following = [memory.begin() for _ in range(2)]
    for each in following:
        each.on_sample(sample(SHORT.min_rtt), now)
    assert [each.window_bytes for each in following] == [2 * FIRST_WINDOW_BYTES, FIRST_WINDOW_BYTES], "two share it"


def test_a_path_that_is_paced_remembers_no_window() -> None:
    control = RateController(PathState(1e9, 0.02, 0.0, window_bytes=1e6))
    control.on_sample(sample(0.02, rate=1e9), 0.0)
    state = control.state()
    assert state is not None
    assert state.window_bytes == 0
