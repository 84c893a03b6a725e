"""A raised rate that brings losses is what a policer's bucket had saved: the rate from before is returned to."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.raised_rate import HOLD_SECONDS, LEAST_SHARE, PASSED_GAIN, RaisedRate

RATE = 60e6
RAISED = 1.25 * RATE
RTT = 0.02


def raised(at: float = 0.0) -> RaisedRate:
    rate = RaisedRate(0.0, 2 * RATE)
    rate.on_time(at)
    rate.on_probe(RATE)
    rate.on_raised(RTT, at)
    return rate


def rounds(rate: RaisedRate, shares: list[float], *, heavy: bool = False, since: float = 0.02) -> list[float | None]:
    return [rate.on_round(RAISED, s, 100, 0.0, 4, since + k * RTT, heavy=heavy) for k, s in enumerate(shares)]


def test_two_rounds_that_lose_more_than_before_take_the_rate_back_to_what_it_was() -> None:
    rate = raised()
    assert rounds(rate, [0.4, 0.4]) == [None, RATE]
    assert rate.is_held(1.0)
    assert rate.bound(1.2 * RATE, 1.0) == RATE
    assert rate.bound(1.2 * RATE, 0.04 + HOLD_SECONDS + 0.01) == 1.2 * RATE


def test_a_rate_before_that_lost_as_much_is_not_what_lasts_but_what_passed() -> None:
    assert rounds(raised(), [0.7, 0.7]) == [None, pytest.approx(PASSED_GAIN * RAISED * 0.3**0.25)]


def test_so_many_as_no_path_loses_at_random_take_it_back_at_once() -> None:
    assert rounds(raised(), [0.9], heavy=True) == [LEAST_SHARE * RATE]


def test_rounds_each_of_which_may_have_lost_by_chance_show_it_together() -> None:
    assert rounds(raised(), [0.17, 0.17]) == [None, RATE]


@pytest.mark.parametrize("shares", [[0.4, 0.0, 0.4, 0.0], [0.07] * 4, [0.17, 0.07, 0.17, 0.07]])
def test_a_burst_and_a_few_losses_do_not(shares: list[float]) -> None:
    rate = raised()
    assert rounds(rate, shares) == [None] * 4
    assert not rate.is_held(1.0)


def test_losses_without_a_raise_or_long_after_it_do_not() -> None:
    rate = RaisedRate(0.0, RATE)
    assert rounds(rate, [0.4] * 4) == [None] * 4
    assert rounds(raised(), [0.4] * 4, since=1.0) == [None] * 4


def test_each_time_it_is_held_twice_as_long() -> None:
    rate = raised()
    rounds(rate, [0.9], heavy=True)
    rate.on_probe(RATE)
    rate.on_raised(RTT, 3.0)
    rounds(rate, [0.9], heavy=True, since=3.02)
    assert rate.is_held(3.02 + 1.9 * HOLD_SECONDS)


def test_what_is_left_of_a_hold_goes_on_in_the_next_transfer() -> None:
    rate = raised()
    rounds(rate, [0.9], heavy=True)
    rate.on_time(1.0)
    later = RaisedRate(rate.held_seconds, RATE)
    later.on_time(100.0)
    assert later.is_held(101.0)
    assert later.bound(1.5 * RATE, 101.0) == RATE
    assert not later.is_held(101.1)


def test_where_as_much_is_lost_at_the_lower_rate_nothing_is_held() -> None:
    rate = raised()
    assert rounds(rate, [0.4, 0.4]) == [None, RATE]
    rounds(rate, [0.35], since=0.06)
    assert rate.is_held(0.08), "that was sent before"
    rounds(rate, [0.1], since=0.2)
    assert rate.is_held(0.3)
    rounds(rate, [0.3], since=0.3)
    assert not rate.is_held(0.32)


def test_many_that_are_overdue_soon_after_a_raise_take_it_back_to_what_seems_to_have_come() -> None:
    assert raised().on_overdue(RAISED, 0.3, 67, 0.0, 4, RTT) == pytest.approx(RAISED * 0.7)
    assert raised().on_overdue(RAISED, 0.9, 67, 0.0, 4, RTT) == LEAST_SHARE * RATE


@pytest.mark.parametrize(
    ("share", "usual", "at"), [(0.1, 0.0, RTT), (0.3, 0.3, RTT), (0.9, 0.0, 1.0)], ids=["few", "as usual", "long after"]
)
def test_what_is_overdue_otherwise_says_nothing(share: float, usual: float, at: float) -> None:
    rate = raised()
    assert rate.on_overdue(RAISED, share, 67, usual, 4, at) is None
    assert not rate.is_held(at)


def test_where_nothing_was_known_before_the_raise_nothing_is_gone_back_to() -> None:
    rate = RaisedRate(0.0, 0.0)
    rate.on_raised(RTT, 0.0)
    assert rate.on_overdue(RAISED, 0.9, 67, 0.0, 4, RTT) is None
