"""The token bucket."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.pacing import Pacer


def test_a_bucket_lets_a_burst_go_and_then_the_rate() -> None:
    pacer = Pacer(100)
    pacer.set_rate(1000.0, 0.0)
    assert pacer.grant_at(100, 0.0) == 0.0
    pacer.take(100, 0.0)
    assert pacer.grant_at(50, 0.0) == pytest.approx(0.05)
    assert pacer.grant_at(100, 10.0) == 10.0
    pacer.take(100, 10.0)
    assert pacer.grant_at(10, 10.0) > 10.0, "a long silence earns one burst, not more"


def test_of_what_a_pause_has_earned_no_more_than_a_bound_goes_at_once() -> None:
    pacer = Pacer(100)
    pacer.set_rate(1000.0, 0.0)
    pacer.bound(40)
    assert pacer.grant_at(40, 0.0) == 0.0
    assert pacer.grant_at(50, 0.0) == pytest.approx(0.01)
    assert pacer.grant_at(100, 10.0) == 10.0, "later it is a whole bucket again"
    pacer.take(70, 10.0)
    pacer.bound(40)
    assert pacer.grant_at(40, 10.0) == pytest.approx(10.01), "a bound gives nothing"
