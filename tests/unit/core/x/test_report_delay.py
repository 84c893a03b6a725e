"""For how long a report was held up on its way back: told by a clock that nobody has set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.x.report_delay import (
    CLOCK_DRIFT,
    HALF_LIFE_SECONDS,
    MOST_DELAY_SECONDS,
    ReportDelay,
)

OFFSET = -86_400.0
"""By which the clocks differ: theirs has run for a day longer."""
WAY = 0.01
RTT = 0.03


@pytest.mark.parametrize("offset", [OFFSET, 0.0, 86_400.0])
def test_a_report_was_held_up_by_what_it_came_later_than_the_soonest(offset: float) -> None:
    delay = ReportDelay()
    told = [delay.update(offset + WAY + late, RTT + late, 0.001 * number) for number, late in enumerate((0, 0.008, 0))]
    assert told == pytest.approx([0, 0.008, 0], abs=1e-5)


def test_of_the_first_report_nobody_can_tell() -> None:
    assert ReportDelay().update(OFFSET + WAY + 0.008, RTT, 0.0) == 0.0


def test_where_the_soonest_comes_later_those_after_it_are_judged_by_it() -> None:
    delay = ReportDelay()
    told = [delay.update(OFFSET + WAY + late, RTT, 0.0) for late in (0.008, 0.006, 0.0, 0.008)]
    assert told == pytest.approx([0, 0, 0, 0.008])


@pytest.mark.parametrize("drift", [-CLOCK_DRIFT, -0.0005, 0.0005, CLOCK_DRIFT])
def test_a_clock_that_runs_away_holds_nothing_up(drift: float) -> None:
    delay = ReportDelay()
    told = [delay.update(OFFSET + WAY + drift * now, RTT, now) for now in (0.002 * each for each in range(50_000))]
    assert max(told) == pytest.approx(0.0, abs=1e-7)


def test_a_clock_that_runs_away_faster_is_seen_and_never_by_more_than_the_round_trip() -> None:
    delay = ReportDelay()
    told = [delay.update(OFFSET + WAY + 0.01 * now, RTT, now) for now in (0.002 * each for each in range(50_000))]
    assert 0.9 * RTT < max(told) < RTT


def test_a_way_back_that_has_become_longer_is_believed_after_a_while() -> None:
    delay = ReportDelay()
    delay.update(OFFSET + WAY, RTT, 0.0)
    assert delay.update(OFFSET + WAY + 0.02, RTT, 1.0) == pytest.approx(0.019)
    assert delay.update(OFFSET + WAY + 0.02, RTT, 21.0) == pytest.approx(0.0, abs=1e-9)


def test_another_clock_begins_anew() -> None:
    delay = ReportDelay()
    delay.update(OFFSET + WAY, RTT, 0.0)
    assert delay.update(86_400.0 + WAY, RTT, 1.0) == 0.0
    assert delay.update(86_400.0 + WAY + 0.005, RTT, 1.0) == pytest.approx(0.005)


def test_what_is_remembered_counts_for_less_the_longer_ago_it_was() -> None:
    known = ReportDelay(OFFSET + WAY, 100.0)
    assert known.update(OFFSET + WAY + 0.008, RTT, 103.0) == pytest.approx(0.005)
    assert ReportDelay(OFFSET + WAY, 100.0).update(OFFSET + WAY + 0.008, RTT, 160.0) == 0.0


def test_the_next_one_may_be_held_up_as_long_and_less_is_expected_when_none_is() -> None:
    delay = ReportDelay()
    assert delay.expected(0.0) == 0.0
    delay.update(OFFSET + WAY, RTT, 0.0)
    delay.update(OFFSET + WAY + 0.02, RTT, 0.0)
    assert delay.expected(0.0) == pytest.approx(0.02)
    delay.update(OFFSET + WAY + 0.002, RTT, 0.01)
    assert delay.expected(HALF_LIFE_SECONDS) == pytest.approx(0.01)
    delay.update(OFFSET + WAY + 0.02 + HALF_LIFE_SECONDS * CLOCK_DRIFT, RTT, HALF_LIFE_SECONDS)
    assert delay.expected(HALF_LIFE_SECONDS) == pytest.approx(0.02)


@given(
    st.lists(
        st.tuples(st.floats(-1e9, 1e9), st.one_of(st.none(), st.floats(1e-6, 100.0)), st.floats(0.0, 10.0)),
        max_size=50,
    )
)
def test_whatever_a_peer_says_no_report_was_held_up_for_less_than_nothing_or_for_as_long_as_its_round_trip(
    reports: list[tuple[float, float | None, float]],
) -> None:
    delay, now = ReportDelay(), 0.0
    for way, rtt, later in reports:
        now += later
        held_up = delay.update(way, rtt, now)
        assert 0.0 <= held_up <= MOST_DELAY_SECONDS
        assert rtt is None or held_up < rtt
        assert 0.0 <= delay.expected(now) <= MOST_DELAY_SECONDS
