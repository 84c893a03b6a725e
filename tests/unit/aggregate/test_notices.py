"""Notices of updates: the record, a line of records to a real worker, and whatever can go wrong with either."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate import notices, worker
from fedrdma_fate.aggregate.jobs import Add, Begin, Done, End, Finish, Job, Unfit, Unmapped
from fedrdma_fate.aggregate.notices import (
    NOTICE_BYTES,
    Line,
    MalformedNoticeError,
    Notice,
    RecordLine,
    SocketNotices,
    decode_notice,
    encode_notice,
    file_name,
)
from fedrdma_fate.aggregate.place import PLANES_AT, accumulator_bytes
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle
from fedrdma_fate.aggregate.worker_process import Worker
from fedrdma_fate.core.fold import Order
from fedrdma_fate.memory.shared_slots import held_ranges, place_is_held
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import planes_bytes
from tests.support.summands import bits, masked, pairs_in, summed_by_rank, written

SHAPES = ((300, 20), (7,))
UPDATES = masked(SHAPES, 4, 1)
UPDATE_BYTES = len(written(UPDATES[0], Party("host", "1")))
NOTICE = Notice(2**48 + 3, 7, (1, 2**40), 4096, 0)
AT = (UPDATE_BYTES + 4095) // 4096 * 4096
"""From one update in the region to the next."""


class Place:
    """A region with all updates, and one for their sum."""

    def __init__(self) -> None:
        self.length = accumulator_bytes(Order.RANK, planes_bytes(SHAPES))
        self.sum = memory_files.make("sum")
        os.ftruncate(self.sum, self.length)
        self.region = memory_files.make("updates")
        os.ftruncate(self.region, AT * len(UPDATES))
        for number, update in enumerate(UPDATES):
            os.pwrite(self.region, written(update, Party("host", "1")), AT * number)
        self.begin = Begin(1, "rank", len(UPDATES), SHAPES, 0, self.length)
        self.target = OpenSum(self.begin, self.sum)

    def close(self) -> None:
        os.close(self.sum)
        os.close(self.region)

    async def add(self, handle: WorkerHandle, number: int) -> None:
        answer = await handle.do(Add(1, number, AT * (number - 1), keep_mapped=True), self.target, self.region)
        assert isinstance(answer, Done)
        assert answer.began

    async def finish(self, handle: WorkerHandle) -> None:
        assert await handle.do(Finish(1), self.target) == Done()
        assert await handle.do(End(1), self.target) == Done()

    def holds_the_sum(self) -> bool:
        found = pairs_in(memoryview(mmap.mmap(self.sum, self.length))[PLANES_AT:], SHAPES)
        return bits(found) == bits(summed_by_rank(UPDATES))


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


class Records(SocketNotices):
    """Notices as records over a socket pair; each end that a test may want is kept."""

    way = "records"

    def __init__(self) -> None:
        self.ways: list[str] = []
        super().__init__(lambda way, _seconds: self.ways.append(way))
        self.lines: list[RecordLine] = []
        self.ours: list[socket.socket] = []

    def open(self) -> Line:
        ours, its = socket.socketpair()
        self.ours.append(ours)
        self.lines.append(RecordLine(self.way, ours, its))
        return self.lines[-1]


def play(place: Place, between: Callable[[WorkerHandle, Records], Awaitable[object]] | None = None) -> Records:
    """Add all updates by a real worker; before the third one, do something. The sum is right whatever that was."""

    async def scenario() -> Records:
        records = Records()
        handle = WorkerHandle(notices=records)
        try:
            for number in range(1, len(UPDATES) + 1):
                if number == 3 and between is not None:
                    await between(handle, records)
                await place.add(handle, number)
            await place.finish(handle)
        finally:
            handle.close()
        return records

    records = asyncio.run(scenario())
    assert place.holds_the_sum()
    return records


# -- the record -------------------------------------------------------------------------------------------------------


def test_a_notice_says_the_same_to_its_reader() -> None:
    record = encode_notice(NOTICE, 5)

    assert len(record) == NOTICE_BYTES
    assert decode_notice(record) == NOTICE
    # what routes it looks at nothing else
    assert int.from_bytes(record[:4], "little") == 5


@pytest.mark.parametrize(
    "record",
    [
        b"",
        encode_notice(NOTICE, 0)[:-1],
        encode_notice(NOTICE, 0) + b"\0",
        bytes(NOTICE_BYTES),
        encode_notice(NOTICE, 0)[:-1] + b"\1",
        b"\0\0\0\0FNT2" + encode_notice(NOTICE, 0)[8:],
        encode_notice(Notice(1, 0, (1, 1), 0, 0), 0),
    ],
)
def test_what_is_no_notice_is_refused(record: bytes) -> None:
    with pytest.raises(MalformedNoticeError):
        decode_notice(record)


# -- to a worker ------------------------------------------------------------------------------------------------------


def test_what_the_worker_has_mapped_it_is_told_of_by_notices(place: Place) -> None:
    assert play(place).ways == ["socket", "records", "records", "records"]


def test_a_job_for_a_file_that_is_not_kept_goes_over_the_socket(place: Place) -> None:
    ours, its = socket.socketpair()
    line = RecordLine("records", ours, its)
    line.has_mapped(Add(1, 1, 0, keep_mapped=False), place.region)

    assert not line.tell(Add(1, 2, 0, keep_mapped=True), place.region)
    line.has_mapped(Add(1, 2, 0, keep_mapped=True), place.region)
    assert not line.tell(Add(1, 3, 0, keep_mapped=False), place.region)
    assert not line.tell(Finish(1), None)
    assert line.tell(Add(1, 3, 0, keep_mapped=True), place.region)
    line.has_not_mapped(place.region)
    assert not line.tell(Add(1, 4, 0, keep_mapped=True), place.region)
    line.close()


def test_a_line_knows_no_more_files_than_a_worker_keeps(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    monkeypatch.setattr(notices, "MOST_KNOWN_FILES", 1)
    ours, its = socket.socketpair()
    line = RecordLine("records", ours, its)
    job = Add(1, 1, 0, keep_mapped=True)

    line.has_mapped(job, place.region)
    line.has_mapped(job, place.sum)

    assert not line.tell(job, place.region)
    assert line.tell(job, place.sum)
    line.close()


def test_a_notice_of_what_the_worker_has_forgotten_becomes_a_job(place: Place) -> None:
    """The line believes that it has mapped a file, and it has another."""

    async def forget(_handle: WorkerHandle, records: Records) -> None:
        other = os.dup(place.region)
        os.close(place.region)
        copy = memory_files.make("updates")
        os.ftruncate(copy, AT * len(UPDATES))
        for number, update in enumerate(UPDATES):
            os.pwrite(copy, written(update, Party("host", "1")), AT * number)
        place.region = copy
        os.close(other)
        records.lines[-1].has_mapped(Add(1, 1, 0, keep_mapped=True), copy)

    assert play(place, forget).ways == ["socket", "records", "socket", "records"]


def test_where_no_notice_can_be_written_jobs_go_over_the_socket_for_good(place: Place) -> None:
    async def break_(_handle: WorkerHandle, records: Records) -> None:
        records.ours[-1].shutdown(socket.SHUT_WR)

    records = play(place, break_)

    assert records.ways == ["socket", "records", "socket", "socket"]
    assert records.lines[-1].descriptor is None


def test_a_full_socket_holds_up_nothing(place: Place) -> None:
    ours, its = socket.socketpair()
    line = RecordLine("records", ours, its)
    job = Add(1, 1, 0, keep_mapped=True)
    line.has_mapped(job, place.region)

    while line.tell(job, place.region):
        pass

    # nobody has read anything, and nothing more is written
    assert line.descriptor is None
    assert ours.fileno() == -1


def test_a_notice_that_does_not_fit_is_not_followed_by_another(place: Place) -> None:
    class Short:
        """A socket that takes a part of what it is given."""

        def __init__(self) -> None:
            self.closed = False

        def setblocking(self, _: bool) -> None: ...

        def send(self, record: bytes) -> int:
            assert not self.closed
            return len(record) - 1

        def close(self) -> None:
            self.closed = True

    its = socket.socketpair()[1]
    short, gone = Short(), list[bool]()
    line = RecordLine("records", short, its, 3, lambda: gone.append(True))  # type: ignore[arg-type]
    job = Add(1, 1, 0, keep_mapped=True)
    line.has_mapped(job, place.region)

    assert not line.tell(job, place.region)
    assert short.closed
    assert not line.tell(job, place.region)
    line.close()
    assert gone == [True]


@pytest.mark.parametrize("garbage", [b"x" * NOTICE_BYTES, b"\0" * NOTICE_BYTES])
def test_a_worker_that_reads_garbage_ends_and_another_goes_on(place: Place, garbage: bytes) -> None:
    processes: list[int | None] = []

    async def disturb(handle: WorkerHandle, records: Records) -> None:
        processes.append(handle.process_id)
        records.ours[-1].send(garbage)

    records = play(place, disturb)

    assert len(records.lines) == 2
    assert records.ways == ["socket", "records", "socket", "records"]


def test_half_a_notice_before_the_end_is_none(place: Place) -> None:
    async def disturb(_handle: WorkerHandle, records: Records) -> None:
        records.ours[-1].send(encode_notice(NOTICE, 0)[:20])
        records.ours[-1].shutdown(socket.SHUT_WR)

    records = play(place, disturb)

    # the same worker
    assert len(records.lines) == 1
    assert records.ways == ["socket", "records", "socket", "socket"]


def test_where_the_worker_is_killed_the_next_one_is_told_anew(place: Place) -> None:
    async def kill(handle: WorkerHandle, _records: Records) -> None:
        assert handle.process_id is not None
        os.kill(handle.process_id, signal.SIGKILL)

    records = play(place, kill)

    assert len(records.lines) == 2
    assert records.ways == ["socket", "records", "socket", "records"]


def test_where_a_notice_is_lost_none_goes_that_way_any_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says that it was lost, so the worker is waited for as long as an addition may take; but only once."""

    class Losing(RecordLine):
        def tell(self, job: Job, descriptor: int | None) -> bool:
            # the worker that is started anew has its time
            monkeypatch.setattr(worker, "ANSWER_SECONDS", patience)
            if descriptor is None or not isinstance(job, Add) or job.number == 1:
                return False
            told.append(job.number)
            return True

    class LosingRecords(Records):
        def open(self) -> Line:
            self.lines.append(Losing(self.way, *socket.socketpair()))
            return self.lines[-1]

    async def scenario() -> None:
        handle = WorkerHandle(notices=records)
        try:
            await place.add(handle, 1)
            monkeypatch.setattr(worker, "ANSWER_SECONDS", 0.05)
            for number in range(2, len(UPDATES) + 1):
                await place.add(handle, number)
            await place.finish(handle)
            assert handle.restarts == 1
        finally:
            handle.close()

    patience, told, records = worker.ANSWER_SECONDS, list[int](), LosingRecords()
    asyncio.run(scenario())

    assert place.holds_the_sum()
    assert told == [2]
    # also of what goes over the socket it is heard how soon it began
    assert records.ways == ["socket"] * len(UPDATES)
    assert [line.descriptor for line in records.lines] == [None]


def test_where_no_worker_can_be_started_its_line_is_closed(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    monkeypatch.setattr(worker.sys, "executable", "/nowhere/python")  # type: ignore[attr-defined]
    records = Records()

    async def scenario() -> None:
        handle = WorkerHandle(notices=records)
        with pytest.raises(worker.WorkerLostError):
            await place.add(handle, 1)
        handle.close()

    asyncio.run(scenario())

    assert [line.descriptor for line in records.lines] == [None] * worker.MOST_DEATHS


# -- in the worker ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mapped(place: Place) -> Worker:
    """One that has the sum and the region mapped, and the first update in."""
    it = Worker()
    it.do(place.begin, [place.sum])
    assert isinstance(it.do(Add(1, 1, 0, keep_mapped=True), [place.region]), Done)
    return it


def second(place: Place, offset: int = AT) -> Notice:
    return Notice(1, 2, file_name(place.region), offset, 0)


def test_a_worker_lets_go_of_what_it_was_told_of_when_it_is_in(place: Place, mapped: Worker) -> None:
    assert isinstance(mapped.take(second(place)), Done)

    assert held_ranges(place.region, AT * len(UPDATES)) == []


def test_a_worker_reads_nothing_that_somebody_has_taken_meanwhile(place: Place, mapped: Worker) -> None:
    """As the next run of its gateway would, when it gives the slot away."""
    with os.fdopen(memory_files.open_for_writing(place.region), "r+b") as other:
        fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, UPDATE_BYTES, AT)
        assert place_is_held(place.region, AT)
        with pytest.raises(BlockingIOError):
            mapped.take(second(place))


@pytest.mark.parametrize("offset", [AT * len(UPDATES) - 8, AT * 100])
def test_a_notice_beyond_the_file_is_not_added(place: Place, mapped: Worker, offset: int) -> None:
    assert isinstance(mapped.take(second(place, offset)), Unfit)


def test_a_notice_of_a_file_that_is_not_mapped_is_answered(place: Place, mapped: Worker) -> None:
    assert mapped.take(Notice(1, 2, file_name(place.sum), 0, 0)) == Unmapped()


def test_a_notice_of_no_sum_ends_the_worker(place: Place, mapped: Worker) -> None:
    with pytest.raises(KeyError):
        mapped.take(Notice(2, 2, file_name(place.region), 0, 0))
