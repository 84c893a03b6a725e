"""Which chunks in flight are declared lost, and when."""

from __future__ import annotations

import math

import pytest

from fedrdma_fate.core.x.loss_detection import (
    EARLY_RETURN_TRIPS,
    EARLY_RETURNS,
    LARGEST_BACKOFF,
    MOST_EARLIER,
    UNCERTAIN_BACKOFF,
    UNCERTAIN_IN_A_ROW,
    UNKNOWN_RTT_SECONDS,
    InFlight,
    RetransmitTimeout,
    SentChunk,
)


def test_a_chunk_overtaken_by_three_on_its_queue_pair_is_lost_and_others_are_not() -> None:
    in_flight = InFlight(2)
    for position in range(8):
        in_flight.on_sent(SentChunk(position, 1, position % 2, 0.0, False))
    in_flight.on_acknowledged(6, 1.0, 0.0)
    assert in_flight.detect_lost() == [0]
    assert in_flight.bytes_in_flight == 6


def test_the_arrival_of_an_earlier_sending_overtakes_nothing() -> None:
    in_flight = InFlight(1)
    for position in range(3):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.0, False))
    in_flight.on_sent(SentChunk(9, 1, 0, 1.0, True))
    assert in_flight.on_acknowledged(9, 1.001, 0.02) is None
    assert in_flight.detect_lost() == []


def sent_again_when_overdue() -> InFlight:
    """Six chunks went, the first was overdue and went again behind them."""
    in_flight = InFlight(1)
    for position in range(6):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.001 * position, False))
    assert in_flight.detect_overdue(0.0) == [0]
    in_flight.on_sent(SentChunk(0, 1, 0, 0.05, True))
    return in_flight


def test_what_was_overdue_and_went_again_is_taken_for_the_earlier_sending_and_overtakes_nothing() -> None:
    in_flight = sent_again_when_overdue()
    # a round trip after it went again, and so no sooner than it can have come
    assert in_flight.on_acknowledged(0, 0.08, 0.02) is None, "which of the two has come nobody knows"
    assert in_flight.detect_lost() == []


def test_once_something_that_went_after_the_earlier_sending_has_come_that_one_is_lost_and_the_later_one_counts() -> (
    None
):
    in_flight = sent_again_when_overdue()
    assert in_flight.on_acknowledged(1, 0.07, 0.02) is not None
    came = in_flight.on_acknowledged(0, 0.08, 0.02)
    assert came is not None
    assert came.sent_at == 0.05
    assert in_flight.detect_lost() == [2, 3]


def test_of_one_report_what_took_longer_than_one_takes_since_it_went_again_may_be_the_earlier_sending() -> None:
    usual, longer = sent_again_when_overdue(), sent_again_when_overdue()
    for in_flight, now in ((usual, 0.08), (longer, 0.12)):
        # the newest of the report, which went behind the earlier sending
        assert in_flight.on_acknowledged(1, now, 0.02) is not None
    assert usual.on_acknowledged(0, 0.08, 0.02) is not None, "most of a burst was lost"
    assert usual.detect_lost() == [2, 3]
    assert longer.on_acknowledged(0, 0.12, 0.02) is None, "all of it is late, and comes in its order"
    assert longer.detect_lost() == []
    assert longer.on_acknowledged(2, 0.13, 0.02) is not None


def late(in_time: bool) -> InFlight:
    """Chunks of which one has come sooner than it can have gone again; perhaps another one has come in time since."""
    in_flight = InFlight(1)
    for position in range(6):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.001 * position, False))
    assert in_flight.detect_overdue(0.002) == [0, 1, 2]
    for position in range(3):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.05 + 0.001 * position, True))
    assert in_flight.on_acknowledged(0, 0.055, 0.02) is None
    assert in_flight.detect_lost() == []
    if in_time:
        assert in_flight.on_acknowledged(3, 0.056, 0.02) is not None
    return in_flight


def test_while_earlier_sendings_come_late_none_of_a_report_tells_of_the_others_that_they_are_lost() -> None:
    for in_flight, is_known in ((late(False), False), (late(True), True)):
        assert in_flight.on_acknowledged(2, 0.075, 0.02) is None or is_known
        came = in_flight.on_acknowledged(1, 0.075, 0.02)
        assert (came is not None) is is_known


def thrice_by_two_pairs() -> InFlight:
    """The first chunk went by the first queue pair, by the second and by the first again, overdue each time."""
    in_flight = InFlight(2)
    for position, pair in ((0, 0), (1, 0), (2, 1)):
        in_flight.on_sent(SentChunk(position, 1, pair, 0.001 * position, False))
    for pair, at in ((1, 0.05), (0, 0.1)):
        assert 0 in in_flight.detect_overdue(at - 0.01)
        in_flight.on_sent(SentChunk(0, 1, pair, at, True))
    return in_flight


def test_once_the_first_of_three_sendings_is_known_to_be_lost_the_second_may_have_come_still() -> None:
    in_flight = thrice_by_two_pairs()
    # it went behind the first sending, by the same queue pair
    assert in_flight.on_acknowledged(1, 0.11, 0.02) is not None
    assert in_flight.detect_lost() == []
    assert in_flight.on_acknowledged(0, 0.18, 0.02) is None, "which of the other two has come nobody knows"
    known = thrice_by_two_pairs()
    known.on_sent(SentChunk(3, 1, 1, 0.11, False))
    for position in (1, 3):
        assert known.on_acknowledged(position, 0.15, 0.02) is not None
    assert known.detect_lost() == []
    came = known.on_acknowledged(0, 0.18, 0.02)
    assert came is not None, "once both are, it was the third"
    assert came.sent_at == 0.1


def test_of_a_chunk_that_goes_again_and_again_a_few_sendings_are_remembered_and_the_first_of_them() -> None:
    in_flight = InFlight(1)
    for number in range(10 * MOST_EARLIER):
        sent = SentChunk(0, 1, 0, float(number), number > 0)
        in_flight.on_sent(sent)
        assert in_flight.detect_overdue(float(number)) == [0]
    in_flight.on_sent(last := SentChunk(0, 1, 0, 1000.0, True))
    assert len(last.earlier) == MOST_EARLIER
    assert (last.earlier[0].sent_at, last.earlier[-1]) == (0.0, sent)
    assert not any(each.earlier for each in last.earlier), "and those before them by none of these"


def test_what_was_overdue_and_comes_before_it_goes_again_tells_how_long_it_took() -> None:
    in_flight = InFlight(1)
    in_flight.on_sent(SentChunk(0, 1, 0, 0.01, False))
    assert in_flight.detect_overdue(0.02) == [0]
    came = in_flight.on_acknowledged(0, 0.08, 0.02)
    assert came is not None
    assert came.sent_at == 0.01
    assert in_flight.on_acknowledged(0, 0.09, 0.02) is None, "once"


def test_of_a_chunk_that_went_three_times_the_first_that_may_have_come_is_remembered() -> None:
    in_flight = sent_again_when_overdue()
    assert 0 in in_flight.detect_overdue(0.05)
    in_flight.on_sent(SentChunk(0, 1, 0, 0.1, True))
    assert in_flight.on_acknowledged(0, 0.15, 0.02) is None
    # of the first one it was, what went behind that is neither lost nor overtaken
    in_flight.on_sent(SentChunk(9, 1, 0, 0.16, False))
    assert in_flight.on_acknowledged(9, 0.2, 0.02) is not None


def test_chunks_sent_no_later_than_the_given_moment_are_overdue_on_every_queue_pair() -> None:
    in_flight = InFlight(2)
    for position in range(4):
        in_flight.on_sent(SentChunk(position, 10, position % 2, 0.1 * position, False))
    in_flight.on_acknowledged(0, 0.5, 0.0)
    assert in_flight.oldest_sent_at == 0.1
    assert sorted(in_flight.detect_overdue(0.2)) == [1, 2]
    assert (len(in_flight), in_flight.bytes_in_flight) == (1, 10)
    assert list(in_flight.clear()) == [3]
    assert in_flight.oldest_sent_at is None


def test_the_time_out_doubles_once_for_all_that_went_out_together_and_is_bounded() -> None:
    timeout = RetransmitTimeout()
    base = timeout.base_seconds(0.02)
    timeout.on_timeout(1.0, 0.02)
    timeout.on_timeout(1.0 + base, 0.02)
    assert timeout.seconds(0.02) == 2 * base, "what is given up now went out with what was before"
    now = 1.0
    for _ in range(10):
        now += timeout.seconds(0.02)
        timeout.on_timeout(now, 0.02)
    assert timeout.seconds(0.02) == LARGEST_BACKOFF * base
    timeout.on_progress(now)
    assert timeout.deadline(now, 0.02) == now + base


def test_of_what_the_time_out_backed_off_to_some_stays_while_nobody_knows_which_sending_has_come() -> None:
    timeout = RetransmitTimeout()
    base, now = timeout.base_seconds(0.02), 1.0
    for _ in range(5):
        now += timeout.seconds(0.02)
        timeout.on_timeout(now, 0.02)
    timeout.on_progress(now, certain=False)
    assert timeout.seconds(0.02) == UNCERTAIN_BACKOFF * base
    timeout.on_progress(now)
    assert timeout.seconds(0.02) == base
    timeout.on_progress(now, certain=False)
    assert timeout.seconds(0.02) == base


def test_a_chunk_is_overdue_at_its_deadline_and_not_before() -> None:
    timeout = RetransmitTimeout()
    deadline = timeout.deadline(1.0, 0.0)
    assert timeout.is_over(1.0, 0.0, deadline)
    assert not timeout.is_over(1.0, 0.0, deadline - 1e-3)
    assert deadline == 1.0 + timeout.base_seconds(UNKNOWN_RTT_SECONDS), "an unknown round trip counts as a long one"


def test_what_still_waits_on_this_host_is_not_overdue() -> None:
    in_flight = InFlight(1)
    sent = SentChunk(0, 10, 0, 1.0, False, left_at=math.inf)
    in_flight.on_sent(sent)
    assert in_flight.oldest_sent_at is None
    assert in_flight.detect_overdue(100.0) == []
    sent.left_at = 50.0
    assert in_flight.oldest_sent_at == 50.0
    assert in_flight.detect_overdue(49.0) == []
    assert in_flight.detect_overdue(50.0) == [0]


def all_again(count: int) -> InFlight:
    """So many chunks went a millisecond apart, were overdue after 10 ms and went again."""
    in_flight = InFlight(1)
    for position in range(count):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.001 * position, False))
    assert in_flight.detect_overdue(1.0) == list(range(count))
    for position in range(count):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.01 + 0.001 * position, True))
    return in_flight


def test_many_that_may_all_be_earlier_sendings_tell_how_long_these_took() -> None:
    in_flight = all_again(UNCERTAIN_IN_A_ROW)
    for position in range(UNCERTAIN_IN_A_ROW):
        assert in_flight.spurious_trip is None
        # none sooner than a round trip after it went again
        in_flight.on_acknowledged(position, 0.05 + 0.001 * position, 0.002)
    assert in_flight.spurious_trip == pytest.approx(0.05)


def test_a_few_at_the_end_may_all_have_been_lost_and_tell_nothing() -> None:
    in_flight = all_again(UNCERTAIN_IN_A_ROW - 1)
    for position in range(UNCERTAIN_IN_A_ROW - 1):
        in_flight.on_acknowledged(position, 0.05 + 0.001 * position, 0.002)
    assert in_flight.spurious_trip is None


def test_one_that_comes_sooner_than_it_can_have_gone_again_tells_it_alone() -> None:
    in_flight = all_again(3)
    in_flight.on_acknowledged(0, 0.011, 0.002)
    assert in_flight.spurious_trip == pytest.approx(0.011)


def test_what_comes_a_little_sooner_than_the_least_round_trip_that_is_known_may_be_what_went_again() -> None:
    in_flight = all_again(3)
    in_flight.on_acknowledged(0, 0.0298, 0.02)
    assert in_flight.spurious_trip is None
    # a loaded host, or a queue, made the least that is known longer than the path, but not by so much
    in_flight.on_acknowledged(1, 0.0255, 0.02)
    assert in_flight.spurious_trip == pytest.approx(0.0245)


def again_long_after(count: int, gap: float = 4.0) -> InFlight:
    """So many chunks went at once, were overdue, and went again so many seconds later, a millisecond apart."""
    in_flight = InFlight(1)
    for position in range(count):
        in_flight.on_sent(SentChunk(position, 1, 0, 0.0, False))
    assert in_flight.detect_overdue(1.0) == list(range(count))
    for position in range(count):
        in_flight.on_sent(SentChunk(position, 1, 0, gap + 0.001 * position, True))
    return in_flight


def test_what_comes_a_usual_round_trip_after_it_went_again_is_no_sending_of_seconds_ago() -> None:
    in_flight = again_long_after(4)
    came = in_flight.on_acknowledged(0, 4.022, 0.02)
    assert came is not None
    assert came.sent_at == 4.0
    assert in_flight.on_acknowledged(3, 4.025, 0.02) is not None
    assert in_flight.detect_lost() == [], "three have to follow"
    overtaken = again_long_after(4)
    overtaken.on_acknowledged(3, 4.025, 0.02)
    assert overtaken.detect_lost() == [0]


def test_what_comes_much_later_or_of_a_path_that_nobody_knows_may_be_the_earlier_sending() -> None:
    # as long as a path takes that has become a hundred times as long
    assert again_long_after(4).on_acknowledged(0, 4.3, 0.02) is None
    assert again_long_after(4).on_acknowledged(0, 4.022, 0.0) is None
    # or one that has become as long as that since a moment ago
    assert again_long_after(4, gap=0.06).on_acknowledged(0, 0.082, 0.02) is None


def test_many_that_come_too_soon_long_after_they_had_gone_before_say_that_the_path_is_shorter() -> None:
    known = 0.074
    in_flight = again_long_after(2 * EARLY_RETURNS)
    for position in range(2 * EARLY_RETURNS):
        assert in_flight.shorter_trip is None
        # at several moments: 25 ms after each went again
        now = 4.025 + 0.001 * position + (EARLY_RETURN_TRIPS * known if position == 2 * EARLY_RETURNS - 1 else 0.0)
        if position == 2 * EARLY_RETURNS - 1:
            in_flight.on_sent(SentChunk(99, 1, 0, now - 0.025, True))
            in_flight.on_acknowledged(99, now, known)
        else:
            in_flight.on_acknowledged(position, now, known)
    assert in_flight.shorter_trip == pytest.approx(0.025)


def test_what_was_held_up_somewhere_and_comes_at_one_moment_says_nothing_of_the_path() -> None:
    in_flight = again_long_after(4 * EARLY_RETURNS)
    for position in range(4 * EARLY_RETURNS):
        in_flight.on_acknowledged(position, 4.04, 0.074)
    assert in_flight.shorter_trip is None


def test_nor_do_such_as_had_gone_a_moment_before_or_a_chunk_that_tells_of_the_round_trip() -> None:
    soon = again_long_after(EARLY_RETURNS, gap=0.1)
    for position in range(EARLY_RETURNS):
        soon.on_acknowledged(position, 0.125 + 0.03 * position, 0.074)
    assert soon.shorter_trip is None
    told = again_long_after(EARLY_RETURNS)
    for position in range(EARLY_RETURNS):
        if position == EARLY_RETURNS - 1:
            told.on_sent(SentChunk(100, 1, 0, 4.1, False))
            told.on_acknowledged(100, 4.2, 0.074)
        told.on_acknowledged(position, 4.025 + 0.001 * position, 0.074)
    assert told.shorter_trip is None


def test_nothing_is_overdue_before_what_went_again_for_nothing_had_taken_until_round_trips_are_told() -> None:
    timeout = RetransmitTimeout()
    short = timeout.seconds(0.004)
    timeout.on_spurious(0.05, 0.004)
    assert timeout.seconds(0.004) == timeout.seconds(0.05) > short
    assert timeout.seconds(0.1) == RetransmitTimeout().seconds(0.1)
    timeout.on_first_sending()
    assert timeout.seconds(0.004) == short


def test_one_that_went_again_and_came_in_far_less_says_that_the_time_out_is_long_enough() -> None:
    timeout = RetransmitTimeout()
    short = timeout.seconds(0.004)
    timeout.on_spurious(0.05, 0.004)
    timeout.on_trip(0.045)
    assert timeout.seconds(0.004) == timeout.seconds(0.05)
    timeout.on_trip(0.02)
    assert timeout.seconds(0.004) == short


def test_after_an_outage_the_time_out_is_no_longer_than_it_may_back_off_to() -> None:
    timeout = RetransmitTimeout()
    base = timeout.base_seconds(0.004)
    timeout.on_spurious(30.0, 0.004)
    assert timeout.seconds(0.004) <= 2 * LARGEST_BACKOFF * base
