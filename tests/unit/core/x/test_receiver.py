"""The receiving half of `fedrdma-x`: what it reports, and what it keeps."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from fedrdma_fate.core.actions import ComputeDigest, SendFrame, SendReport
from fedrdma_fate.core.digest import MISTAGGED, TAGGED, payload_digest
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x import repair
from fedrdma_fate.core.x.chunking import (
    SMALLEST_CHUNK_BYTES,
    immediate_of,
)
from fedrdma_fate.core.x.receiver import XReceiver, XReceiveSettings
from fedrdma_fate.core.x.repair_code import RepairPlan
from fedrdma_fate.wire.frames import ResendChunks
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind


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


def test_of_a_chunk_that_comes_twice_where_its_bytes_were_seen_the_later_ones_count() -> None:
    receiver = XReceiver(1, ChunkPlan(8, 4), XReceiveSettings(tag=5, report_seconds=None))
    for digest in (TAGGED, MISTAGGED):
        assert receiver.on_chunk(immediate_of(5, 1), 0.0, 0.0, digest, (4100, 4)) == []
    receiver.on_chunk(immediate_of(5, 0), 0.0, 0.0, TAGGED, (4096, 4))
    header = ChunkHeader(HeaderKind.PAYLOAD, 1, 8, 0, 8, payload_digest([TAGGED, TAGGED]), 0, 2)
    assert ResendChunks(1, (0,)) in [
        action.frame for action in receiver.on_announced(header.encode()) if isinstance(action, SendFrame)
    ]


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


def test_where_the_transport_counts_what_came_of_chunks_that_are_not_whole_that_is_reported() -> None:
    receiver = XReceiver(1, ChunkPlan(40, 4), XReceiveSettings(tag=5))
    receiver.on_chunk(immediate_of(5, 9), 1.0, 1.0, received_bytes=7)
    receiver.on_chunk(immediate_of(5, 7), 1.0, 1.0, received_bytes=13)
    (told,) = receiver.on_timer(1.0)
    assert isinstance(told, SendReport)
    assert told.report.received_bytes == 13


def test_what_has_come_by_the_path_before_counts_besides_though_the_next_counts_from_nought() -> None:
    receiver = XReceiver(1, ChunkPlan(40, 4), XReceiveSettings(tag=5))
    receiver.on_chunk(immediate_of(5, 9), 1.0, 1.0, received_bytes=7)
    receiver.restart()
    receiver.on_chunk(immediate_of(5, 8), 2.0, 2.0, received_bytes=2)
    assert receiver.arrived_bytes == 9
    receiver.on_chunk(immediate_of(5, 7), 2.0, 2.0, received_bytes=6)
    assert receiver.arrived_bytes == 13
    assert receiver.report(2.0).received_bytes == 13


def test_the_last_chunk_is_reported_at_once() -> None:
    receiver = XReceiver(1, ChunkPlan(8, 4), XReceiveSettings(tag=5))
    receiver.on_chunk(immediate_of(5, 1), 1.0, 1.0)
    *_, told = receiver.on_chunk(immediate_of(5, 0), 1.0, 1.0)
    assert isinstance(told, SendReport)
    assert told.report.complete == 2
    assert receiver.timer() is None


def test_a_receiver_keeps_less_than_a_megabyte_for_a_gigabyte_in_the_smallest_chunks_of_fast_paths() -> None:
    plan = ChunkPlan(1 << 30, SMALLEST_CHUNK_BYTES)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        machine = XReceiver(1, plan, XReceiveSettings(tag=1))
        # from the last to the first, every hundredth missing: the bitmap is as long as it gets
        for index in reversed(range(plan.count)):
            if index % 100:
                machine.on_chunk(immediate_of(1, index), 0.0, 0.0, random.getrandbits(64))
        assert machine.placed_bytes > 0.98 * plan.total_bytes
        assert tracemalloc.get_traced_memory()[1] - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_sender_that_has_its_losses_solved_for_again_and_again_takes_no_time_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its repair chunks never suffice: each new chunk is a reason to try once more, one that came before is none."""
    tries: list[int] = []

    def solve(_plan: RepairPlan, _repairs: object, missing: list[int]) -> None:
        tries.append(len(missing))

    monkeypatch.setattr(repair, "solve", solve)
    monkeypatch.setattr(repair, "MOST_WORK", 10 * 90 * 90)
    plan = RepairPlan(ChunkPlan(400, 4), 100, 90)
    receiver = XReceiver(1, plan.chunks, XReceiveSettings(tag=5, repairs=plan))
    for number in range(90):
        receiver.on_chunk(immediate_of(5, 100 + number), 0.0, 0.0)
    assert not tries, "100 are missing"
    for index in range(10):
        receiver.on_chunk(immediate_of(5, index), 0.0, 0.0)
    assert tries == [90]
    for _ in range(100):
        receiver.on_chunk(immediate_of(5, 3), 0.0, 0.0)
        receiver.on_chunk(immediate_of(5, 103), 0.0, 0.0)
    assert tries == [90]
    for index in range(10, 99):
        receiver.on_chunk(immediate_of(5, index), 0.0, 0.0)
    assert sum(missing * 90 for missing in tries) <= 11 * 90 * 90
    assert 10 <= len(tries) < 20


def test_where_reports_clock_what_is_sent_one_goes_for_so_many_bytes_before_its_time() -> None:
    receiver = XReceiver(1, ChunkPlan(80, 4), XReceiveSettings(tag=5, report_bytes=8))
    receiver.on_chunk(immediate_of(5, 19), 1.0, 1.0)
    assert len(receiver.on_timer(1.0)) == 1
    receiver.on_chunk(immediate_of(5, 18), 1.0001, 1.0001)
    assert receiver.on_timer(1.0001) == []
    receiver.on_chunk(immediate_of(5, 17), 1.0002, 1.0002)
    (told,) = receiver.on_timer(1.0002)
    assert isinstance(told, SendReport)
    assert told.report.received_bytes == 12
