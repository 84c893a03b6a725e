"""A train of datagrams tells the rate of a path, and whatever may befall it does no harm."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.path_probe import (
    ANSWER_SECONDS,
    QUIET_SECONDS,
    TRAIN_DATAGRAMS,
    TRAINS,
    ProbedSide,
    ProbingSide,
    dispersion_rate,
)
from fedrdma_fate.core.x_path import PathState
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES, PathProbe, PathProbeAnswer, decode_datagram

SPACING_NS = 3300


def evenly(count: int, at_once: int = 1) -> list[tuple[int, int]]:
    return [(at_once, moment * SPACING_NS * at_once) for moment in range(count // at_once)]


def probe(train: int = 1, count: int = TRAIN_DATAGRAMS) -> PathProbe:
    return PathProbe(train, count, b"")


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
    raw = ProbingSide().start(0.0)
    found = decode_datagram(raw)
    assert isinstance(found, PathProbe)
    assert (len(raw), found.train, found.count) == (DATAGRAM_BYTES, 1, TRAIN_DATAGRAMS)


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


@pytest.mark.parametrize("answer", [None, PathProbeAnswer(1, ((64, 0),), 0), PathProbeAnswer(9, tuple(evenly(64)), 0)])
def test_without_a_useful_answer_there_are_some_trains_and_no_more(answer: PathProbeAnswer | None) -> None:
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
    assert len(trains) == len(set(trains)) == TRAINS
    assert now == pytest.approx(TRAINS * ANSWER_SECONDS)


def test_an_answer_held_for_longer_than_it_took_to_come_tells_nothing() -> None:
    probing = ProbingSide()
    probing.start(0.0)
    assert probing.on_answer(PathProbeAnswer(1, tuple(evenly(64)), 10**9), 0.02) is None
    assert isinstance(probing.on_answer(PathProbeAnswer(1, tuple(evenly(64)), 0), 0.03), PathState)
