"""The last update of a sum is added while it comes; whatever happens to it, the bits are those of adding it whole."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedrdma_fate.aggregate.jobs import AddLast, Finish, JobAnswer, Unfit
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.cli.status import render
from fedrdma_fate.client.client import ReceivedSum, SendLease
from fedrdma_fate.core.x import loss_detection
from fedrdma_fate.engine import incoming, landing
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.summand import planes_bytes
from tests.support.sites import InThread, Site, Sites, eventually, party, start_gateways
from tests.support.summands import SHAPES, Pairs, bits, masked, pairs_in, written

NUMBERS = range(3)
SOURCES = [party(f"host:{number}") for number in NUMBERS]
ARBITER = party("arbiter:1")
LAST = 2
UPDATES = masked(SHAPES, len(SOURCES), seed=6)
MEMORY = {"send_bytes": "64MiB", "receive_bytes": "64MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
STEP = 64 * 1024


@pytest.fixture(scope="module", params=["tcp", "udp"])
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """An arbiter's site, and that of the others: updates are long to them, and told of in small steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming, "LEAST_BYTES", 1)
        patch.setattr(landing, "STEP_BYTES", STEP)
        # on a busy machine an acknowledgement may be late by more: what went again would end that it is told of
        patch.setattr(loss_detection, "REPORT_SLACK_SECONDS", 30.0)
        with start_gateways(
            {"a": [str(ARBITER)], "b": [str(source) for source in SOURCES]},
            tmp_path_factory.mktemp("last"),
            memory=MEMORY,
            transport=request.param,
            chunk="16KiB",
            # what comes before its offer does not count there either, but is not forgotten
            mode="fedrdma-x",
            aggregate={"sums": True, "site_sums": False},
        ) as running:
            yield running


class Watched:
    """What the worker is told, and what is done to it before a piece of the last update."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.answers: list[JobAnswer] = []
        self.before: Callable[[WorkerHandle], None] = lambda _handle: None

    @property
    def pieces(self) -> list[AddLast]:
        return [job for job in self.jobs if isinstance(job, AddLast)]

    @property
    def added_while_it_came(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].is_end and not any(isinstance(job, Finish) for job in self.jobs)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    original, watch = WorkerHandle.do, Watched()

    async def do(
        handle: WorkerHandle, job: Any, target: OpenSum, descriptor: int | None = None, total: OpenSum | None = None
    ) -> JobAnswer:
        watch.jobs.append(job)
        if isinstance(job, AddLast):
            watch.before(handle)
        answer = await original(handle, job, target, descriptor, total)
        watch.answers.append(answer)
        return answer

    monkeypatch.setattr(WorkerHandle, "do", do)
    return watch


class Session:
    """Everybody of a session."""

    def __init__(self, sites: Sites, name: str, stack: ExitStack) -> None:
        self.site: Site = sites["a"]
        # a chunk that comes once more by a datagram ends that it is told how far the update has come
        self.tells_all = self.site.config["transport"] == "tcp"
        self.idle = self.site.pool("receive")["slots"]
        self.arbiter = stack.enter_context(sites["a"].client(name, str(ARBITER)))
        self.hosts = [stack.enter_context(sites["b"].client(name, str(source))) for source in SOURCES]
        self._threads = stack.enter_context(ThreadPoolExecutor(1))

    def asks(self) -> Future[ReceivedSum]:
        def ask() -> ReceivedSum:
            summed = self.arbiter.get_sum("masked", "t", SOURCES, timeout=30)
            assert isinstance(summed, ReceivedSum), summed
            return summed

        return self._threads.submit(ask)

    def push(self, number: int, update: Pairs | None = None) -> None:
        body = written(UPDATES[number] if update is None else update, SOURCES[number], float(number))
        lease = self.hosts[number].lease(len(body))
        lease.buffer[:] = body
        lease.commit("masked", "t", [ARBITER], "object")

    def others_are_in(self, watched: Watched) -> None:
        for number in NUMBERS[:LAST]:
            self.push(number)
        eventually(lambda: len([answer for answer in watched.answers if answer]) == LAST)

    def begins(self, update: Pairs | None = None, weight: float | None = float(LAST)) -> Coming:
        return Coming(self, UPDATES[LAST] if update is None else update, weight)


class Coming:
    """The last update, half of which is put: more of it comes when its task writes more."""

    def __init__(self, session: Session, update: Pairs, weight: float | None) -> None:
        self.body = written(update, SOURCES[LAST], weight, before=bytes(4096))
        self.lease: SendLease = session.hosts[LAST].lease(len(self.body))
        assert self.lease.commit_unfinished("masked", "t", [ARBITER], "object") == "committed"
        self.write(len(self.body) // 2)

    def write(self, start: int) -> None:
        self.lease.buffer[start:] = self.body[start:]
        self.lease.written(start, ())
        if not start:
            self.lease.release()


def runner_in_thread(sites: Sites) -> InThread:
    assert isinstance(sites.runner, InThread)
    return sites.runner


def context_of(sites: Sites) -> GatewayContext:
    """Of the arbiter's gateway."""
    assembly = runner_in_thread(sites).gateways["a"]._assembly
    assert assembly is not None
    return assembly.context


@pytest.fixture
def session(sites: Sites, request: pytest.FixtureRequest) -> Iterator[Session]:
    with ExitStack() as stack:
        yield Session(sites, request.node.name, stack)


def whole(summed: ReceivedSum) -> list[tuple[bytes, bytes]]:
    assert (summed.parties_in, summed.weight, summed.reason) == ((0, 1, 2), 3.0, "")
    return bits(pairs_in(summed.buffer, summed.shapes))


@pytest.fixture(scope="module")
def expected(sites: Sites) -> list[tuple[bytes, bytes]]:
    """What it is where each update is there before the sum is asked for."""
    with ExitStack() as stack:
        session = Session(sites, "expected", stack)
        for number in NUMBERS:
            session.push(number)
        eventually(lambda: len(session.site.events("delivered")) >= len(NUMBERS))
        return whole(session.asks().result(30))


def test_it_is_added_while_it_comes_and_the_bits_are_the_same(
    session: Session, watched: Watched, expected: list[tuple[bytes, bytes]]
) -> None:
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: bool(watched.pieces))
    before = len(watched.pieces)
    coming.write(len(coming.body) // 4)
    eventually(lambda: len(watched.pieces) > before)
    assert not any(piece.is_end for piece in watched.pieces)
    coming.write(0)
    summed = summing.result(30)

    assert whole(summed) == expected
    assert watched.added_while_it_came or not session.tells_all
    # each block once, from the last to the first
    spans = [(piece.start, piece.end) for piece in watched.pieces]
    assert all(earlier[0] == later[1] for earlier, later in itertools.pairwise(spans) if later[0] < later[1])
    del summed, summing
    eventually(lambda: session.site.pool("receive")["slots"] <= session.idle)


def test_status_shows_how_much_of_it_is_in_while_it_comes(session: Session, watched: Watched) -> None:
    def coming_there() -> dict[str, Any] | None:
        (found,) = session.site.status()["sums"]
        return None if found["coming"] is None else dict(found["coming"])

    summing = session.asks()
    session.others_are_in(watched)
    assert coming_there() is None
    coming = session.begins()
    found = eventually(lambda: (its := coming_there()) is not None and its["added_bytes"] > 0 and its)
    assert isinstance(found, dict)
    assert (found["party"], found["bytes"]) == (str(SOURCES[LAST]), len(coming.body))
    assert found["added_bytes"] <= len(coming.body) // 2
    table = io.StringIO()
    Console(file=table, width=300).print(render(session.site.status()))
    assert f"{SOURCES[LAST]}, while it comes: " in table.getvalue()
    coming.write(0)
    summing.result(30)


def test_a_worker_that_is_killed_over_a_piece_changes_no_bit(
    session: Session, watched: Watched, expected: list[tuple[bytes, bytes]]
) -> None:
    killed: list[int] = []

    def kill(handle: WorkerHandle) -> None:
        # the first and the last one: stopped first, so that it dies with the job in its hands
        if handle.process_id is not None and (not killed or watched.pieces[-1].is_end):
            os.kill(handle.process_id, signal.SIGSTOP)
            process = handle.process_id
            killed.append(process)
            ThreadPoolExecutor(1).submit(lambda: os.kill(process, signal.SIGKILL))

    watched.before = kill
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: len(killed) == 1)
    coming.write(0)

    assert whole(summing.result(30)) == expected
    assert watched.added_while_it_came or not session.tells_all
    assert len(killed) == (2 if watched.added_while_it_came else 1)


def test_where_no_worker_adds_a_piece_it_is_added_when_it_is_whole(
    session: Session, watched: Watched, expected: list[tuple[bytes, bytes]]
) -> None:
    def lose(_handle: WorkerHandle) -> None:
        raise WorkerLostError("it ended 3 times in a row")

    watched.before = lose
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: bool(watched.pieces))
    coming.write(0)

    assert whole(summing.result(30)) == expected
    assert len(watched.pieces) == 1


def test_where_a_piece_never_ends_all_of_it_is_added_when_it_is_whole(
    session: Session, watched: Watched, expected: list[tuple[bytes, bytes]]
) -> None:
    def cancel(_handle: WorkerHandle) -> None:
        raise asyncio.CancelledError

    watched.before = cancel
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: bool(watched.pieces))
    watched.before = lambda _handle: None
    coming.write(0)

    assert whole(summing.result(30)) == expected
    assert not any(piece.is_end for piece in watched.pieces)


def test_one_that_is_refused_while_a_piece_of_it_is_added_is_not_added_to_a_finished_sum(
    session: Session, watched: Watched
) -> None:
    stopped: list[int] = []

    def stop(handle: WorkerHandle) -> None:
        if handle.process_id is not None and not stopped:
            stopped.append(handle.process_id)
            os.kill(handle.process_id, signal.SIGSTOP)

    watched.before = stop
    summing = session.asks()
    session.others_are_in(watched)
    delivered = len(session.site.events("delivered"))
    coming = session.begins(weight=None)
    eventually(lambda: bool(stopped))
    coming.write(0)
    eventually(lambda: len(session.site.events("delivered")) > delivered)
    os.kill(stopped[0], signal.SIGCONT)
    summed = summing.result(30)

    assert summed.parties_in == (0, 1)
    assert "it has no weight, others have" in summed.reason
    kinds = [type(job) for job in watched.jobs]
    assert AddLast not in kinds[kinds.index(Finish) :]


def test_where_there_is_no_room_for_the_total_it_is_added_when_it_is_whole(
    sites: Sites,
    session: Session,
    watched: Watched,
    expected: list[tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, asked = context_of(sites).receive_pool, list[str]()
    original = pool.lease

    def lease(length: int, owner: str) -> Lease | None:
        asked.append(owner)
        return None if owner.startswith("sum:") else original(length, owner)

    monkeypatch.setattr(pool, "lease", lease)
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: any(owner.startswith("sum:") for owner in asked))
    coming.write(0)

    assert whole(summing.result(30)) == expected
    assert not watched.pieces


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_one_with_a_number_that_is_none_leaves_the_sum_of_the_others_and_is_got_alone(
    session: Session, watched: Watched, where: str, number: float
) -> None:
    bad = [(fraction.copy(), whole.copy()) for fraction, whole in UPDATES[LAST]]
    bad[0 if where == "start" else -1][0].flat[0] = number
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins(bad)
    eventually(lambda: bool(watched.pieces))
    coming.write(0)
    summed = summing.result(30)

    assert summed.parties_in == (0, 1)
    assert "a number in it is none" in summed.reason
    alone = session.arbiter.get("masked", "t", SOURCES[LAST], timeout=10)
    assert bytes(alone.buffer) == coming.body
    assert any(isinstance(answer, Unfit) for answer in watched.answers)
    found = pairs_in(summed.buffer, summed.shapes)
    for array, (fraction, whole_numbers) in enumerate(found):
        assert np.abs(fraction - UPDATES[0][array][0] - UPDATES[1][array][0]).max(initial=0) < 1e-14
        assert np.array_equal(whole_numbers, UPDATES[0][array][1] + UPDATES[1][array][1])


def test_one_that_its_task_lets_go_of_half_way_fails_the_sum_and_leaves_no_slot_behind(
    session: Session, watched: Watched
) -> None:
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: bool(watched.pieces))
    coming.lease.release()

    error = summing.exception(30)
    assert isinstance(error, FedRDMAError)
    assert not any(piece.is_end for piece in watched.pieces)
    eventually(lambda: session.site.pool("receive")["slots"] <= session.idle)


def test_one_that_is_put_twice_is_added_once(
    session: Session, watched: Watched, expected: list[tuple[bytes, bytes]]
) -> None:
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: bool(watched.pieces))
    with pytest.raises(FedRDMAError) as caught:
        session.push(LAST)
    coming.write(0)

    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    assert whole(summing.result(30)) == expected
    assert watched.added_while_it_came or not session.tells_all


def test_where_what_was_told_does_not_count_any_more_all_of_it_is_added_once_more(
    sites: Sites, session: Session, watched: Watched, expected: list[tuple[bytes, bytes]]
) -> None:
    context = context_of(sites)
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins()
    eventually(lambda: bool(watched.pieces))

    async def withdraw() -> int:
        (told,) = context.coming_updates._told.values()
        # somebody writes over it, and the right bytes come again
        context.coming_updates.landed(dataclasses.replace(told, start=0, end=0))
        # here, for the next turn of the loop may begin with it anew
        return len(watched.pieces)

    before = runner_in_thread(sites).run(withdraw())
    coming.write(0)

    assert whole(summing.result(30)) == expected
    assert session.tells_all <= (len(watched.pieces) > before)
    if len(watched.pieces) > before:
        assert watched.pieces[before].end == planes_bytes(tuple(pair[0].shape for pair in UPDATES[LAST]))


def test_one_with_other_shapes_is_not_begun_and_is_got_alone(session: Session, watched: Watched) -> None:
    summing = session.asks()
    session.others_are_in(watched)
    coming = session.begins(masked(((500, 400), (7,)), len(SOURCES), seed=8)[LAST])
    coming.write(0)
    summed = summing.result(30)

    assert summed.parties_in == (0, 1)
    assert "other shapes" in summed.reason
    assert not watched.pieces
    assert bytes(session.arbiter.get("masked", "t", SOURCES[LAST], timeout=10).buffer) == coming.body
