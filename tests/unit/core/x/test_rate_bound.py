"""What a flow is let send, and when there is room for more than it knows of."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.core.x.rate_bound import RateBound

RATE = 1e6
RECENT = 0.5


@pytest.mark.parametrize("most", [1.3 * RATE, math.inf])
def test_room_is_found_once_when_one_who_used_all_of_its_share_is_let_send_more(most: float) -> None:
    bound = RateBound()
    bound.most = 1.1 * RATE
    bound.on_rate(RATE, 0.0)
    assert not bound.finds_room(RATE, RECENT, 0.0)
    bound.most = most
    bound.on_rate(RATE, 0.1)
    assert bound.finds_room(RATE, RECENT, 0.1)
    assert not bound.finds_room(RATE, RECENT, 0.1)


def test_there_is_none_for_who_was_never_bounded() -> None:
    bound = RateBound()
    bound.on_rate(RATE, 0.0)
    assert not bound.finds_room(RATE, RECENT, 0.0)


def test_nor_for_who_did_not_use_its_share_for_its_path_carries_no_more() -> None:
    bound = RateBound()
    bound.most = 1.2 * RATE
    bound.on_rate(RATE, 0.0)
    bound.most = math.inf
    assert not bound.finds_room(RATE, RECENT, 0.0)


def test_nor_where_that_was_long_ago() -> None:
    bound = RateBound()
    bound.most = RATE
    bound.on_rate(RATE, 0.0)
    bound.most = math.inf
    assert not bound.finds_room(RATE, RECENT, RECENT + 0.1)


def test_who_knows_of_all_that_it_is_let_send_now_needs_no_probe() -> None:
    bound = RateBound()
    bound.most = RATE / 2
    bound.on_rate(RATE, 0.0)
    bound.most = 1.2 * RATE
    assert not bound.finds_room(RATE, RECENT, 0.1)


def test_a_probe_tries_for_no_more_than_it_may_send() -> None:
    bound = RateBound()
    assert bound.within(2.0, RATE) == 2
    bound.most = 1.5 * RATE
    assert bound.within(2.0, RATE) == 1.5
    assert bound.within(2.0, 0.0) == 2
