"""What `fedrdma-x` leaves to competitors."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.competition import RECENT_SECONDS, SHARED_SECONDS, Competition, QueueVerdict

RATE = 100e6


def cruised(
    competition: Competition,
    queue: float,
    rate: float = RATE,
    *,
    maybe_own_queue: bool = False,
    has_path: bool = False,
    is_overrated: bool = False,
) -> QueueVerdict:
    """A CRUISE at this rate, with a queue so long."""
    competition.start_phase()
    for _ in range(10):
        competition.on_queue(queue, rate)
    return competition.on_cruise_end(
        rate, maybe_own_queue=maybe_own_queue, has_path=has_path, is_overrated=is_overrated
    )


def test_a_queue_late_in_cruise_is_of_others() -> None:
    competition = Competition(RATE, 0.0)
    assert cruised(competition, 0.0) is QueueVerdict.NONE
    assert not competition.is_recent
    assert cruised(competition, 0.002) is QueueVerdict.COMPETITORS
    assert competition.is_recent


def test_where_it_may_be_our_own_it_must_come_back_after_a_drain() -> None:
    competition = Competition(RATE, 0.0)
    assert cruised(competition, 0.002, maybe_own_queue=True) is QueueVerdict.UNCERTAIN
    assert not competition.is_recent
    assert cruised(competition, 0.0, maybe_own_queue=True) is QueueVerdict.NONE
    assert cruised(competition, 0.002, maybe_own_queue=True) is QueueVerdict.UNCERTAIN
    assert cruised(competition, 0.002, maybe_own_queue=True) is QueueVerdict.COMPETITORS


def test_where_the_rate_may_be_too_high_again_a_queue_that_comes_back_may_still_be_our_own_until_others_are_known() -> (
    None
):
    competition = Competition(RATE, 0.0)
    for _ in range(3):
        assert cruised(competition, 0.002, maybe_own_queue=True, is_overrated=True) is QueueVerdict.UNCERTAIN
    assert not competition.is_recent
    competition.on_newcomer()
    assert cruised(competition, 0.002, maybe_own_queue=True, is_overrated=True) is QueueVerdict.COMPETITORS


def test_a_queue_beside_all_that_the_path_gives_is_our_own_however_often_it_comes_back() -> None:
    competition = Competition(RATE, 0.0)
    assert competition.has_path(0.985 * RATE, 0.01)
    for _ in range(3):
        assert cruised(competition, 0.002, has_path=True) is QueueVerdict.OWN
    assert not competition.is_recent
    assert not competition.has_path(0.97 * RATE, 0.01)
    assert cruised(competition, 0.002, has_path=False) is QueueVerdict.COMPETITORS


def test_the_path_was_ours_where_all_that_it_gives_was_delivered_throughout() -> None:
    competition = Competition(RATE, 0.0)
    assert not competition.had_path
    # what a token bucket has let pass at once may have made a train look as much faster
    for delivered in (1.02 * RATE, 0.975 * RATE):
        competition.on_queue(0.002, delivered)
    assert competition.had_path
    competition.on_queue(0.002, 0.96 * RATE)
    assert not competition.had_path
    competition.start_phase()
    competition.on_queue(0.002, RATE)
    assert competition.had_path


def test_too_few_round_trips_show_nothing() -> None:
    competition = Competition(RATE, 0.0)
    competition.on_queue(0.01, RATE)
    assert competition.on_cruise_end(RATE, maybe_own_queue=False) is QueueVerdict.NONE


def test_a_cruise_of_too_few_round_trips_does_not_make_forget_what_the_one_before_has_shown() -> None:
    competition = Competition(RATE, 0.0)
    assert cruised(competition, 0.002, maybe_own_queue=True) is QueueVerdict.UNCERTAIN
    competition.start_phase()
    assert competition.on_cruise_end(RATE, maybe_own_queue=True) is QueueVerdict.NONE
    assert cruised(competition, 0.002, maybe_own_queue=True) is QueueVerdict.COMPETITORS


def test_one_comes_down_step_by_step_to_the_fair_share_and_no_further() -> None:
    competition = Competition(RATE, 0.0)
    rates = [RATE]
    for _ in range(4):
        rates.append(competition.reduced(rates[-1]))
    assert rates == pytest.approx([RATE, 0.8 * RATE, 0.64 * RATE, 0.512 * RATE, 0.5 * RATE], rel=0.2)
    assert rates[-1] == competition.fair_rate == RATE / 2
    assert competition.reduced(0.3 * RATE) == 0.3 * RATE


def test_others_are_expected_for_a_while_of_sending() -> None:
    competition = Competition(RATE, 0.0)
    competition.on_time(0.0)
    cruised(competition, 0.002)
    competition.on_time(RECENT_SECONDS - 0.1)
    assert competition.is_recent
    competition.on_time(RECENT_SECONDS + 0.1)
    assert not competition.is_recent
    assert cruised(competition, 0.0, RATE / 2) is QueueVerdict.NONE
    assert competition.capacity == RATE, "what the path gave us alone is not forgotten yet"
    competition.on_time(SHARED_SECONDS + 0.1)
    for _ in range(100):
        cruised(competition, 0.0, RATE / 2)
    assert competition.capacity == RATE / 2


def test_what_the_path_gave_us_alone_is_not_forgotten_within_two_seconds_at_less() -> None:
    competition = Competition(RATE, 0.0)
    for _ in range(15):
        assert cruised(competition, 0.0, RATE / 3) is QueueVerdict.NONE
    assert competition.fair_rate >= 0.35 * RATE


def test_of_a_link_that_is_shared_out_nobody_yields_more_than_the_rest_of_its_share() -> None:
    competition = Competition(RATE, 0.0)
    assert competition.reduced(RATE) == 0.8 * RATE
    competition.share = 0.95 * RATE
    assert competition.is_held_back
    assert competition.reduced(RATE) == 0.95 * RATE
    competition.share = 0.3 * RATE
    assert competition.reduced(0.5 * RATE) == 0.5 * RATE
    assert competition.fair_rate == 0.5 * RATE


def test_a_share_that_the_path_never_gave_is_no_reason_not_to_yield() -> None:
    competition = Competition(RATE, 0.0)
    competition.share = 1.3 * RATE
    assert not competition.is_held_back
    assert competition.reduced(RATE) == 0.8 * RATE


def test_a_share_is_no_reason_not_to_yield_for_a_while_after_a_full_buffer_has_lost_something() -> None:
    competition = Competition(RATE, 0.0)
    competition.share = 0.9 * RATE
    competition.on_time(0.0)
    competition.on_overrun()
    assert competition.fair_rate == 0.5 * RATE
    competition.on_time(SHARED_SECONDS - 0.1)
    assert not competition.is_held_back
    competition.on_time(SHARED_SECONDS + 0.1)
    assert competition.fair_rate == 0.9 * RATE


def test_when_others_of_a_shared_link_have_ended_no_competitors_are_expected() -> None:
    competition = Competition(RATE, 0.0)
    assert cruised(competition, 0.002) is QueueVerdict.COMPETITORS
    competition.on_room()
    assert competition.shared_seconds == 0


def test_who_sends_less_than_the_path_gave_alone_and_loses_much_in_a_full_buffer_has_a_competitor() -> None:
    competition = Competition(RATE, 0.0)
    competition.on_full_buffer(0.95 * RATE, overloaded=True)
    assert not competition.is_recent, "it may have filled it itself"
    competition.on_full_buffer(0.6 * RATE, overloaded=False)
    assert not competition.is_recent, "chance"
    competition.on_full_buffer(0.6 * RATE, overloaded=True)
    assert competition.is_recent
    assert competition.fair_rate == 0.5 * RATE


def test_that_a_buffer_was_full_is_remembered_for_a_while_of_sending() -> None:
    competition = Competition(RATE, 0.0)
    competition.on_time(0.0)
    assert not competition.is_full_lately
    competition.on_full_buffer(RATE, overloaded=False)
    competition.on_time(RECENT_SECONDS - 0.1)
    assert competition.is_full_lately
    competition.on_time(RECENT_SECONDS + 0.1)
    assert not competition.is_full_lately
