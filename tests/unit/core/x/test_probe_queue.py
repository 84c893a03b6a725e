"""What our probes may queue is found out by what they lose."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.probe_queue import LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES, ProbeQueue

RATE = 1.25e9
PROBE = 0.008
CHUNK = 32 * 1024


def probe(queue: ProbeQueue, now: float, *, lost: int, usual: float = 0.0, hidden: bool = False) -> None:
    queue.start((queue.gain(RATE, RATE, PROBE, 1.25) - 1) * RATE * PROBE, CHUNK, now + 0.02, hidden=hidden)
    queue.on_sample(lost, 1000, usual, now + 0.01)
    queue.on_sample(0, 1000, usual, now + 0.03)


def test_a_probe_that_lost_makes_the_next_one_smaller_down_to_what_the_path_probe_sends() -> None:
    queue = ProbeQueue(0.0)
    assert queue.gain(RATE, RATE, PROBE, 1.25) == 1.25
    probe(queue, 0.0, lost=20)
    assert queue.most_bytes == pytest.approx(0.5 * 0.25 * RATE * PROBE)
    for number in range(1, 9):
        probe(queue, number, lost=20)
    assert queue.most_bytes == LEAST_QUEUE_BYTES


def test_a_probe_that_lost_nearly_all_of_its_queue_leaves_the_least() -> None:
    queue = ProbeQueue(0.0)
    probe(queue, 0.0, lost=70)
    assert queue.most_bytes == LEAST_QUEUE_BYTES


def test_probes_that_lose_nothing_grow_slowly_again() -> None:
    queue = ProbeQueue(1e6)
    probe(queue, 0.0, lost=0)
    assert 1e6 < queue.most_bytes <= 1.06e6


def test_a_probe_that_begins_before_the_last_is_judged_judges_it() -> None:
    queue = ProbeQueue(1e6)
    queue.start(1e6, CHUNK, 10.0)
    queue.on_sample(100, 100, 0.0, 1.0)
    queue.start(1e6, CHUNK, 20.0)
    assert queue.most_bytes < 1e6


def test_a_few_chunks_that_chance_does_not_explain_make_the_next_one_a_little_smaller() -> None:
    queue = ProbeQueue(1e6)
    for number in range(10):
        probe(queue, number, lost=1, hidden=True)
    assert 0.5e6 < queue.most_bytes < 0.7e6
    for number in range(10, 60):
        probe(queue, number, lost=1, hidden=True)
    assert queue.most_bytes == LEAST_QUEUE_BYTES


def test_whether_a_hidden_probe_had_no_room_is_told_once_and_not_of_one_that_lost_a_few_chunks() -> None:
    queue = ProbeQueue(1e6)
    queue.start(1e6, CHUNK, 1.0, hidden=True)
    assert not queue.on_sample(20, 100, 0.0, 0.5)
    assert queue.on_sample(0, 100, 0.0, 1.0)
    assert not queue.on_sample(20, 100, 0.0, 1.1)
    queue.start(1e6, CHUNK, 2.0, hidden=True)
    queue.on_sample(20, 100, 0.0, 1.5)
    assert queue.start(1e6, CHUNK, 3.0)
    assert not queue.on_sample(2, 100, 0.0, 3.0)


@pytest.mark.parametrize(("hidden", "proved"), [(True, True), (True, False), (False, True)])
def test_what_is_lost_may_be_for_a_hidden_probe_of_a_known_rate_until_that_is_judged(
    *, hidden: bool, proved: bool
) -> None:
    queue = ProbeQueue(1e6)
    assert not queue.is_judging_hidden
    queue.start(1e6, CHUNK, 1.0, hidden=hidden, proved=proved)
    assert queue.is_judging
    assert queue.is_judging_hidden is (hidden and proved)
    queue.on_sample(0, 100, 0.0, 1.0)
    assert not queue.is_judging_hidden


def test_of_a_probe_that_round_trips_show_neither_a_few_chunks_nor_no_room_say_more() -> None:
    queue = ProbeQueue(1e6)
    probe(queue, 0, lost=1)
    assert queue.most_bytes > 1e6
    queue.start(1e6, CHUNK, 2.0)
    assert not queue.on_sample(20, 100, 0.0, 2.0)
    assert queue.most_bytes < 1e6


@pytest.mark.parametrize(("lost", "usual"), [(3, 0.0), (40, 0.02)])
def test_what_the_path_loses_anyway_is_no_want_of_room(lost: int, usual: float) -> None:
    queue = ProbeQueue(1e6)
    probe(queue, 0.0, lost=lost, usual=usual)
    assert queue.most_bytes > 1e6


def test_losses_long_after_a_probe_are_not_the_probes() -> None:
    queue = ProbeQueue(1e6)
    probe(queue, 0.0, lost=0)
    before = queue.most_bytes
    queue.on_sample(500, 500, 0.0, 0.5)
    assert queue.most_bytes == before


def test_what_the_path_gave_before_is_taken_again_at_once() -> None:
    queue = ProbeQueue(LEAST_QUEUE_BYTES)
    assert queue.gain(RATE, RATE, PROBE, 1.25) < 1.03
    assert queue.gain(RATE / 2, RATE, PROBE, 1.25) == 1.25


def test_a_slow_path_is_probed_with_all_of_the_gain() -> None:
    assert ProbeQueue(LEAST_QUEUE_BYTES).gain(125e6, 125e6, PROBE, 1.25) == 1.25


def test_what_was_found_is_remembered_and_nothing_else() -> None:
    queue = ProbeQueue(0.0)
    assert queue.remembered == 0.0
    probe(queue, 0.0, lost=100)
    assert ProbeQueue(queue.remembered).most_bytes == queue.most_bytes
    assert ProbeQueue(1e12).most_bytes == MOST_QUEUE_BYTES
