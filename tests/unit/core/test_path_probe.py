"""A train of datagrams tells the rate of a path, and whatever may befall it does no harm.

More than 500 lines: all that a train may be, and how it is answered, is told by the same two halves.
"""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.path_probe import (
    ANSWER_SECONDS,
    FAST_RATE,
    JITTERED_PADDING_BYTES,
    LONG_PADDING_BYTES,
    MOST_TRAINS,
    MOST_UNANSWERED_TRAINS,
    QUIET_SECONDS,
    TRAIN_DATAGRAMS,
    TRAINS,
    ProbedSide,
    ProbingSide,
    dispersion_rate,
    fastest_rate,
    least_rate,
)
from fedrdma_fate.core.x.estimators import MOST_RATE
from fedrdma_fate.wire.datagrams import (
    DATAGRAM_BYTES,
    PADDED_DATAGRAM_BYTES,
    SEAL_BYTES,
    PathProbe,
    PathProbeAnswer,
    TrainWanted,
    decode_datagram,
)

SPACING_NS = 3300
PADDING = bytes(DATAGRAM_BYTES - 60)


def evenly(count: int, at_once: int = 1) -> list[tuple[int, int]]:
    return [(at_once, moment * SPACING_NS * at_once) for moment in range(count // at_once)]


def probe(train: int = 1, count: int = TRAIN_DATAGRAMS) -> PathProbe:
    return PathProbe(train, count, PADDING)


@pytest.mark.parametrize("at_once", [1, 4, 8])
def test_the_spacing_is_the_rate_also_where_arrivals_are_seen_in_groups(at_once: int) -> None:
    assert dispersion_rate(evenly(64, at_once), 4096) == pytest.approx(4096 / (SPACING_NS * 1e-9))


def test_what_a_token_bucket_lets_pass_at_first_does_not_count() -> None:
    arrivals = [(16, 0), *((1, (moment + 1) * SPACING_NS) for moment in range(48))]
    assert dispersion_rate(arrivals, 4096) == pytest.approx(4096 / (SPACING_NS * 1e-9))


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param([], id="nothing"),
        pytest.param([(64, 0)], id="all at once"),
        pytest.param([(32, 0), (16, 9), (16, 20)], id="in three groups"),
        pytest.param([(1, 0)] * 64, id="no time passes"),
        pytest.param([(1, -moment) for moment in range(64)], id="time runs backwards"),
        pytest.param([(-1, moment) for moment in range(64)], id="fewer than none"),
        pytest.param([(1, 0), (0, 1), (0, 2), (0, 3), (0, 4)], id="none"),
    ],
)
def test_arrivals_that_tell_no_rate_tell_none(arrivals: list[tuple[int, int]]) -> None:
    assert dispersion_rate(arrivals, 4096) is None


def test_a_probe_is_as_long_as_a_datagram_may_be() -> None:
    train = ProbingSide().start(0.0)
    found = decode_datagram(train.datagram)
    assert isinstance(found, PathProbe)
    assert (len(train.datagram) + SEAL_BYTES, found.train, found.count) == (DATAGRAM_BYTES, 1, TRAIN_DATAGRAMS)
    assert train.padding == 0


def test_a_train_that_arrives_is_answered_with_its_last_and_tells_rate_and_round_trip() -> None:
    probing, probed = ProbingSide(), ProbedSide()
    probing.start(5.0)
    at = [100.0 + 1e-5 * number for number in range(TRAIN_DATAGRAMS)]
    answers = [probed.on_probe(probe(), moment) for moment in at]
    assert answers[:-1] == [None] * (TRAIN_DATAGRAMS - 1)
    answer = answers[-1]
    assert answer is not None
    assert probed.timer() is None
    found = probing.on_answer(answer, 5.0 + 0.02 + 1e-5 * (TRAIN_DATAGRAMS - 1))
    assert found is not None
    assert (found.rate, found.min_rtt) == (pytest.approx(4096e5, rel=1e-3), pytest.approx(0.02, rel=1e-3))
    assert found.loss is None
    assert probing.timer() is None
    assert probing.on_answer(answer, 6.0) is None, "told twice"


def test_a_train_whose_end_is_lost_is_answered_after_a_while() -> None:
    probed = ProbedSide()
    for number in range(20):
        assert probed.on_probe(probe(), number * 1e-5) is None
    due = probed.timer()
    assert due == pytest.approx(19e-5 + QUIET_SECONDS)
    assert probed.on_timer(due - 0.01) is None
    answer = probed.on_timer(due)
    assert answer is not None
    assert sum(count for count, _ in answer.arrivals) == 20
    assert probed.timer() is None
    assert probed.on_probe(probe(), 1.0) is None, "a straggler of a train that was answered"
    assert probed.timer() is None


def test_a_newer_train_supersedes_one_that_did_not_end() -> None:
    probed = ProbedSide()
    probed.on_probe(probe(1), 0.0)
    probed.on_probe(probe(2, count=2), 0.01)
    assert probed.on_probe(probe(1), 0.011) is None
    answer = probed.on_probe(probe(2, count=2), 0.012)
    assert answer == PathProbeAnswer(2, ((1, 0), (1, 2_000_000)), 2_000_000)


def test_a_train_that_claims_to_be_endless_is_answered_all_the_same() -> None:
    probed = ProbedSide()
    answers = [probed.on_probe(probe(count=10**9), number * 1e-6) for number in range(TRAIN_DATAGRAMS)]
    assert answers[-1] is not None


def test_a_peer_that_measures_on_and_on_is_not_answered_on_and_on() -> None:
    probed = ProbedSide()
    answers = [probed.on_probe(probe(train, count=1), train * 1e-3) for train in range(1, 1000)]
    assert sum(answer is not None for answer in answers) == MOST_TRAINS >= TRAINS
    assert probed.timer() is None


@pytest.mark.parametrize("held_ns", [0, 10])
def test_an_answer_that_no_path_can_give_tells_nothing_or_of_the_fastest_there_is(held_ns: int) -> None:
    many, fast = ProbingSide(), ProbingSide()
    many.start(0.0)
    fast.start(0.0)
    assert many.on_answer(PathProbeAnswer(1, tuple((64, moment) for moment in range(6)), held_ns), 0.02) is None
    # a long train follows what is so fast
    in_no_time = ((16, 0), *((1, moment + 1) for moment in range(48)))
    assert fast.on_answer(PathProbeAnswer(1, in_no_time, held_ns), 0.02) is None
    assert fast.on_timer(0.02) is not None
    found = fast.on_answer(PathProbeAnswer(2, in_no_time, held_ns), 0.04)
    assert found is not None
    assert found.rate == MOST_RATE


@pytest.mark.parametrize(
    ("answer", "trains_sent"),
    [
        (None, MOST_UNANSWERED_TRAINS),
        (PathProbeAnswer(1, ((64, 0),), 0), TRAINS),
        (PathProbeAnswer(9, tuple(evenly(64)), 0), MOST_UNANSWERED_TRAINS),
    ],
)
def test_without_a_useful_answer_there_are_some_trains_and_no_more(
    answer: PathProbeAnswer | None, trains_sent: int
) -> None:
    probing, now = ProbingSide(), 0.0
    assert probing.timer() is None
    trains = [probing.start(now)]
    while (due := probing.timer()) is not None:
        if answer is not None:
            assert probing.on_answer(answer, now + 0.02) is None
        assert probing.on_timer(due - 1e-3) is None
        now = due
        train = probing.on_timer(now)
        trains += [] if train is None else [train]
    assert len(trains) == len(set(trains)) == trains_sent
    assert {train.padding for train in trains} == {0}
    later = [2 ** (1 + number) for number in range(trains_sent - TRAINS)]
    assert now == pytest.approx((TRAINS + sum(later)) * ANSWER_SECONDS)


def test_an_answer_held_for_longer_than_it_took_to_come_tells_nothing() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_answer(PathProbeAnswer(1, tuple(evenly(64)), 10**9), 0.02) is None
    probing.on_timer(ANSWER_SECONDS)
    assert isinstance(probing.on_answer(PathProbeAnswer(2, tuple(evenly(64)), 0), ANSWER_SECONDS + 0.01), PathState)


def test_an_answer_that_comes_after_the_next_train_has_gone_counts_from_its_own() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_timer(ANSWER_SECONDS) is not None
    found = probing.on_answer(PathProbeAnswer(1, tuple(evenly(64)), 10**8), 0.7)
    assert found is not None
    assert found.min_rtt == pytest.approx(0.6)
    assert probing.timer() is None


def test_a_copy_of_the_answer_that_asked_for_long_datagrams_is_not_taken_for_one_to_these() -> None:
    probing = answered_fast()
    assert probing.on_answer(PathProbeAnswer(1, FAST_ARRIVALS[1].values[0], 0), 0.021) is None
    assert probing.on_timer(0.022) is not None
    assert probing.on_answer(PathProbeAnswer(1, FAST_ARRIVALS[1].values[0], 0), 0.023) is None


FAST_ARRIVALS = (
    pytest.param(((1, 0), (24, 25_000), (39, 60_000)), id="at three moments, 4.3 GB/s at least"),
    pytest.param(tuple(evenly(64, 4)[:1] + [(4, 4_000 * moment) for moment in range(1, 16)]), id="told, 4.1 GB/s"),
)


def answered_fast(now: float = 0.02) -> ProbingSide:
    """A first train arrived too fast to tell more than that."""
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_answer(PathProbeAnswer(1, ((1, 0), (24, 25_000), (39, 60_000)), 0), now) is None
    return probing


def test_a_train_seen_at_two_moments_arrived_no_slower_than_what_came_between_them() -> None:
    assert least_rate([(10, 0), (54, 1_000_000)], 4096) == pytest.approx(54 * 4096 / 1e-3)


@pytest.mark.parametrize("arrivals", [[], [(64, 0)], [(1, 5), (63, 5)], [(32, 0), (-32, 100)]])
def test_arrivals_at_one_moment_or_none_are_no_rate_at_least(arrivals: list[tuple[int, int]]) -> None:
    assert least_rate(arrivals, 4096) == 0.0


@pytest.mark.parametrize("arrivals", FAST_ARRIVALS)
def test_a_train_that_arrived_too_fast_is_followed_at_once_by_one_of_long_datagrams(
    arrivals: tuple[tuple[int, int], ...],
) -> None:
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_answer(PathProbeAnswer(1, arrivals, 0), 0.02) is None
    assert probing.timer() == 0.02
    train = probing.on_timer(0.02)
    assert train is not None
    assert train.padding == LONG_PADDING_BYTES
    assert len(train.datagram) + SEAL_BYTES + train.padding == PADDED_DATAGRAM_BYTES


def test_a_long_train_tells_the_rate_of_a_fast_path_and_that_it_loses_little() -> None:
    probing = answered_fast()
    probing.on_timer(0.02)
    arrivals = tuple((1, moment * 5_400) for moment in range(TRAIN_DATAGRAMS))
    found = probing.on_answer(PathProbeAnswer(2, arrivals, 0), 0.04)
    assert found is not None
    assert found.rate == pytest.approx(PADDED_DATAGRAM_BYTES / 5.4e-6)
    assert found.min_rtt == pytest.approx(0.02)
    assert found.loss == 1 / 1024
    assert probing.timer() is None


def test_of_a_long_train_that_lost_something_the_loss_is_not_told() -> None:
    probing = answered_fast()
    probing.on_timer(0.02)
    arrivals = tuple((1, moment * 5_400) for moment in range(TRAIN_DATAGRAMS - 1))
    found = probing.on_answer(PathProbeAnswer(2, arrivals, 0), 0.04)
    assert found is not None
    assert found.loss is None


def test_of_a_long_train_seen_at_few_moments_it_is_believed_what_it_was_at_least() -> None:
    probing = answered_fast()
    probing.on_timer(0.02)
    found = probing.on_answer(PathProbeAnswer(2, ((10, 0), (54, 400_000)), 0), 0.04)
    assert found is not None
    assert found.rate == pytest.approx(54 * PADDED_DATAGRAM_BYTES / 4e-4)


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(((64, 0),), id="all at once"),
        pytest.param(((10, 0), (54, 54 * PADDED_DATAGRAM_BYTES * 10**9 // int(FAST_RATE) + 1)), id="slower than said"),
    ],
)
def test_a_long_train_that_tells_nothing_is_repeated_and_then_given_up(arrivals: tuple[tuple[int, int], ...]) -> None:
    probing, now, sent = answered_fast(), 0.02, 1
    while (train := probing.on_timer(now)) is not None:
        sent += 1
        assert train.padding == LONG_PADDING_BYTES
        assert probing.on_answer(PathProbeAnswer(sent, arrivals, 0), now + 0.02) is None
        now += ANSWER_SECONDS
    assert sent == TRAINS
    assert probing.timer() is None


@pytest.mark.parametrize(("came", "believed"), [(TRAIN_DATAGRAMS, 1.0), (40, 1.0), (28, 28 / TRAIN_DATAGRAMS)])
def test_of_a_train_that_mostly_found_no_room_less_is_believed(came: int, believed: float) -> None:
    whole, probing = ProbingSide(), ProbingSide()
    for side in (whole, probing):
        side.start(0.0)
    fast = whole.on_answer(PathProbeAnswer(1, tuple(evenly(came)), 0), 0.02)
    assert fast is not None
    assert fast.rate == pytest.approx(believed * DATAGRAM_BYTES / SPACING_NS * 1e9, rel=0.01)


def test_on_a_slow_path_as_much_is_lost_at_random_and_all_of_the_rate_is_believed() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    slowly = tuple((1, number * 3_000_000) for number in range(28))
    found = probing.on_answer(PathProbeAnswer(1, slowly, 0), 0.1)
    assert found is not None
    assert found.rate == pytest.approx(DATAGRAM_BYTES / 0.003)


# --- trains that others go with ---


def joint(side: ProbingSide, count: int = 8, began: float = 1.0) -> int:
    """The number of a train that is on its way."""
    train = side.start_joint(began, count)
    assert train.count == count
    sent = decode_datagram(train.datagram)
    assert isinstance(sent, PathProbe)
    assert sent.count == count
    return sent.train


def test_a_train_that_others_go_with_tells_how_long_it_took_and_nothing_of_the_path_alone() -> None:
    side = ProbingSide()
    number = joint(side)
    answer = PathProbeAnswer(number, ((1, 0), (7, 1_000_000)), 3_000_000)
    assert side.on_answer(answer, 1.024) is None
    assert side.joint is not None
    assert side.joint == (1.0, pytest.approx(0.022), pytest.approx(0.001), 8, 8)
    assert side.on_answer(answer, 1.1) is None, "once"
    assert side.joint.seconds == pytest.approx(0.022)


@pytest.mark.parametrize(
    ("held_ns", "came"),
    [
        pytest.param(0, (), id="nothing came"),
        pytest.param(0, ((9, 0),), id="more than were sent"),
        pytest.param(10**18, ((8, 0),), id="held back for longer than it was away"),
        pytest.param(0, ((8, 5),), id="answered before it came"),
        pytest.param(0, ((4, 0), (4, -5)), id="came before it began"),
        pytest.param(10**15, ((1, 0), (7, 10**15)), id="spread over longer than it was away"),
    ],
)
def test_an_answer_that_cannot_be_tells_nothing(held_ns: int, came: tuple[tuple[int, int], ...]) -> None:
    side = ProbingSide()
    side.on_answer(PathProbeAnswer(joint(side), came, held_ns), 1.02)
    assert side.joint is None


@pytest.mark.parametrize(("came", "room"), [(64, 64), (40, 40), (5, 5), (1, 2)])
def test_one_that_others_go_with_is_no_longer_than_what_came_of_one_alone(came: int, room: int) -> None:
    side = ProbingSide()
    side.start(0.0)
    side.on_answer(PathProbeAnswer(1, tuple((1, number * 3_000_000) for number in range(came)), 0), 0.5)
    assert side.start_joint(1.0, 64).count == room
    assert side.start_joint(1.0, 2).count == 2


def test_what_came_of_long_ones_alone_says_nothing_of_that() -> None:
    side = ProbingSide()
    side.start(0.0)
    # so fast that long ones follow
    side.on_answer(PathProbeAnswer(1, tuple((1, number) for number in range(64)), 0), 0.02)
    assert side.on_timer(0.02) is not None
    side.on_answer(PathProbeAnswer(2, tuple((1, number * 3_000) for number in range(20)), 0), 0.04)
    assert side.start_joint(1.0, 64).count == 64


def test_the_next_such_train_forgets_the_one_before() -> None:
    side = ProbingSide()
    first = joint(side)
    joint(side, began=2.0)
    side.on_answer(PathProbeAnswer(first, ((8, 0),), 0), 2.01)
    assert side.joint is None


def wanted_train(probing: ProbingSide, wanted: TrainWanted) -> list[PathProbe]:
    train = probing.on_wanted(wanted.number, wanted.count)
    assert train is not None
    found = decode_datagram(train.datagram)
    assert isinstance(found, PathProbe)
    return [found] * train.count


def test_how_a_train_came_that_was_wanted_is_told_by_the_clock_of_who_wanted_it() -> None:
    probing, probed = ProbingSide(), ProbedSide()
    for number, each in enumerate(wanted_train(probing, probed.want(10.0, 8))):
        assert probed.wanted is None
        probed.on_probe(each, 10.5 + number * 1e-3)
    assert probed.wanted == pytest.approx((10.0, 0.507, 0.007, 8, 8))
    assert probed.rate is None, "it says nothing of this way alone"


def test_of_a_wanted_train_whose_end_is_lost_is_known_what_came() -> None:
    probing, probed = ProbingSide(), ProbedSide()
    for number, each in enumerate(wanted_train(probing, probed.want(10.0, 8))[:5]):
        probed.on_probe(each, 10.5 + number * 1e-3)
    due = probed.timer()
    assert due is not None
    probed.on_timer(due)
    assert probed.wanted == pytest.approx((10.0, 0.504, 0.004, 5, 8))


def test_a_train_of_short_datagrams_or_longer_than_was_wanted_is_none_that_was() -> None:
    short, longer = ProbedSide(), ProbedSide()
    for side, padding, count in ((short, bytes(100), 4), (longer, PADDING, 9)):
        side.want(10.0, 8)
        for number in range(count):
            side.on_probe(PathProbe(1, count, padding), 10.5 + number * 1e-3)
        assert side.wanted is None


def test_a_train_that_has_begun_before_another_was_wanted_is_not_that_one() -> None:
    probing, probed = ProbingSide(), ProbedSide()
    first = wanted_train(probing, probed.want(10.0, 8))
    for each in first[:4]:
        probed.on_probe(each, 10.5)
    second = wanted_train(probing, probed.want(10.6, 8))
    for each in first[4:]:
        probed.on_probe(each, 10.61)
    assert probed.wanted is None
    for each in second:
        probed.on_probe(each, 10.7)
    assert probed.wanted == pytest.approx((10.6, 0.1, 0.0, 8, 8))


def test_a_datagram_of_a_train_of_none_is_of_no_train() -> None:
    probed = ProbedSide()
    probed.want(10.0, 8)
    assert probed.on_probe(PathProbe(1, 0, PADDING), 10.5) is None
    assert probed.wanted is None
    assert probed.timer() is None


def test_short_datagrams_are_of_no_train_and_make_nothing_look_faster() -> None:
    short, mixed = ProbedSide(), ProbedSide()
    for number in range(TRAIN_DATAGRAMS):
        assert short.on_probe(PathProbe(1, TRAIN_DATAGRAMS, b""), number * 1e-6) is None
        mixed.on_probe(probe() if number % 8 == 0 else PathProbe(1, TRAIN_DATAGRAMS, b""), number * 1e-6)
    assert short.rate is None
    due = mixed.timer()
    assert due is not None
    mixed.on_timer(due)
    assert mixed.rate == pytest.approx(4096 / 8e-6)


def test_a_train_that_goes_alone_tells_the_rate_also_while_one_is_wanted() -> None:
    probing, probed = ProbingSide(), ProbedSide()
    probed.want(10.0, 8)
    train = decode_datagram(probing.start(10.0).datagram)
    assert isinstance(train, PathProbe)
    for number in range(TRAIN_DATAGRAMS):
        probed.on_probe(train, 10.5 + number * 1e-5)
    assert probed.rate == pytest.approx(4096 / 1e-5)
    assert probed.wanted is None


def test_a_peer_is_sent_each_train_once_and_no_more_than_so_many_on_a_path() -> None:
    probing = ProbingSide()
    sent = [probing.on_wanted(number // 2, 1 << 40) for number in range(8 * MOST_TRAINS)]
    trains = [train for train in sent if train is not None]
    assert len(trains) == MOST_TRAINS
    assert {train.count for train in trains} == {TRAIN_DATAGRAMS}
    nothing = ProbingSide().on_wanted(1, 0)
    assert nothing is not None
    assert nothing.count == 1


def held_up(spacing_ns: int = SPACING_NS, held_ns: int = 2_000_000, before: int = 32) -> tuple[tuple[int, int], ...]:
    """A train that came evenly, but that all behind some of it was held up."""
    return tuple((1, number * spacing_ns + (held_ns if number >= before else 0)) for number in range(TRAIN_DATAGRAMS))


def test_the_fastest_half_of_a_train_tells_what_was_not_held_up_by_chance() -> None:
    path = 4096 / (SPACING_NS * 1e-9)
    assert dispersion_rate(held_up(), 4096) == pytest.approx(path * 0.072, rel=0.05)
    assert fastest_rate(held_up(), 4096) == pytest.approx(path, rel=0.05)
    assert fastest_rate(evenly(64), 4096) == pytest.approx(path, rel=0.05)


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param([], id="nothing"),
        pytest.param([(1, 0)] * 64, id="no time passes"),
        pytest.param([(1, -moment) for moment in range(64)], id="time runs backwards"),
        pytest.param([(16, 0), (16, 0), (16, 9), (16, 20)], id="seen at three moments"),
        pytest.param([(16, 0), (2, 1), (44, 2), (1, 9_000), (1, 9_900)], id="by whoever looks"),
    ],
)
def test_no_half_of_a_train_is_fast_that_was_seen_at_few_moments(arrivals: list[tuple[int, int]]) -> None:
    assert fastest_rate(arrivals, 4096) <= 4096 * 48 / 9e-6


def test_a_train_that_was_held_up_counts_and_is_followed_at_once_by_one_that_takes_four_times_as_long() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    first = probing.on_answer(PathProbeAnswer(1, held_up(), 3_000_000), 0.023)
    assert first is not None
    assert first.rate == pytest.approx(dispersion_rate(held_up(), DATAGRAM_BYTES))
    assert first.rtt_variation == pytest.approx(0.4 * 0.002, rel=0.05)
    train = probing.on_timer(0.023)
    assert train is not None
    assert train.padding == JITTERED_PADDING_BYTES
    found = probing.on_answer(PathProbeAnswer(2, held_up(4 * SPACING_NS, 100_000), 3_000_000), 0.05)
    assert found is not None
    assert found.rate == pytest.approx(4096 / (SPACING_NS * 1e-9), rel=0.25)
    assert (found.rtt_variation, found.min_rtt) == (first.rtt_variation, pytest.approx(0.02))
    assert found.loss is None
    assert probing.timer() is None


def test_the_longer_train_tells_no_less_than_the_first_one_did() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    first = probing.on_answer(PathProbeAnswer(1, held_up(), 3_000_000), 0.023)
    probing.on_timer(0.023)
    slower = probing.on_answer(PathProbeAnswer(2, held_up(200 * SPACING_NS, 0), 0), 0.1)
    assert first is not None
    assert slower is not None
    assert slower.rate == first.rate


def test_of_longer_trains_that_are_not_answered_there_are_no_more_than_of_others() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_answer(PathProbeAnswer(1, held_up(), 3_000_000), 0.023) is not None
    trains = 1
    while (due := probing.timer()) is not None:
        trains += probing.on_timer(due) is not None
    assert trains == TRAINS


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(tuple(evenly(64)), id="evenly"),
        pytest.param(held_up(held_ns=20_000), id="hardly held up"),
        pytest.param(held_up(40 * SPACING_NS, 9_000_000), id="a slow path"),
    ],
)
def test_a_train_that_was_hardly_held_up_or_of_a_slow_path_is_followed_by_none(
    arrivals: tuple[tuple[int, int], ...],
) -> None:
    probing = ProbingSide()
    probing.start(0.0)
    found = probing.on_answer(PathProbeAnswer(1, arrivals, 0), 0.023)
    assert found is not None
    assert found.rtt_variation == 0.0
    assert probing.timer() is None


def test_a_peer_that_says_it_was_held_up_for_longer_than_a_round_trip_is_believed_that_much() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    found = probing.on_answer(PathProbeAnswer(1, held_up(held_ns=10**15), 0), 0.02)
    assert found is not None
    assert found.rtt_variation == pytest.approx(0.4 * 0.02)


def test_who_has_seen_a_train_held_up_does_not_take_the_longer_one_for_a_slower_path() -> None:
    probed = ProbedSide()
    for _, moment in held_up():
        probed.on_probe(probe(1), moment * 1e-9)
    rate = probed.rate
    for _, moment in held_up(4 * SPACING_NS, 0):
        probed.on_probe(probe(2), 1 + moment * 1e-9)
    assert probed.rate == rate == pytest.approx(dispersion_rate(held_up(), DATAGRAM_BYTES))
