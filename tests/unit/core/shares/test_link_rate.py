"""What a receiver's link carries, found from what arrives of all."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from fedrdma_fate.core.shares.link_rate import (
    DISBELIEVED_IN_A_ROW,
    DOUBTED_WINDOWS,
    LONG_WINDOWS,
    MOST_HOLD_WINDOWS,
    LinkRate,
)
from fedrdma_fate.core.shares.window import Window

LINK = 100.0


def play(rate: LinkRate, windows: int, link: float = LINK, usable: float = math.inf, loss: float = 0.0) -> list[float]:
    """What was let through in each window of a link of this rate, whose senders can use so much, and lose so much."""
    allowed = []
    for _ in range(windows):
        let_through = rate.shared_out
        assert let_through is not None
        allowed.append(let_through)
        sent = min(let_through, usable)
        arrived = min(sent * (1 - loss), link)
        rate.on_arrived(arrived)
        using = let_through if sent == let_through else sent / 0.67
        rate.on_window(Window(using, arrived, arrived, 1 - arrived / sent))
    return allowed


def test_a_probe_that_told_the_link_s_rate_is_not_exceeded_for_long() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    allowed = play(rate, 200)
    assert rate.rate == pytest.approx(LINK, rel=0.02)
    over = [each for each in allowed if each > LINK]
    # trials that find nothing become rare
    assert max(allowed) <= 1.05 * LINK
    assert 1 <= len(over) <= 8


def test_the_largest_of_several_probes_counts_for_the_link_carries_no_less() -> None:
    rate = LinkRate()
    for probed in (60.0, 97.0, 80.0):
        rate.on_probed(probed)
    assert (rate.rate, rate.found_by) == (97.0, "probed")


def test_a_link_ten_times_one_sender_s_own_is_found_in_some_trials() -> None:
    rate = LinkRate()
    rate.on_probed(LINK / 10)
    play(rate, 20)
    assert rate.rate is not None
    assert rate.rate >= 0.9 * LINK


@pytest.mark.parametrize(("free", "lost", "found"), [(0.0, 0.0, True), (0.0, 0.05, False), (0.05, 0.0, False)])
def test_where_less_found_nothing_a_link_is_judged_by_those_that_no_foreign_flow_holds_up_unless_more_is_lost(
    free: float, lost: float, found: bool
) -> None:
    rate = LinkRate()
    rate.on_probed(LINK / 10)
    for number in range(30):
        assert rate.shared_out is not None
        arrived = (0.94 + 0.03 * (number % 2)) * rate.shared_out
        lost_share = lost if rate.gain > 1 else 0.0
        rate.on_window(Window(rate.shared_out, arrived, arrived, lost_share, free_missing_share=free))
    assert ((rate.rate or 0.0) > LINK / 8) == found


@pytest.mark.parametrize(("free", "found"), [((0.0, 0.0), True), ((0.0, 0.03), False), ((0.05, 0.05), False)])
def test_where_foreign_flows_make_what_is_reported_vary_a_link_is_tried_by_those_whose_own_comes_steadily(
    free: tuple[float, float], found: bool
) -> None:
    rate = LinkRate(least_hold=4)
    rate.on_probed(LINK / 10)
    for number in range(60):
        assert rate.shared_out is not None
        arrived = (0.80, 0.95)[number % 2] * rate.shared_out
        rate.on_window(Window(rate.shared_out, arrived, arrived, 0.0, free_missing_share=free[number % 2]))
    assert ((rate.rate or 0.0) > LINK / 8) == found


def test_a_rate_that_is_a_third_too_high_comes_down_though_nothing_is_lost_in_a_deep_buffer() -> None:
    rate = LinkRate()
    rate.on_probed(1.3 * LINK)
    for _ in range(60):
        assert rate.shared_out is not None
        rate.on_window(Window(rate.shared_out, min(LINK, rate.shared_out), min(LINK, rate.shared_out), 0.0))
    assert rate.rate == pytest.approx(LINK, rel=0.06)


def test_ten_times_too_high_is_found_in_the_first_window() -> None:
    rate = LinkRate(configured=10 * LINK)
    play(rate, 2)
    assert rate.rate is not None
    assert LINK <= rate.rate <= 1.25 * LINK


def test_what_was_set_by_hand_is_never_exceeded_however_much_more_the_link_carries() -> None:
    rate = LinkRate(configured=LINK / 10)
    assert max(play(rate, 100)) <= LINK / 10
    rate.on_probed(LINK)
    rate.on_arrived(LINK)
    assert rate.rate == LINK / 10


@pytest.mark.parametrize("loss", [0.01, 0.04, 0.15])
def test_loss_at_random_does_not_bring_the_rate_down(loss: float) -> None:
    rate, chance = LinkRate(), random.Random(1)
    rate.on_probed(LINK)
    for _ in range(200):
        allowed = rate.shared_out
        assert allowed is not None
        # some 150 chunks in a window
        lost = sum(chance.random() < loss for _ in range(150)) / 150
        arrived = min(allowed * (1 - lost), LINK)
        rate.on_window(Window(allowed, arrived, arrived, lost))
    assert rate.rate is not None
    assert 0.9 * LINK <= rate.rate <= 1.25 * LINK


def windows_of(rate: LinkRate, count: int, loss: float, link: float = LINK, chunks: int = 600) -> list[float]:
    """What was let through in windows of a link of this rate, whose ways lose chunks by chance."""
    chance, allowed = random.Random(3), []
    for _ in range(count):
        let_through = rate.shared_out
        assert let_through is not None
        allowed.append(let_through)
        lost = sum(chance.random() < loss for _ in range(chunks)) / chunks
        arrived = min(let_through, link) * (1 - lost)
        rate.on_arrived(arrived)
        rate.on_window(Window(let_through, arrived, arrived, 1 - arrived / let_through))
    return allowed


@pytest.mark.parametrize("loss", [0.02, 0.04, 0.08])
def test_a_link_of_more_than_a_train_has_told_is_found_though_its_ways_lose_at_random(loss: float) -> None:
    rate = LinkRate()
    rate.on_probed(0.7 * LINK)
    windows_of(rate, 60, loss)
    assert rate.rate is not None
    assert rate.rate >= 0.95 * LINK


def test_where_the_link_drops_what_it_does_not_carry_the_rate_stays_there_though_its_ways_lose_at_random() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    allowed = windows_of(rate, 400, 0.04)
    assert rate.rate is not None
    assert 0.9 * LINK <= rate.rate <= 1.15 * LINK
    assert sum(each > 1.1 * LINK for each in allowed) <= 40


def test_after_a_trial_for_more_that_found_nothing_less_is_tried_again_before_more_is() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    trials = []
    for _ in range(120):
        allowed = rate.shared_out
        assert allowed is not None
        trials.append(rate.gain)
        arrived = min(allowed, 0.98 * LINK) * 0.97
        rate.on_window(Window(allowed, arrived, arrived, 1 - arrived / allowed))
    tried = [gain for gain in trials if gain != 1]
    assert any(gain > 1 for gain in tried)
    assert all(former < 1 for former, latter in itertools.pairwise(tried) if latter > 1)


def test_where_only_those_that_lost_nothing_seem_to_use_their_shares_more_is_not_found_than_comes_of_all() -> None:
    rate, gains = LinkRate(), []
    rate.on_probed(LINK)
    for _ in range(200):
        allowed = rate.shared_out
        assert allowed is not None
        gains.append(rate.gain)
        arrived = min(allowed, 0.98 * LINK) * 0.96
        # of many who send a chunk or two each, the others have not lost any
        rate.on_window(Window(0.8 * allowed, 0.8 * allowed, arrived, 1 - arrived / allowed))
    assert any(gain > 1 for gain in gains)
    assert rate.rate == pytest.approx(LINK)


def test_what_was_set_by_hand_is_not_exceeded_where_ways_lose_at_random() -> None:
    rate = LinkRate(configured=LINK / 2)
    assert max(windows_of(rate, 100, 0.04)) <= LINK / 2


def test_a_trial_that_somebody_disturbs_is_no_evidence() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    play(rate, 2)
    assert rate.gain > 1
    rate.disturb()
    assert rate.gain == 1
    assert rate.rate == LINK


def test_nothing_is_shared_out_of_a_link_of_which_nothing_is_known() -> None:
    rate = LinkRate()
    rate.on_window(Window(10.0, 5.0, 5.0, 0.5))
    assert rate.shared_out is None
    rate.on_arrived(30.0)
    assert (rate.rate, rate.found_by) == (30.0, "arrivals")


def test_the_longest_wait_between_trials_that_find_nothing_has_a_bound() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    allowed = play(rate, 1000)
    last = max(number for number, each in enumerate(allowed) if each > LINK)
    assert last >= 1000 - 2 * (MOST_HOLD_WINDOWS + 2)


# --- where the ways over the link are known ---


def test_a_link_that_carries_all_ways_is_none_that_is_shared() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    rate.reach = 8 * LINK
    assert not rate.ample
    rate.on_joint_train(6 * LINK)
    assert rate.ample
    rate.reach = 10 * LINK
    assert not rate.ample


def test_one_that_is_as_fast_as_all_ways_together_has_room_however_it_is_known() -> None:
    rate = LinkRate(configured=8 * LINK)
    assert not rate.ample, "nothing is known of the ways"
    rate.reach = 8 * LINK
    assert rate.ample
    rate.reach = 9 * LINK
    assert not rate.ample, "set by hand: it carries no more"


def test_trains_that_came_hardly_faster_than_one_alone_change_nothing() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    rate.on_joint_train(1.2 * LINK)
    assert rate.rate == LINK


def test_trains_change_nothing_that_was_set_by_hand_or_that_trials_have_shown() -> None:
    by_hand, shown = LinkRate(configured=LINK), LinkRate()
    shown.on_probed(LINK / 2)
    play(shown, 60)
    for rate in (by_hand, shown):
        before = rate.rate
        rate.on_probed(4 * LINK)
        rate.on_joint_train(8 * LINK)
        assert before == rate.rate == pytest.approx(LINK, rel=0.05)


def test_what_came_of_one_alone_does_not_keep_trains_from_telling_more() -> None:
    rate = LinkRate()
    rate.on_arrived(LINK / 2)
    rate.on_probed(LINK)
    assert (rate.rate, rate.found_by) == (LINK, "probed")
    rate.on_arrived(1.1 * LINK)
    rate.on_joint_train(8 * LINK)
    assert (rate.rate, rate.found_by) == (8 * LINK, "probed")


def test_more_than_all_ways_carry_is_not_tried_for() -> None:
    rate = LinkRate()
    rate.on_probed(LINK / 10)
    rate.reach = LINK / 2
    allowed = play(rate, 40)
    assert max(allowed) <= LINK / 2
    assert rate.rate is not None
    assert rate.rate >= 0.7 * LINK / 2


OVERRUN = Window(8 * LINK, LINK, LINK, 7 / 8)
"""Of what all ways take, an eighth came."""


def told_by_trains(joint: float, reach: float = 8 * LINK) -> LinkRate:
    """A link of which trains to all at one moment came at such a rate."""
    rate = LinkRate()
    rate.on_probed(LINK)
    rate.reach = reach
    rate.on_joint_train(joint)
    assert rate.ample
    return rate


def test_a_link_that_was_taken_for_ample_is_shared_as_soon_as_it_is_overrun() -> None:
    rate = told_by_trains(6 * LINK)
    rate.on_window(OVERRUN)
    assert not rate.ample
    assert rate.rate == LINK


def test_what_most_ways_lose_at_once_is_their_loss_where_trains_have_shown_that_the_link_carries_all_of_it() -> None:
    less_was_sent = Window(5 * LINK, 3 * LINK, 3 * LINK, 0.3)
    for rate, window in ((told_by_trains(6 * LINK), less_was_sent), (told_by_trains(7.5 * LINK), OVERRUN)):
        for _ in range(5):
            for _ in range(DISBELIEVED_IN_A_ROW - 1):
                rate.on_window(window)
            rate.on_window(Window(8 * LINK, 8 * LINK, 8 * LINK, 0.0))
        assert rate.ample


def test_loss_that_goes_on_is_the_links_whatever_trains_have_shown() -> None:
    rate = told_by_trains(8 * LINK)
    for _ in range(DISBELIEVED_IN_A_ROW):
        assert rate.ample
        rate.on_window(OVERRUN)
    assert (rate.ample, rate.rate) == (False, LINK)


def test_what_trains_have_told_holds_for_the_next_round() -> None:
    rate = told_by_trains(6 * LINK)
    for _ in range(3):
        rate.on_window(OVERRUN)
        assert rate.rate == LINK
        rate.on_rest()
        assert (rate.ample, rate.rate, rate.found_by) == (True, 6 * LINK, "probed")
        # a round in which nothing is overrun
        rate.on_rest()


def test_two_rounds_in_a_row_refute_what_trains_have_told() -> None:
    rate = told_by_trains(6 * LINK)
    for _ in range(2):
        rate.on_window(OVERRUN)
        rate.on_rest()
    for _ in range(3):
        assert (rate.ample, rate.rate) == (False, LINK)
        rate.on_rest()


def test_a_rest_changes_nothing_of_a_link_that_no_trains_told_of() -> None:
    rate = LinkRate()
    rate.on_probed(8 * LINK)
    rate.on_window(OVERRUN)
    rate.on_rest()
    assert (rate.rate, rate.found_by) == (LINK, "arrivals")


def noisy(loss: float, early: float, seed: int, *, link: float = LINK) -> LinkRate:
    """A link that trains have told of, 400 windows later; its ways lose by chance, its reports are early or late."""
    rate, chance = LinkRate(least_hold=LONG_WINDOWS), random.Random(seed)
    rate.on_probed(LINK)
    rate.reach = 8 * LINK
    for _ in range(400):
        let_through = rate.shared_out
        assert let_through is not None
        lost = sum(chance.random() < loss for _ in range(150)) / 150
        arrived = min(let_through, link) * (1 - lost) * chance.uniform(1 - early, 1 + early)
        rate.on_window(Window(let_through, arrived, arrived, lost))
    return rate


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.04])
@pytest.mark.parametrize("early", [0.0, 0.02, 0.05, 0.15])
def test_chance_does_not_make_a_link_look_faster_than_it_is(loss: float, early: float) -> None:
    rates = [noisy(loss, early, seed).rate for seed in range(8)]
    assert all(rate is not None and 0.9 * LINK <= rate <= 1.06 * LINK for rate in rates)


def test_more_is_found_though_the_ways_lose_and_reports_are_early_or_late() -> None:
    rate = noisy(0.01, 0.01, 1, link=4 * LINK).rate
    assert rate is not None
    assert rate >= 3 * LINK


def until_trial(rate: LinkRate, link: float = LINK) -> None:
    """Windows in which all comes that the link carries, until one that tries for more is about to begin."""
    while rate.gain <= 1:
        play(rate, 1, link)


def overrun(rate: LinkRate, arrived: float) -> None:
    """A window of which less than two thirds come, for the buffer is full."""
    assert rate.shared_out is not None
    rate.on_window(Window(rate.shared_out, arrived, arrived, 1 - arrived / rate.shared_out))


def test_a_trial_that_overruns_the_buffer_leaves_the_rate_as_it_was() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    until_trial(rate)
    overrun(rate, LINK / 2)
    assert (rate.rate, rate.gain) == (LINK, 1.0)


def test_so_does_one_whose_losses_are_told_after_it() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    until_trial(rate)
    play(rate, 1)
    assert rate.gain == 1
    overrun(rate, LINK / 2)
    assert rate.rate == LINK


def test_where_the_buffer_stays_overrun_what_was_found_last_is_given_up_and_then_what_comes_is_the_link_s() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    until_trial(rate)
    # the first finds more, and the next begins
    play(rate, 1, 10 * LINK)
    assert rate.rate == pytest.approx(1.05 * LINK)
    for left in (1.05 * LINK, LINK, LINK / 2):
        overrun(rate, LINK / 2)
        assert rate.rate == pytest.approx(left)


def test_what_overruns_the_buffer_long_after_a_trial_was_not_the_trial() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    until_trial(rate)
    play(rate, 1 + DOUBTED_WINDOWS)
    overrun(rate, LINK / 2)
    assert rate.rate == LINK / 2


def test_one_way_that_loses_alone_says_nothing_of_the_link_that_all_lead_over() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    assert rate.shared_out is not None
    rate.on_window(Window(rate.shared_out, 0.7 * LINK, 0.7 * LINK, 0.3, common_loss=0.0))
    assert rate.rate == LINK
    rate.on_window(Window(rate.shared_out, 0.7 * LINK, 0.7 * LINK, 0.3, common_loss=0.3))
    assert rate.rate == 0.7 * LINK


def test_trains_that_were_wanted_of_all_count_where_they_came_faster_than_each_alone_and_nothing_was_judged() -> None:
    rate = LinkRate()
    rate.on_probed(LINK)
    rate.on_wanted_train(1.05 * LINK)
    assert rate.rate == LINK, "two estimates of one link"
    rate.on_wanted_train(1.25 * LINK)
    assert (rate.rate, rate.found_by) == (1.25 * LINK, "probed")
    configured = LinkRate(LINK)
    configured.on_wanted_train(2 * LINK)
    assert configured.rate == LINK


@pytest.mark.parametrize(("held", "at_once"), [(0, False), (1 << 21, True)])
def test_a_trial_that_would_overrun_what_a_buffer_is_known_to_hold_waits_for_those_that_send_for_long(
    held: int, at_once: bool
) -> None:
    ten_gigabits = 1.25e9
    rate = LinkRate()
    rate.on_probed(ten_gigabits)
    rate.on_wanted_train(ten_gigabits, held)

    def windows(count: int) -> list[float]:
        gains = []
        for _ in range(count):
            let_through = rate.shared_out
            assert let_through is not None
            gains.append(rate.gain)
            arrived = min(let_through, ten_gigabits)
            rate.on_window(Window(let_through, arrived, arrived, 0.0, seconds=0.02))
        return gains

    assert (max(windows(LONG_WINDOWS)) > 1) == at_once
    # another round
    rate.disturb()
    assert (max(windows(LONG_WINDOWS)) > 1) == at_once
    rate.disturb()
    assert max(windows(2 * LONG_WINDOWS)) > 1
