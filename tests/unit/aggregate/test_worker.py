"""A worker's handle, and the pool of them, with real worker processes."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate import worker, worker_pool
from fedrdma_fate.aggregate.jobs import Add, Begin, Done, End, Finish
from fedrdma_fate.aggregate.place import PLANES_AT, accumulator_bytes
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.aggregate.worker_pool import WorkerPool, most_workers
from fedrdma_fate.core.fold import Order
from fedrdma_fate.memory.shared_slots import held_ranges, hold_range
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import planes_bytes
from tests.support.summands import bits, masked, pairs_in, summed_by_rank, written

SHAPES = ((300, 20), (7,))
UPDATES = masked(SHAPES, 2, 1)


class Place:
    """A region with an accumulator, and one with updates."""

    def __init__(self) -> None:
        self.length = accumulator_bytes(Order.RANK, planes_bytes(SHAPES))
        self.region = memory_files.make("sum")
        os.ftruncate(self.region, self.length)
        self.payloads = [memory_files.make("update") for _ in UPDATES]
        for payload, update in zip(self.payloads, UPDATES, strict=True):
            os.write(payload, written(update, Party("host", "1")))
        self.target = OpenSum(Begin(1, "rank", 2, SHAPES, 0, self.length), self.region)

    def close(self) -> None:
        for each in (self.region, *self.payloads):
            os.close(each)

    async def add_all(self, handle: WorkerHandle) -> None:
        for number, payload in enumerate(self.payloads, 1):
            answer = await handle.do(Add(1, number, 0, keep_mapped=True), self.target, payload)
            assert isinstance(answer, Done)
        assert await handle.do(Finish(1), self.target) == Done()

    def holds_the_sum(self) -> bool:
        found = pairs_in(memoryview(mmap.mmap(self.region, self.length))[PLANES_AT:], SHAPES)
        return bits(found) == bits(summed_by_rank(UPDATES))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_worker_that_was_stopped_is_killed_and_another_adds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        # the next one has to start first
        handle = WorkerHandle(lambda: monkeypatch.setattr(worker, "ANSWER_SECONDS", 30.0))
        try:
            assert isinstance(await handle.do(Add(1, 1, 0, keep_mapped=True), place.target, place.payloads[0]), Done)
            stopped = handle.process_id
            assert stopped is not None
            os.kill(stopped, signal.SIGSTOP)
            monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.1)
            assert isinstance(await handle.do(Add(1, 2, 0, keep_mapped=True), place.target, place.payloads[1]), Done)
            assert handle.restarts == 1
            assert handle.process_id != stopped
        finally:
            handle.close()

    run(scenario())
    assert place.holds_the_sum()


def test_where_every_worker_hangs_the_job_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(worker, "LEAST_BYTES_PER_SECOND", 2**40)

    async def scenario() -> None:
        handle = WorkerHandle()
        try:
            with pytest.raises(WorkerLostError, match="3 times in a row"):
                await handle.do(Finish(1), place.target)
        finally:
            handle.close()

    run(scenario())


def test_one_that_rests_is_started_again_for_the_next_job(place: Place) -> None:
    async def scenario() -> None:
        handle = WorkerHandle()
        try:
            await handle.do(Add(1, 1, 0, keep_mapped=True), place.target, place.payloads[0])
            handle.rest()
            assert handle.process_id is None
            await handle.do(Add(1, 2, 0, keep_mapped=True), place.target, place.payloads[1])
            await handle.do(Finish(1), place.target)
            await handle.do(End(1), place.target)
            assert handle.restarts == 0
        finally:
            handle.close()

    run(scenario())
    assert place.holds_the_sum()


def test_sums_that_run_at_once_have_a_worker_each_up_to_the_limit() -> None:
    async def scenario() -> None:
        pool = WorkerPool(2)
        first, second, third = pool.choose(), pool.choose(), pool.choose()
        assert first is not second
        assert third in (first, second)
        pool.give_back(second)
        pool.give_back(third)
        assert pool.choose() is second
        pool.close()
        assert pool.is_closed

    run(scenario())


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def busy_pool(clock: Clock, most: int) -> WorkerPool:
    """One whose worker would be busy all the time, and another one, too."""
    pool = WorkerPool(most, by_estimate=True, clock=clock)
    for _ in range(200):
        pool.arrived()
        clock.now += 0.05
    for _ in range(20):
        pool._load.added(0.1)
    return pool


def test_sums_that_run_at_once_share_a_worker_until_the_estimate_asks_for_another() -> None:
    async def scenario() -> None:
        clock = Clock()
        pool = WorkerPool(4, by_estimate=True, clock=clock)
        first = pool.choose()
        assert pool.choose() is first
        assert pool.plan().wanted == 1
        pool.close()
        pool = busy_pool(clock, 4)
        assert pool.plan().wanted == 3
        assert len({pool.choose() for _ in range(5)}) == 3
        # nothing comes any more: others may go on where they are, new ones are put where one is enough
        clock.now += 60
        assert pool.plan().wanted == 1
        assert pool.choose() is pool._workers[0]
        pool.close()

    run(scenario())


def test_a_worker_that_the_estimate_asks_for_is_started_with_the_sum_before_its_first_update() -> None:
    async def scenario() -> None:
        pool = busy_pool(Clock(), 2)
        try:
            pool.enter()
            assert len(pool.process_ids) == 1
            pool.enter()
            pool.enter()
            assert len(pool.process_ids) == 2
        finally:
            pool.close()

    run(scenario())


def test_a_worker_without_sums_ends_though_others_have_some_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "IDLE_SECONDS", 0.05)

    async def scenario() -> None:
        pool = WorkerPool(3)
        try:
            pool.enter()
            pool.choose()
            second, third = pool.choose(), pool.choose()
            for worker in (second, third):
                worker.prepare()
                pool.give_back(worker)
            # it has one again, before it was ended
            assert pool.choose() is second
            while len(pool.process_ids) > 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert pool._workers[1:] == [second]
            assert second.process_id is not None
        finally:
            pool.close()

    run(scenario())


def test_when_a_sum_is_over_nobody_holds_its_slot_and_soon_nobody_has_it_mapped(place: Place) -> None:
    own = memory_files.open_for_writing(place.region)
    hold_range(own, 0, place.length)

    async def scenario() -> None:
        handle = WorkerHandle()
        place.target.descriptor = own
        try:
            await place.add_all(handle)
            process = handle.process_id
            assert is_mapped(process)
            assert await handle.do(End(1), place.target) == Done()
            os.close(own)
            assert held_ranges(place.region, place.length) == []
            deadline = asyncio.get_running_loop().time() + 30
            while is_mapped(process):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            # and it adds the next sum
            assert handle.process_id == process
        finally:
            handle.close()

    def is_mapped(process: int | None) -> bool:
        return "memfd:sum" in Path(f"/proc/{process}/maps").read_text()

    asyncio.run(scenario())
    assert place.holds_the_sum()


def test_only_additions_count_as_what_an_addition_takes(place: Place) -> None:
    async def scenario() -> None:
        took: list[float] = []
        handle = WorkerHandle(on_added=took.append)
        try:
            await handle.do(Add(1, 1, 0, keep_mapped=True), place.target, place.payloads[0])
            await handle.do(Add(1, 2, 0, keep_mapped=True), place.target, place.payloads[1])
            await handle.do(Finish(1), place.target)
            await handle.do(End(1), place.target)
        finally:
            handle.close()
        assert len(took) == 2
        assert all(seconds > 0 for seconds in took)

    run(scenario())
    assert place.holds_the_sum()


def test_one_sum_after_the_other_has_the_same_worker() -> None:
    async def scenario() -> None:
        pool = WorkerPool(4)
        first = pool.choose()
        pool.give_back(first)
        assert pool.choose() is first
        pool.close()

    run(scenario())


@pytest.mark.parametrize("another", [False, True])
def test_workers_end_when_there_was_no_sum_for_a_while(monkeypatch: pytest.MonkeyPatch, another: bool) -> None:
    monkeypatch.setattr(worker_pool, "IDLE_SECONDS", 0.05)

    async def scenario() -> None:
        pool = WorkerPool(1)
        try:
            pool.enter()
            assert len(pool.process_ids) == 1
            if another:
                pool.enter()
            pool.leave()
            if another:
                assert pool._idle is None
                return
            while pool.process_ids:
                await asyncio.sleep(0.01)
            # the next sum starts it again
            pool.enter()
            assert len(pool.process_ids) == 1
        finally:
            pool.close()

    run(scenario())


@pytest.mark.parametrize(("cores", "most"), [(None, 1), (1, 1), (2, 1), (6, 3), (64, 4)])
def test_by_itself_half_the_cores_add_and_four_at_most(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, most: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)

    assert most_workers(None) == most
    assert most_workers(7) == 7
