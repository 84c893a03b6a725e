"""A peer that answers, asks and sends trains as it likes: what is sent for it, kept of it and believed has bounds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.path_probe import (
    MOST_TRAINS,
    MOST_UNANSWERED_TRAINS,
    TRAIN_DATAGRAMS,
    ProbedSide,
    ProbingSide,
    Train,
)
from fedrdma_fate.core.x.estimators import MOST_RATE
from fedrdma_fate.wire.datagrams import MOST_MOMENTS, PathProbe, PathProbeAnswer

NUMBERS = st.integers(-1, 40) | st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 80) | st.integers(0, 2**63 - 1)
SECONDS = st.sampled_from([0.0, 1e-6, 0.001, 0.05, 0.5, 60.0])

ARRIVALS = st.lists(st.tuples(COUNTS, COUNTS), max_size=8).map(tuple)
TOLD = st.lists(
    st.tuples(st.sampled_from(["answer", "wanted", "joint", "timer"]), NUMBERS, COUNTS, ARRIVALS, SECONDS), max_size=60
)
SENT = st.lists(
    st.tuples(
        st.sampled_from(["probe", "want", "timer"]), NUMBERS, COUNTS, st.sampled_from([0, 2000, 4036, 4060]), SECONDS
    ),
    max_size=200,
)


@given(TOLD)
def test_no_answer_makes_more_go_than_trains_that_are_bounded_or_a_path_look_faster_than_any(
    told: list[tuple[str, int, int, tuple[tuple[int, int], ...], float]],
) -> None:
    probing, now, joint, trains = ProbingSide(), 1.0, 0, list[Train]()
    trains.append(probing.start(now))
    for kind, number, count, arrivals, seconds in told:
        now += seconds
        sent: Train | None = None
        if kind == "answer":
            found = probing.on_answer(PathProbeAnswer(number, arrivals, count), now)
            assert found is None or (0 < found.rate <= MOST_RATE and 0 < found.min_rtt <= now)
        elif kind == "wanted":
            sent = probing.on_wanted(number, count)
        elif kind == "joint":
            sent, joint = probing.start_joint(now, 1 + count % 64), joint + 1
        else:
            sent = probing.on_timer(now)
        if sent is not None:
            assert 1 <= sent.count <= TRAIN_DATAGRAMS
            trains.append(sent)
        if (answered := probing.joint) is not None:
            assert 0 < answered.came <= answered.sent <= TRAIN_DATAGRAMS
            assert 0 <= answered.spread <= answered.seconds <= now - answered.began
    assert len(trains) - joint <= MOST_UNANSWERED_TRAINS + MOST_TRAINS


@given(SENT)
def test_no_train_of_a_peer_is_answered_or_kept_beyond_bounds_or_counts_as_wanted_with_more_than_was_asked_for(
    sent: list[tuple[str, int, int, int, float]],
) -> None:
    probed, now, answers, wants = ProbedSide(), 1.0, 0, 0
    for kind, number, count, padding, seconds in sent:
        now += seconds
        answer: PathProbeAnswer | None = None
        if kind == "probe":
            answer = probed.on_probe(PathProbe(number, count, bytes(padding)), now)
        elif kind == "want":
            probed.want(now, 1 + count % 64)
            wants += 1
        else:
            answer = probed.on_timer(now)
        if answer is not None:
            answers += 1
            assert len(answer.arrivals) <= MOST_MOMENTS
            assert 1 <= sum(came for came, _ in answer.arrivals) <= TRAIN_DATAGRAMS
        assert probed.rate is None or 0 < probed.rate < math.inf
        if (wanted := probed.wanted) is not None:
            assert 1 <= wanted.came <= wanted.sent <= 64
            assert 0 <= wanted.spread <= wanted.seconds
    assert answers <= MOST_TRAINS + wants
