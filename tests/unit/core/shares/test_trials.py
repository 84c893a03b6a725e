"""What trials of more, or less, have shown of a link that loses at random, and how long they last."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.shares.trials import (
    FIRST_GAIN,
    LONGEST_TRIAL,
    USUAL_WINDOWS,
    Usual,
    carried_at_most,
    carried_before,
    carried_in,
    least_fallen,
    lost_at_random,
    windows_held,
    windows_shown,
)
from fedrdma_fate.core.shares.window import Window

LINK = 100.0
LOSS = 0.1


def window(allowed: float, arrived: float, lost: float = 0.0) -> Window:
    return Window(allowed, arrived, arrived, lost)


def test_where_packets_are_lost_in_front_of_a_link_as_much_more_may_go_as_makes_up_for_it() -> None:
    before, full = window(95, 95 * (1 - LOSS), LOSS), window(114, LINK, LOSS)
    assert carried_in(full, before) == pytest.approx(LINK / (1 - LOSS))


@pytest.mark.parametrize("more", [-0.05, 0.0, 0.05])
def test_where_they_are_lost_behind_it_no_more_may_go_than_it_carries_whatever_chance_takes(more: float) -> None:
    before, full = window(95, 95 * (1 - LOSS), LOSS), window(114, LINK * (1 - LOSS - more), LOSS + more)
    assert carried_in(full, before) <= LINK * (1 + 1e-9)


def test_what_overran_the_buffer_in_a_trial_of_more_does_not_count_as_lost_at_random() -> None:
    before, full = window(95, 95 * (1 - LOSS), LOSS), window(114, LINK * (1 - LOSS), 0.25)
    assert carried_in(full, before) == pytest.approx(LINK)


def test_chance_in_a_trial_of_more_does_not_show_that_the_link_carries_less() -> None:
    before, full = window(95, 95 * (1 - LOSS), LOSS), window(114, LINK, LOSS - 0.05)
    assert carried_in(full, before) < LINK / (1 - LOSS) <= carried_at_most(full, before) * (1 + 1e-9)


def test_what_a_full_buffer_loses_is_told_from_what_is_lost_at_random_by_a_trial_of_more() -> None:
    before = window(95, 95 * (1 - LOSS), LOSS)
    assert lost_at_random(window(114, LINK, LOSS + 0.05), before, 1.2)
    # all that was let through too much was lost besides
    assert not lost_at_random(window(132, LINK, 1 - LINK / 132), window(110, LINK, 1 - LINK / 110), 1.2)
    # nor is it at random where it is several times too much before, so that what is lost besides is less of a share
    assert not lost_at_random(window(300, LINK, 1 - LINK / 300), window(250, LINK, 1 - LINK / 250), 1.2)


def test_of_a_link_that_was_overrun_a_trial_of_less_finds_what_it_carries() -> None:
    assert carried_before(window(102, 102), window(120, LINK, 1 / 6)) == LINK
    # what is lost at less, too, is lost at random
    behind = carried_before(window(102, 102 * (1 - LOSS), LOSS), window(120, LINK * (1 - LOSS), 0.25))
    assert behind == pytest.approx(LINK)


def test_where_nothing_came_nothing_is_known() -> None:
    nothing = window(114, 0, 1.0)
    assert carried_in(nothing, nothing) == 0
    assert carried_before(nothing, window(95, 95)) > LINK


def test_the_mean_shows_what_one_window_does_not_where_chance_takes_much() -> None:
    usual = Usual()
    for lost in (0.0, 0.1) * USUAL_WINDOWS:
        usual.note(window(LINK, LINK * (1 - lost), lost))
    latest = window(LINK, LINK)
    assert usual.shown(latest, 0.05).lost_share == pytest.approx(0.05, abs=0.005)
    # and only there
    assert usual.shown(latest, 0.001) is latest
    usual.forget()
    assert usual.shown(latest, 0.05) is latest


def test_where_less_is_let_through_what_is_usual_begins_anew() -> None:
    usual = Usual()
    for _ in range(4):
        usual.note(window(LINK, LINK))
    usual.note(window(0.9 * LINK, 0.9 * LINK))
    assert usual.windows == 1


def test_a_trial_lasts_no_longer_than_it_takes_to_show_more_than_chance_or_a_buffer_holds() -> None:
    assert windows_shown(FIRST_GAIN, 0.0) == 1
    assert 1 < windows_shown(1.2, 0.03) < windows_shown(FIRST_GAIN, 0.03) == LONGEST_TRIAL
    assert windows_held(1000, 100) == 9
    assert windows_held(1000, 1000) == windows_held(10, 1000) == 1


def test_less_of_a_link_that_is_sent_several_times_what_it_carries_shows_and_an_outage_does_not() -> None:
    def falls(before: Window, after: Window) -> bool:
        return after.has_less_missing_than(before, least_fallen(before, 0.85, 0.0))

    assert falls(window(120, LINK), window(102, LINK))
    assert falls(window(240, LINK), window(204, LINK))
    # as much less of the same share comes where the link is not full
    assert not falls(window(240, LINK), window(204, 0.85 * LINK))
    assert not falls(window(240, 1.0), window(204, 1.0))
    # nor does what chance may take
    assert not window(204, LINK).has_less_missing_than(window(240, LINK), least_fallen(window(240, LINK), 0.85, 0.08))
