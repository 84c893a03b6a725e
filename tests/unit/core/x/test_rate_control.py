"""What `fedrdma-x` makes of a queue that is not its own, and of one that is none.

More than 500 lines: all drive one controller.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math

import pytest

from fedrdma_fate.core.path import PathState, Sample
from fedrdma_fate.core.x.competition import SHARED_SECONDS
from fedrdma_fate.core.x.phases import Phase
from fedrdma_fate.core.x.rate_control import RateController

RTT = 0.02
RATE = 100e6
LATER = 1.0
"""After another transfer."""


def controller(**remembered: float) -> RateController:
    return RateController(dataclasses.replace(PathState(RATE, RTT, 0.0), **remembered))


def play(
    control: RateController, since: float, until: float, rtt: float, *, lost: int = 0, drained: float = 0.0
) -> None:
    """Reports every 2 ms: everything is delivered, but so many chunks in ten, after this round trip.

    Args:
        drained: what our draining takes off the round trip.
    """
    now = since
    while now < until:
        control.on_time(now)
        seen = rtt - (drained if control.phase is Phase.PROBE_DOWN else 0.0)
        control.on_sample(Sample(seen, min(control.rate, RATE), 10 - lost, lost, 4), now)
        now += 0.002


def settled(control: RateController) -> PathState:
    """What it found."""
    state = control.state()
    assert state is not None
    return state


def test_what_the_train_of_a_path_that_nothing_is_known_of_has_lost_is_no_rate() -> None:
    control = RateController()
    for report in range(10):
        control.on_sample(Sample(None, None, 1, 20, 4), report * 0.01)
    assert (control.phase, control.known) == (Phase.STARTUP, False)
    control.on_sample(Sample(RTT, RATE, 4, 4, 4), 0.2)
    assert control.rate == pytest.approx(0.99 * RATE)


def test_at_a_low_rate_what_a_chunk_takes_is_no_queue() -> None:
    rate, chunk = 625e3, 1024
    control = RateController(PathState(rate, RTT, 0.0))
    control.chunk_bytes = chunk
    for report in range(500):
        now = report * 0.004
        control.on_time(now)
        control.on_sample(Sample(RTT + 1.4 * chunk / rate, min(control.rate, rate), 9, 1, 1), now)
    path = settled(control)
    assert path.loss is not None
    assert path.loss > 0.05
    assert path.shared_seconds == 0


@pytest.mark.parametrize(("lost", "reduced"), [(5, False), (8, True)])
def test_of_a_round_of_few_chunks_many_may_be_lost_by_chance_but_not_nearly_all(lost: int, reduced: bool) -> None:
    control = controller(loss=0.2)
    control.on_sample(Sample(RTT, RATE, 10 - lost, lost, 1), 1.0)
    assert (control.phase is Phase.PROBE_DOWN) == reduced


@pytest.mark.parametrize(("late", "learnt"), [(0.0, True), (0.003, False), (0.03, False)])
def test_where_round_trips_vary_loss_is_of_the_path_only_where_they_show_that_there_is_no_queue(
    late: float, learnt: bool
) -> None:
    control = controller(rtt_variation=0.0006, least_mean_rtt=RTT)
    # for less than a mean of them takes
    play(control, 0.0, 0.1, RTT + late, lost=1)
    assert ((settled(control).loss or 0.0) > 0) is learnt


def play_losing(control: RateController, until: float, since_probe: tuple[float, float], rate: float = RATE) -> None:
    """Reports every 2 ms, without a queue: two of ten chunks are lost, so long after each probe has begun."""
    began, was = -math.inf, Phase.CRUISE
    for report in range(int(until / 0.002)):
        now = report * 0.002
        control.on_time(now)
        if control.phase is Phase.PROBE_UP and was is not Phase.PROBE_UP:
            began = now
        was = control.phase
        lost = 2 if since_probe[0] <= now - began < since_probe[1] else 0
        control.on_sample(Sample(RTT, min(control.rate, rate), 10 - lost, lost, 4), now)


@pytest.mark.parametrize(
    ("rate", "since_probe", "learnt"),
    [(1e9, (0.01, 0.02), False), (1e9, (0.06, 0.07), True), (RATE, (0.01, 0.02), True)],
    ids=["fast", "fast, later", "round trips would show it"],
)
def test_what_may_be_lost_for_a_probe_that_no_round_trip_shows_is_no_loss_of_the_path(
    rate: float, since_probe: tuple[float, float], learnt: bool
) -> None:
    control = RateController(PathState(rate, RTT, 0.0))
    play_losing(control, 2.0, since_probe, rate)
    assert (settled(control).loss > 0) is learnt


@pytest.mark.parametrize(("lasts", "added"), [(0.012, False), (math.inf, True)])
def test_what_the_first_probe_of_an_estimated_rate_had_no_room_for_is_not_added_to_what_arrives(
    lasts: float, added: bool
) -> None:
    rate = 1e9
    control = RateController(PathState(rate, RTT, None), proved=False)
    play_losing(control, 0.3, (RTT, RTT + lasts), rate)
    assert (control.bandwidth > 1.02 * rate) is added
    assert (settled(control).loss or 0.0) > 0


def test_a_longer_path_is_not_taken_for_a_queue() -> None:
    control = controller()
    play(control, 0.0, 1.0, RTT)
    play(control, 1.0, 2.0, 2 * RTT)
    assert control.min_rtt == 2 * RTT
    assert not control.competing
    assert control.rate >= 0.7 * RATE


def vary(control: RateController, since: float, until: float, longer: float) -> None:
    """Reports every 2 ms of round trips that vary by chance, and are longer by so much however we drain."""
    late, now = itertools.cycle((0.0012, -0.0006, 0.0006, -0.0012, 0.0)), since
    while now < until:
        control.on_time(now)
        control.on_sample(Sample(RTT + longer + next(late), min(control.rate, RATE), 10, 0, 4), now)
        now += 0.002


def test_where_round_trips_vary_by_chance_and_the_first_was_a_rare_one_those_behind_it_are_no_queue() -> None:
    control = controller()
    control.on_sample(Sample(RTT, RATE, 10, 0, 4), -0.002)
    vary(control, 0.0, 2.0, 0.009)
    assert control.min_rtt == pytest.approx(RTT + 0.0078)
    assert control.bandwidth >= 0.95 * RATE
    assert not control.competing


@pytest.mark.parametrize("shared", [0.0, SHARED_SECONDS])
def test_where_round_trips_vary_by_chance_a_queue_behind_shorter_means_is_one_whoever_keeps_it_up(
    shared: float,
) -> None:
    control = controller(rtt_variation=0.0008, least_mean_rtt=RTT, shared_seconds=shared)
    vary(control, 0.0, 0.5, 0.0)
    vary(control, 0.5, 2.0, 0.009)
    assert control.min_rtt < RTT
    assert control.rate < 0.8 * RATE


@pytest.mark.parametrize(("variation", "believed"), [(0.0008, RATE), (0.0, RATE / 4)])
def test_where_round_trips_vary_by_chance_what_came_first_makes_the_rate_no_smaller(
    variation: float, believed: float
) -> None:
    control = controller(rtt_variation=variation, least_mean_rtt=RTT if variation else 0.0)
    for since_first in (0.0, 0.004):
        control.on_time(RTT + since_first)
        control.on_sample(Sample(RTT, RATE / 4, 10, 0, 4), RTT + since_first)
    assert control.bandwidth == believed
    # and when it has gone on for as long as a rate is taken of, it is what the path gives
    control.on_sample(Sample(RTT, RATE / 2, 10, 0, 4), RTT + 0.01)
    assert control.bandwidth == RATE / 2


def test_a_rate_that_was_only_estimated_is_not_proved_before_anything_was_told() -> None:
    control = RateController(PathState(RATE, RTT, None), proved=False)
    for turn in range(100):
        control.on_time(turn * 0.001)
    assert not control.settled
    play(control, 0.1, 0.2, RTT + 0.03)
    assert control.settled


@pytest.mark.parametrize(
    ("proved", "overrated"),
    [(True, [1.005]), (True, [1.02]), (True, [1.05]), (False, [1.02]), (False, [1.004, 1.008, 1.012, 1.016])],
)
def test_the_queue_of_a_rate_that_some_samples_overrated_is_not_taken_for_that_of_others(
    proved: bool, overrated: list[float]
) -> None:
    control = RateController(PathState(RATE, RTT, 0.0), proved=proved)
    samples = iter(overrated)
    queue = now = 0.0
    # what is sent now is told of a round trip later
    told = collections.deque([0.0], maxlen=int(RTT / 0.002))
    while now < 1.0:
        control.on_time(now)
        queue = max(0.0, queue + (control.rate / RATE - 1) * 0.002)
        told.append(queue)
        seen = RATE * next(samples, min(control.rate / RATE, 1.0))
        control.on_sample(Sample(RTT + told[0], seen, 10, 0, 4), now)
        now += 0.002
        assert not control.competing
    assert settled(control).rate >= 0.97 * RATE


SLOW_RATE, SHORT_RTT = 7e6, 0.002
"""56 Mbit/s: 56 packets in 8 ms."""


def shaped(*, others: float) -> RateController:
    """Half a second of a slow path that lets more pass at once; from 0.2 s on others get a share of it, and queue."""
    control = RateController(PathState(SLOW_RATE, SHORT_RTT, 0.0))
    control.chunk_bytes = 1024
    queue = now = 0.0
    while now < 0.5:
        control.on_time(now)
        # what a probe finds that an idle shaper lets pass
        overrated = 1.045 if control.phase is Phase.PROBE_UP and not queue else 1.0
        queue = max(0.0, queue + (control.rate / SLOW_RATE - 1) * 0.002)
        seen = min(control.rate, SLOW_RATE) * overrated
        trip = SHORT_RTT + queue
        if others and now > 0.2:
            seen *= 1 - others
            trip += 0.0 if control.phase is Phase.PROBE_DOWN else 0.002
        control.on_sample(Sample(trip, seen, 10, 0, 1), now)
        now += 0.002
    return control


def test_a_queue_that_comes_of_what_a_shaper_lets_pass_at_once_is_not_taken_for_that_of_others() -> None:
    control = shaped(others=0.0)
    assert not control.competing
    assert settled(control).rate >= 0.98 * SLOW_RATE


def test_a_queue_on_such_a_path_is_of_others_where_less_is_delivered_than_the_path_gave() -> None:
    assert shaped(others=0.12).competing


@pytest.mark.parametrize(("overrated", "competing"), [(1.087, False), (1.2, True)])
def test_a_sample_may_be_too_large_by_what_a_shaper_lets_pass_and_a_packet(overrated: float, competing: bool) -> None:
    rate = 6e5
    control = RateController(PathState(rate, SHORT_RTT, 0.0, capacity=overrated * rate))
    control.chunk_bytes = 1440
    for report in range(300):
        now = report * 0.002
        control.on_time(now)
        queue = 0.004 if control.phase is Phase.PROBE_DOWN else 0.006
        control.on_sample(Sample(SHORT_RTT + queue, rate, 10, 0, 1), now)
    assert control.competing == competing


def test_the_queue_of_a_probe_shows_a_round_trip_later_and_is_its_own_where_all_of_the_path_is_ours() -> None:
    rate = 2.4e6
    control = RateController(PathState(rate, RTT, 0.0))
    control.chunk_bytes = 1440
    probed = now = 0.0
    while now < 0.5:
        control.on_time(now)
        if control.phase is Phase.PROBE_UP and not probed and now > 0.3:
            probed = now
        shows = probed and 1.4 * RTT < now - probed < 2 * RTT
        control.on_sample(Sample(RTT + 0.0035 * bool(shows), 0.98 * rate if probed else rate, 10, 0, 1), now)
        now += 0.002
    assert probed
    assert not control.competing


def test_the_queue_of_what_a_transfer_sends_at_once_is_its_own() -> None:
    short = 0.005
    control = controller(min_rtt=short)
    now = 0.0
    while now < 0.2:
        control.on_time(now)
        # drains slowly in CRUISE, and at once when we drain
        queue = 0.0 if now > 0.04 else 0.0011 - now * 0.01
        control.on_sample(Sample(short + queue, min(control.rate, RATE), 10, 0, 4), now)
        now += 0.002
        assert not control.competing
    assert settled(control).rate >= 0.95 * RATE


def test_a_queue_that_does_not_give_way_makes_us_yield_half() -> None:
    control = controller()
    play(control, 0.0, 1.0, RTT)
    play(control, 1.0, 4.0, RTT + 0.009, drained=0.003)
    assert control.competing
    assert 0.49 * RATE <= settled(control).rate <= 0.6 * RATE


def play_rounds(control: RateController, since: float, queues: list[float]) -> None:
    """A round of reports for each queue."""
    for number, queue in enumerate(queues):
        play(control, since + number * RTT, since + (number + 1) * RTT, RTT + queue)


def test_who_has_begun_to_send_is_left_half_before_a_small_buffer_is_full() -> None:
    control = controller()
    play_rounds(control, 0.0, [0.0] * 25 + [0.0004, 0.0009, 0.0018, 0.0025])
    assert control.competing
    assert control.rate <= 0.5 * RATE


def test_a_queue_that_is_there_for_once_costs_a_round_of_room() -> None:
    control = controller()
    play_rounds(control, 0.0, [0.0] * 25 + [0.0015])
    assert control.rate < 0.8 * RATE
    play_rounds(control, 26 * RTT, [0.0015, 0.0, 0.0])
    assert not control.competing
    assert settled(control).rate >= 0.99 * RATE


def test_a_queue_of_others_that_goes_before_we_drain_leaves_no_longer_path() -> None:
    control = controller(rate=RATE / 2, capacity=RATE, shared_seconds=SHARED_SECONDS)
    play(control, 0.0, 0.11, RTT + 0.002)
    play(control, 0.11, 0.4, RTT)
    assert control.competing
    assert control.rate <= 0.51 * RATE


def test_the_next_transfer_neither_begins_at_the_whole_rate_nor_halves_its_share() -> None:
    control = controller(rate=RATE / 2, capacity=RATE, shared_seconds=SHARED_SECONDS)
    assert control.rate <= 0.5 * RATE
    play(control, 0.0, 3.0, RTT + 0.009, drained=0.003)
    assert control.competing
    assert settled(control).capacity == RATE
    assert settled(control).rate >= 0.49 * RATE


def test_rounds_of_loss_beside_a_full_queue_make_us_yield_below_the_fair_share() -> None:
    control = controller(capacity=RATE, shared_seconds=SHARED_SECONDS)
    play(control, 0.0, 2.0, RTT + 0.004, lost=2)
    assert settled(control).rate < 0.49 * RATE
    assert control.loss == 0.0, "what a full buffer drops says nothing about the path"


def test_random_loss_without_a_queue_does_not() -> None:
    control = controller()
    play(control, 0.0, 2.0, RTT, lost=2)
    assert settled(control).rate >= 0.95 * RATE
    assert control.loss > 0.0
    assert not control.competing


@pytest.mark.parametrize("counts_packets", [False, True])
def test_lost_chunks_of_which_the_packets_that_came_count_do_not_make_the_path_look_faster(
    counts_packets: bool,
) -> None:
    """Chunks of four packets, one in a hundred of which is lost."""
    control = controller(loss=0.01)
    delivered = RATE * (0.99 if counts_packets else 0.96)
    for report in range(2000):
        now = report * 0.002
        control.on_time(now)
        lost = int(report % 5 == 0) * 2
        rate = min(control.rate, delivered)
        control.on_sample(Sample(RTT, rate, 10 - lost, lost, 4, counts_packets), now)
    assert RATE * 0.97 < settled(control).rate < RATE * 1.0001


def test_a_remembered_round_trip_outlives_the_first_sample_whatever_the_clock_says() -> None:
    control = controller()
    play(control, 1000.0, 1000.1, RTT + 0.002)
    assert control.min_rtt == RTT


def test_what_chunks_tell_of_a_policer_is_not_believed_where_packets_count() -> None:
    control, now = controller(), 0.0
    control.chunk_bytes = 64 * 1024
    while settled(control).rate < 1.1 * RATE:
        control.on_time(now)
        control.on_sample(Sample(RTT, control.rate, 10, 0, 4, True), now)
        now += 0.002
    until = now + 4 * RTT
    while now < until:
        control.on_time(now)
        control.on_sample(Sample(RTT, 0.98 * RATE, 4, 6, 4, True), now)
        now += 0.002
    assert settled(control).policed_seconds > 0
    assert settled(control).rate >= 0.97 * RATE


def test_rounds_that_lose_much_and_tell_no_round_trip_are_overload() -> None:
    control = controller()
    now = 0.0
    while now < 0.3:
        control.on_time(now)
        # what comes had gone again, so nobody knows how long it took
        control.on_sample(Sample(None, None, 8, 2, 4), now)
        now += 0.002
    assert settled(control).rate <= 0.8 * RATE


def raised_by_a_tenth() -> tuple[RateController, float]:
    control, now = controller(), 0.0
    control.chunk_bytes = 16 * 1024
    while settled(control).rate < 1.1 * RATE:
        control.on_time(now)
        control.on_sample(Sample(RTT, 1.1 * RATE, 10, 0, 4), now)
        now += 0.002
    return control, now


def test_a_rate_that_has_just_risen_does_not_last_where_many_chunks_are_overdue_and_none_was_queued() -> None:
    control, now = raised_by_a_tenth()
    control.on_overdue(30, now + RTT)
    assert settled(control).rate <= RATE
    assert settled(control).policed_seconds > 0


@pytest.mark.parametrize(
    ("chunks", "queue", "counts_packets"),
    [(7, 0.0, False), (30, 0.02, False), (30, 0.0, True)],
    ids=["few", "queued", "packets count"],
)
def test_it_lasts_where_few_are_overdue_the_last_were_queued_or_packets_count(
    chunks: int, queue: float, counts_packets: bool
) -> None:
    control, now = raised_by_a_tenth()
    control.on_sample(Sample(RTT + queue, None, 1, 0, 4, counts_packets), now)
    rate = settled(control).rate
    control.on_overdue(chunks, now + RTT)
    assert settled(control).rate == rate


def lose_for(control: RateController, since: float, rounds: int, lost: int, queue: float) -> float:
    """So many of ten chunks in each report, for so many round trips; when they are over."""
    now = since
    while now < since + rounds * RTT:
        control.on_time(now)
        control.on_sample(Sample(RTT + queue, RATE, 10 - lost, lost, 4), now)
        now += 0.002
    return now


@pytest.mark.parametrize("full", [False, True])
def test_what_is_lost_without_a_queue_soon_after_a_full_buffer_has_lost_something_is_no_policers(full: bool) -> None:
    control, now = raised_by_a_tenth()
    now = lose_for(control, now, 1, lost=1, queue=0.004 if full else 0.0)
    now = lose_for(control, now, 4, lost=4, queue=0.0)
    assert (settled(control).policed_seconds > 0) is not full


@pytest.mark.parametrize(("queue", "is_small"), [(0.004, True), (0.03, False)])
def test_who_overruns_a_small_buffer_while_we_send_less_than_we_may_is_a_competitor_and_in_a_large_one_room_is_left(
    queue: float, is_small: bool
) -> None:
    control, now = raised_by_a_tenth()
    control._competition.capacity = 1.5 * RATE
    lose_for(control, now, 2, lost=4, queue=queue)
    assert control._competition.is_recent is is_small


@pytest.mark.parametrize("full", [False, True])
def test_nor_are_chunks_that_are_overdue_then(full: bool) -> None:
    control, now = raised_by_a_tenth()
    now = lose_for(control, now, 1, lost=1 if full else 0, queue=0.004 if full else 0.0)
    now = lose_for(control, now, 1, lost=0, queue=0.0)
    control.on_overdue(30, now)
    assert (settled(control).policed_seconds > 0) is not full


def test_a_queue_before_any_rate_was_seen_to_arrive_says_nothing_of_the_rate() -> None:
    control = controller()
    control.on_time(0.0)
    control.on_sample(Sample(RTT + 0.01, None, 1, 0, 4), RTT)
    assert (control.phase, control.rate) == (Phase.CRUISE, pytest.approx(0.99 * RATE))
    control.on_sample(Sample(RTT + 0.012, RATE / 2, 10, 0, 4), RTT + 0.002)
    assert settled(control).rate == pytest.approx(RATE / 2)


def test_a_transfer_begins_at_what_the_path_lately_gave_and_goes_on_at_what_that_finds() -> None:
    control = controller(recent_rate=3 * RATE, held_bytes=1e6)
    control.on_time(LATER)
    assert (control.phase, control.rate) == (Phase.PROBE_UP, pytest.approx(3 * RATE))
    control.on_time(LATER + RTT)
    assert control.rate == pytest.approx(Phase.PROBE_DOWN.pacing_gain * RATE), "what was queued drains"
    play(control, LATER + RTT, LATER + 2 * RTT, RTT)
    control.on_sample(Sample(RTT, 3 * RATE, 10, 0, 4), LATER + 2 * RTT)
    found = settled(control)
    assert (found.rate, found.recent_rate) == (pytest.approx(3 * RATE), 0.0)


@pytest.mark.parametrize(
    "remembered",
    [
        pytest.param({"capacity": 3 * RATE, "shared_seconds": SHARED_SECONDS}, id="others are there"),
        pytest.param({"policed_seconds": 5.0}, id="a policer is there"),
        pytest.param({"held_bytes": 0.0}, id="nothing was queued"),
        pytest.param({"left_at": LATER - RTT}, id="the last one was just now"),
    ],
)
def test_not_so_where_the_rate_is_fresh_or_others_a_policer_or_no_buffer_would_have_to_bear_it(
    remembered: dict[str, float],
) -> None:
    control = controller(**({"recent_rate": 3 * RATE, "held_bytes": 1e6} | remembered))
    control.on_time(LATER)
    assert control.phase is Phase.CRUISE
    assert settled(control).recent_rate == 3 * RATE


def let_send_more(control: RateController, path_rate: float, since: float, until: float) -> None:
    """As `play` does, on a path that carries so much."""
    now = since
    while now < until:
        control.on_time(now)
        control.on_sample(Sample(RTT, min(control.rate, path_rate), 10, 0, 4), now)
        now += 0.002


@pytest.mark.parametrize(("most", "found"), [(1.5 * RATE, 1.45 * RATE), (math.inf, 3.5 * RATE)])
def test_who_was_held_to_its_share_finds_what_it_is_let_send_within_some_round_trips(most: float, found: float) -> None:
    control = controller()
    control.on_bound(1.05 * RATE)
    play(control, 0.0, LATER, RTT)
    control.on_bound(most)
    # a cycle that finds a quarter more each time would take eight round trips for each
    let_send_more(control, 4 * RATE, LATER, LATER + 16 * RTT)
    assert control.bandwidth >= found


@pytest.mark.parametrize("queued", [0.05, 0.0])
def test_to_be_let_send_more_makes_no_room_in_a_buffer_that_others_keep_full(queued: float) -> None:
    control = controller(capacity=2 * RATE)
    control.on_bound(RATE)
    now = 0.0
    while now < 0.4:
        control.on_time(now)
        # half of the chunks of every eighth report are lost in the full buffer
        lost = 5 * (int(now / 0.002) % 8 == 0)
        control.on_sample(Sample(RTT + 0.05, min(control.rate, RATE), 10 - lost, lost, 4), now)
        now += 0.002
    control.on_bound(4 * RATE)
    control.on_sample(Sample(RTT + queued, RATE, 10, 0, 4), now)
    control.on_time(now)
    assert (control.phase is Phase.PROBE_UP and control.rate > 1.3 * control.bandwidth) == (not queued)


def test_where_the_path_carries_no_more_the_rate_stays_and_is_proved_again() -> None:
    control = controller()
    control.on_bound(1.05 * RATE)
    play(control, 0.0, LATER, RTT)
    control.on_bound(math.inf)
    let_send_more(control, RATE, LATER, LATER + 10 * RTT)
    assert control.bandwidth == pytest.approx(RATE)
    assert control.settled


def test_who_could_not_probe_for_its_share_has_nothing_to_drain() -> None:
    control = controller()
    control.on_bound(RATE)
    least, now = math.inf, 0.0
    while now < LATER:
        control.on_time(now)
        control.on_sample(Sample(RTT, min(control.rate, RATE), 10, 0, 4), now)
        least, now = min(least, control.rate), now + 0.002
    assert least >= 0.98 * RATE


def test_a_queue_of_those_that_share_the_link_leaves_a_window_for_the_share() -> None:
    control = controller()
    control.on_bound(RATE)
    play(control, 0.0, 0.1, RTT + 0.008)
    assert control.window_bytes == pytest.approx((2 * (RTT + 0.008) + 0.01) * control.bandwidth)
    # in a buffer that others keep full it does not grow with it
    play(control, 0.1, 0.2, RTT + 0.1)
    assert control.window_bytes == pytest.approx((2 * (RTT + 0.01) + 0.01) * control.bandwidth)


def test_the_queue_of_competitors_does_not_make_the_window_too_small_for_our_part() -> None:
    control = controller(capacity=RATE, shared_seconds=SHARED_SECONDS)
    control.on_time(0.0)
    queued = 10 * RTT
    play(control, 0.0, 0.1, queued)
    assert control.window_bytes >= control.bandwidth * queued
    assert control.bandwidth >= 0.5 * RATE


def test_who_has_little_of_a_slow_link_keeps_it_beside_a_queue_that_never_goes_and_gets_more() -> None:
    """What is delivered is what the window lets through, and each lower rate would make a smaller one."""
    least, queued, chunk, rate = 0.004, 0.044, 1442, 0.3e6
    control = RateController(PathState(rate, least, 0.0, capacity=2.3e6))
    control.chunk_bytes = chunk
    now = 0.0
    while now < 4.0:
        control.on_time(now)
        delivered = min(control.rate, max(control.window_bytes, 2 * chunk) / queued)
        control.on_sample(Sample(queued, delivered, 1, 0, 1), now)
        now += chunk / delivered
    assert control.bandwidth > 2 * rate


def test_a_queue_where_there_are_none_does_not_open_it() -> None:
    control = controller()
    control.on_time(0.0)
    alone = control.window_bytes
    control.on_sample(Sample(10 * RTT, RATE, 10, 0, 4), 0.002)
    assert control.window_bytes <= alone
