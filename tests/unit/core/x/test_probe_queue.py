"""What our probes may queue is found out by what they lose."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.probe_queue import LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES, ProbeQueue

RATE = 1.25e9
PROBE = 0.008
CHUNK = 32 * 1024


def probe(queue: ProbeQueue, now: float, *, lost: int, usual: float = 0.0) -> None:
    queue.start((queue.gain(RATE, RATE, PROBE, 1.25) - 1) * RATE * PROBE, CHUNK, now + 0.02)
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
