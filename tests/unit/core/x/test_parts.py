"""The small parts of `fedrdma-x`: chunk size, immediates, bitmap, token bucket, flights."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.actions import ComputeDigest, SendReport
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.arrival_map import ArrivalMap
from fedrdma_fate.core.x.chunking import (
    LARGEST_X_CHUNK_BYTES,
    SMALLEST_CHUNK_BYTES,
    best_chunk_bytes,
    chunk_of_immediate,
    immediate_of,
)
from fedrdma_fate.core.x.loss_detection import Flight, FlightBook
from fedrdma_fate.core.x.pacing import Pacer
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings


def test_chunks_shrink_with_loss_and_grow_with_rate_within_bounds() -> None:
    assert best_chunk_bytes(125e6, 0.01, 4096, 1 << 30) == SMALLEST_CHUNK_BYTES
    assert best_chunk_bytes(1.25e9, 0.001, 4096, 1 << 30) == 128 * 1024
    assert best_chunk_bytes(1e15, 0.0, 4096, 1 << 30) == LARGEST_X_CHUNK_BYTES
    assert best_chunk_bytes(12.2e9, 0.0, 4096, 1 << 30) == 512 * 1024, "the power of two that is nearest"
    assert best_chunk_bytes(1.22e9, 0.01, 4096, 1 << 30) == 32 * 1024, "that below, where it costs repeats"
    assert best_chunk_bytes(1.25e9, None, 4096, 1 << 30) == best_chunk_bytes(1.25e9, 0.01, 4096, 1 << 30)


def test_a_huge_payload_is_not_cut_into_more_chunks_than_an_immediate_can_name() -> None:
    assert ChunkPlan(1 << 40, best_chunk_bytes(1.0, 1.0, 4096, 1 << 40)).count <= 1 << 20


def test_an_immediate_names_tag_and_chunk() -> None:
    assert chunk_of_immediate(immediate_of(4095, (1 << 20) - 1)) == (4095, (1 << 20) - 1)
    assert immediate_of(4095, (1 << 20) - 1) == 0xFFFFFFFF


@pytest.mark.parametrize(("tag", "index"), [(4096, 0), (-1, 0), (0, 1 << 20), (0, -1)])
def test_what_does_not_fit_an_immediate_is_refused(tag: int, index: int) -> None:
    with pytest.raises(ValueError):
        immediate_of(tag, index)


def test_a_bitmap_counts_leading_arrivals_and_keeps_the_rest() -> None:
    arrivals = ArrivalMap(5)
    assert [arrivals.add(position) for position in (3, 0, 3, 1)] == [True, True, False, True]
    assert (arrivals.complete, arrivals.beyond, 3 in arrivals, 2 in arrivals) == (2, b"\x02", True, False)
    arrivals.add(2)
    assert (arrivals.complete, arrivals.beyond, arrivals.full) == (4, b"", False)


@pytest.mark.parametrize(("complete", "beyond"), [(6, b""), (-1, b""), (4, b"\x02")])
def test_a_report_beyond_the_plan_is_an_error(complete: int, beyond: bytes) -> None:
    with pytest.raises(IndexError):
        ArrivalMap(5).merge(complete, beyond)


def test_a_bucket_lets_a_burst_go_and_then_the_rate() -> None:
    pacer = Pacer(100)
    pacer.set_rate(1000.0, 0.0)
    assert pacer.grant_at(100, 0.0) == 0.0
    pacer.take(100, 0.0)
    assert pacer.grant_at(50, 0.0) == pytest.approx(0.05)
    assert pacer.grant_at(100, 10.0) == 10.0
    pacer.take(100, 10.0)
    assert pacer.grant_at(10, 10.0) > 10.0, "a long silence earns one burst, not more"


def test_a_chunk_overtaken_by_three_on_its_queue_pair_is_lost_and_others_are_not() -> None:
    book = FlightBook(2)
    for position in range(8):
        book.depart(Flight(position, 1, position % 2, 0.0, False))
    book.arrive(6, 1.0, 0.0)
    assert book.overtaken() == [0]
    assert book.bytes_in_flight == 6


def test_the_arrival_of_an_earlier_sending_overtakes_nothing() -> None:
    book = FlightBook(1)
    for position in range(3):
        book.depart(Flight(position, 1, 0, 0.0, False))
    book.depart(Flight(9, 1, 0, 1.0, True))
    assert book.arrive(9, 1.001, 0.02) is None
    assert book.overtaken() == []


def test_a_chunk_of_another_tag_or_outside_the_plan_is_ignored() -> None:
    receiver = XReceiver(1, ChunkPlan(8, 4), XReceiveSettings(tag=5))
    assert receiver.on_chunk(immediate_of(6, 0), 0.0, 0.0) == []
    assert receiver.on_chunk(immediate_of(5, 2), 0.0, 0.0) == []
    assert receiver.timer() is None


def test_a_chunk_that_comes_twice_is_reported_again_and_not_checked_again() -> None:
    receiver = XReceiver(1, ChunkPlan(8, 4), XReceiveSettings(tag=5))
    receiver.on_chunk(immediate_of(5, 1), 0.0, 0.0)
    receiver.on_timer(0.0)
    assert receiver.on_chunk(immediate_of(5, 1), 1.0, 1.0) == []
    (answer,) = receiver.on_timer(1.0)
    assert isinstance(answer, SendReport)
    assert answer.report.complete == 1
    assert receiver.repeated_chunks == 1


def test_a_chunk_that_arrived_before_the_offer_is_reported_with_its_own_time() -> None:
    receiver = XReceiver(1, ChunkPlan(8, 4), XReceiveSettings(tag=5))
    (asked,) = receiver.on_chunk(immediate_of(5, 1), 1.0, 1.5)
    assert isinstance(asked, ComputeDigest)
    (told,) = receiver.on_timer(1.5)
    assert isinstance(told, SendReport)
    assert (told.report.arrived_at, told.report.held) == (1.0, 0.5)


def test_chunks_found_at_one_moment_are_reported_together_so_that_what_follows_does_not_look_fast() -> None:
    receiver = XReceiver(1, ChunkPlan(40, 4), XReceiveSettings(tag=5))
    for index in range(9, 4, -1):
        (asked,) = receiver.on_chunk(immediate_of(5, index), 1.0, 1.0)
        assert isinstance(asked, ComputeDigest)
    assert receiver.timer() == 1.0
    (told,) = receiver.on_timer(1.0)
    assert isinstance(told, SendReport)
    assert (told.report.arrived_at, told.report.received_bytes, told.report.newest) == (1.0, 20, 4)


def test_the_last_chunk_is_reported_at_once() -> None:
    receiver = XReceiver(1, ChunkPlan(8, 4), XReceiveSettings(tag=5))
    receiver.on_chunk(immediate_of(5, 1), 1.0, 1.0)
    *_, told = receiver.on_chunk(immediate_of(5, 0), 1.0, 1.0)
    assert isinstance(told, SendReport)
    assert told.report.complete == 2
    assert receiver.timer() is None
