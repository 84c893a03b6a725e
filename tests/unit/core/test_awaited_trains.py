"""Trains go until the peer's end of the path is up, and what they tell is awaited for a while."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path_probe import (
    AWAITED_SECONDS,
    HEARD_SECONDS,
    MOST_UNANSWERED_TRAINS,
    UNHEARD_SECONDS,
    PathProbeAnswer,
    ProbingSide,
)

SPACING_NS = 33_000


def evenly(count: int) -> list[tuple[int, int]]:
    """So many datagrams, as a link of 1 Gbit/s spaces them."""
    return [(1, moment * SPACING_NS) for moment in range(count)]


def test_where_the_peers_end_comes_up_seconds_after_ours_a_later_train_is_answered() -> None:
    probing, now, trains = ProbingSide(), 0.0, 1
    probing.start(now)
    while now < 2.0:
        due = probing.timer()
        assert due is not None
        now, trains = due, trains + (probing.on_timer(due) is not None)
    found = probing.on_answer(PathProbeAnswer(trains, tuple(evenly(64)), 0), now + 0.02)
    assert found is not None
    assert probing.timer() is None


def test_what_the_first_trains_tell_is_awaited_and_no_longer() -> None:
    probing, told = ProbingSide(), ProbingSide()
    assert not probing.is_awaited(0.0)
    for side in (probing, told):
        side.start(10.0)
        assert side.is_awaited(10.0)
    told.on_answer(PathProbeAnswer(1, tuple(evenly(64)), 0), 10.02)
    assert not told.is_awaited(10.02)
    assert probing.awaited_until() == 10.0 + UNHEARD_SECONDS
    assert not probing.is_awaited(10.0 + UNHEARD_SECONDS)
    probing.on_heard(11.0)
    assert probing.is_awaited(11.0 + AWAITED_SECONDS - 0.01)
    assert not probing.is_awaited(11.0 + AWAITED_SECONDS)


@pytest.mark.parametrize(
    ("arrivals", "round_trip", "is_awaited"),
    [
        (((64, 0),), 0.001, False),
        (((64, 0),), 0.02, False),
        # whoever looked may have done so late, on a path of 80 Mbit/s
        (((64, 0),), 0.03, True),
        (((4, 0), (60, 28_000_000)), 0.001, True),
        # a small buffer, or a policer's bucket
        (((32, 0),), 0.001, True),
        ((), 0.001, True),
    ],
)
def test_where_a_train_has_come_at_one_moment_and_so_soon_that_the_path_is_fast_nothing_is_awaited(
    arrivals: tuple[tuple[int, int], ...], round_trip: float, is_awaited: bool
) -> None:
    probing, held = ProbingSide(), arrivals[-1][1] if arrivals else 0
    probing.start(10.0)
    now = 10.0 + round_trip + held * 1e-9
    assert probing.on_answer(PathProbeAnswer(1, arrivals, held), now) is None
    assert probing.is_awaited(now) == is_awaited
    assert probing.timer() == 10.5, "another goes all the same"


def test_when_the_peers_end_is_heard_to_be_up_a_train_goes_at_once_and_no_second_one() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_timer(0.5) is not None
    train = probing.on_heard(0.8)
    assert train is not None
    assert probing.on_heard(0.9) is None
    assert probing.on_answer(PathProbeAnswer(3, tuple(evenly(64)), 0), 0.85) is not None


def test_none_goes_where_ours_may_be_answered_yet_or_was() -> None:
    probing, told = ProbingSide(), ProbingSide()
    for side in (probing, told):
        side.start(0.0)
    assert probing.on_heard(HEARD_SECONDS / 2) is None
    told.on_answer(PathProbeAnswer(1, tuple(evenly(64)), 0), 0.1)
    assert told.on_heard(1.0) is None


def test_a_peer_that_sends_trains_again_and_again_makes_no_more_of_ours_go() -> None:
    probing, now, trains = ProbingSide(), 0.0, 1
    probing.start(now)
    while (due := probing.timer()) is not None:
        trains += probing.on_heard(due - 0.1) is not None
        trains += probing.on_timer(due) is not None
    assert trains == MOST_UNANSWERED_TRAINS
