"""Sums at a gateway, with tasks that push masked updates and one that asks for their sum.

More than 500 lines: all of them share two pairs of gateways, which take longer to start than the tests to run.
"""

from __future__ import annotations

import asyncio
import errno
import io
import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest
from rich.console import Console

from fedrdma_fate.aggregate.accumulator import Accumulator
from fedrdma_fate.aggregate.arithmetic import Adder, adder_for
from fedrdma_fate.aggregate.checkpoint import read
from fedrdma_fate.aggregate.jobs import Add, Finish
from fedrdma_fate.aggregate.worker import OpenSum, WorkerHandle, WorkerLostError
from fedrdma_fate.cli.status import render
from fedrdma_fate.client import client as client_module
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed, Place, Sum
from fedrdma_fate.core.fold import Order
from fedrdma_fate.fate.sums import ExpectedSum
from fedrdma_fate.gateway import spilling
from fedrdma_fate.gateway.journal_records import Pulled, SumBegan, SumMerged, encode_record, encode_together
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks import sum_checkpoints, sum_slot, sums
from fedrdma_fate.memory.journal_file import MOST_RECORD_BYTES
from fedrdma_fate.memory.pool import Lease
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, MemoryPoolError
from fedrdma_fate.wire.frames import MOST_PARTIES, MessageKey, Party
from fedrdma_fate.wire.summand import MOST_ARRAYS, Plane, planes_of
from tests.support.raw_task import Connection
from tests.support.sites import InThread, Site, eventually, party, start_gateways
from tests.support.summands import SHAPES, Pairs, bits, exact_sum, masked, pairs_in, summed_by_rank, written

SOURCES = [party(f"host:{number}") for number in range(4)]
NAMES = [str(source) for source in SOURCES]
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
ORDERS = ["exact", "rank"]
UPDATES = masked(SHAPES, len(SOURCES), seed=3)
UPDATE = written(UPDATES[0], SOURCES[0])


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Site]]]:
    """For each order an arbiter's site, which serves two of the parties as well, and one of the others."""
    with ExitStack() as stack:
        made = {}
        for order in (*ORDERS, "arrival"):
            layout = {"a": ["arbiter:1", *NAMES[:2]], "b": NAMES[2:]}
            directory = tmp_path_factory.mktemp(order)
            made[order] = stack.enter_context(
                start_gateways(
                    layout,
                    directory,
                    memory=MEMORY,
                    # parties of b's that come one after the other hold nothing up
                    aggregate={"order": order, "checkpoints": str(directory / "sums"), "site_wait": 0.05},
                )
            )
        yield made


class Session:
    """A session in which everybody has a task."""

    def __init__(self, sites: dict[str, Site], name: str, stack: ExitStack) -> None:
        self.name = name
        self.arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self.site = sites["a"]
        self._runner: InThread = sites.runner  # type: ignore[attr-defined]
        self.hosts = [
            stack.enter_context(sites["a" if number < 2 else "b"].client(name, each))
            for number, each in enumerate(NAMES)
        ]

    def push(self, number: int, body: bytes | None = None, tag: str = "t") -> None:
        body = written(UPDATES[number], SOURCES[number], float(number)) if body is None else body
        client: GatewayClient = self.hosts[number]
        if len(body) < 60_000:
            client.put_inline("masked", tag, [party("arbiter:1")], "object", body)
            return
        lease = client.lease(len(body))
        lease.buffer[:] = body
        lease.commit("masked", tag, [party("arbiter:1")], "object")

    def get_sum(self, timeout: float = 20.0, tag: str = "t") -> ReceivedSum | NotSummed:
        return self.arbiter.get_sum("masked", tag, SOURCES, timeout=timeout)

    def whole_sum(self) -> ReceivedSum:
        summed = self.get_sum()
        assert isinstance(summed, ReceivedSum), summed
        return summed

    def why_no_sum(self) -> ErrorCode:
        # without the error itself: its frames would keep arrays mapped when the client is closed
        with pytest.raises(FedRDMAError) as caught:
            self.get_sum()
        return caught.value.code

    def waiting(self) -> int:
        """Messages of this session that wait at the arbiter's site."""

        async def count() -> int:
            assembly = self._runner.gateways["a"]._assembly
            assert assembly is not None
            return sum(each.key.session == self.name for each in assembly.context.mailbox.all_messages())

        return self._runner.run(count())

    def get(self, number: int) -> bytes:
        return bytes(self.arbiter.get("masked", "t", SOURCES[number], timeout=10).buffer)


@pytest.fixture
def make_session(sites: dict[str, dict[str, Site]], request: pytest.FixtureRequest) -> Iterator[Callable[..., Session]]:
    begun: set[str] = set()
    with ExitStack() as stack:
        numbers = iter(range(100))

        def make(order: str = "exact") -> Session:
            if order not in begun:
                # the sum of the test before may still be being written to disk, and has its slot until then
                eventually(lambda: not is_busy(sites[order]), 30)
                begun.add(order)
            return Session(sites[order], f"{request.node.name}-{next(numbers)}", stack)

        yield make


def is_busy(sites: dict[str, Site]) -> bool:
    """Whether the arbiter's site adds, or writes, a sum of any session."""
    tasks = sites.runner.gateways["a"]._assembly.tasks  # type: ignore[attr-defined]
    return bool(tasks.sums.progress() or tasks.sums._checkpoints._writing)


def sum_of(summed: ReceivedSum) -> Pairs:
    return pairs_in(summed.buffer, summed.shapes)


def test_a_sum_is_written_to_the_directory_for_checkpoints_and_its_slot_comes_back(
    make_session: Callable[..., Session], tmp_path_factory: pytest.TempPathFactory
) -> None:
    session = make_session()
    before = session.site.pool("receive")["slots"]
    for number in range(4):
        session.push(number)
    summed = session.whole_sum()
    expected = [fraction + whole for fraction, whole in sum_of(summed)]
    name = session.name

    def of_this(path: Path) -> bool:
        # the oldest go as others come
        with suppress(FileNotFoundError):
            return bool(read(path).of["session"] == name)
        return False

    directory = tmp_path_factory.getbasetemp()
    eventually(lambda: any(map(of_this, directory.glob("exact[0-9]*/sums/*.sum"))))
    (path,) = filter(of_this, directory.glob("exact[0-9]*/sums/*.sum"))
    found = read(path)
    assert [array.tobytes() for array in found.arrays] == [array.tobytes() for array in expected]
    assert (found.weight, found.parties) == (6.0, NAMES)
    assert (found.of["name"], found.of["order"]) == ("masked", "exact")
    del summed
    eventually(lambda: session.site.pool("receive")["slots"] == before)


def test_where_the_disk_for_checkpoints_is_full_the_sum_is_had_its_slot_comes_back_and_the_next_one_is_written(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    session, next_one = make_session(), make_session()
    for each in (session, next_one):
        for number in range(4):
            each.push(number)
    with monkeypatch.context() as full:
        full.setattr(sum_checkpoints, "write", is_full)
        summed = session.whole_sum()
        eventually(lambda: "No space left on device" in caplog.text)
    assert summed.parties_in == (0, 1, 2, 3)
    held = session.site.pool("receive")["slots"]
    del summed
    eventually(lambda: session.site.pool("receive")["slots"] == held - 1)
    caplog.set_level("INFO")
    next_one.whole_sum()
    eventually(lambda: "a sum of 4 updates was written to" in caplog.text)


def test_by_rank_a_sum_has_the_bits_of_adding_one_after_the_other_whatever_comes_first(
    make_session: Callable[..., Session],
) -> None:
    session = make_session("rank")
    with ThreadPoolExecutor(1) as pool:
        summed = pool.submit(session.whole_sum)
        for number in (3, 1, 0, 2):
            time.sleep(0.05)
            session.push(number)
        result = summed.result(timeout=20)

    assert bits(sum_of(result)) == bits(summed_by_rank(UPDATES))
    assert result.parties_in == (0, 1, 2, 3)
    assert result.weight == 6.0
    assert result.reason == ""


def test_an_exact_sum_has_the_same_bits_in_every_order_and_is_close_to_the_true_one(
    make_session: Callable[..., Session],
) -> None:
    found = []
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        session = make_session()
        with ThreadPoolExecutor(1) as pool:
            summed = pool.submit(session.whole_sum)
            for number in order:
                time.sleep(0.05)
                session.push(number)
            found.append(bits(sum_of(summed.result(timeout=20))))
    session = make_session()
    for number in range(4):
        session.push(number)
    together = sum_of(session.whole_sum())

    assert found[0] == found[1] == found[2] == bits(together)
    for (fraction, whole), (true_fraction, true_whole) in zip(together, summed_by_rank(UPDATES), strict=True):
        assert np.abs(fraction - true_fraction).max(initial=0) < 1e-14
        assert np.array_equal(whole, true_whole)


@pytest.mark.parametrize("pushed", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_in_the_order_of_arrival_a_sum_is_the_true_one_but_for_a_last_bit(
    make_session: Callable[..., Session], pushed: tuple[int, ...]
) -> None:
    session = make_session("arrival")
    for number in pushed:
        session.push(number)
    summed = session.whole_sum()

    assert summed.weight == 6.0
    for array, (fraction, whole) in enumerate(sum_of(summed)):
        assert np.array_equal(whole, sum(update[array][1] for update in UPDATES))
        true = sum(update[array][0].astype(np.longdouble) for update in UPDATES)
        assert np.all(np.abs(fraction - true) <= np.spacing(np.abs(true.astype(np.float64))))


@pytest.mark.parametrize("order", ORDERS)
def test_slots_go_back_as_updates_are_added_and_that_of_the_sum_when_its_arrays_die(
    make_session: Callable[..., Session], order: str
) -> None:
    session = make_session(order)
    for number in range(4):
        session.push(number)
    eventually(lambda: session.waiting() == 4)
    summed = session.whole_sum()

    eventually(lambda: session.site.pool("send")["slots"] == 0)
    assert session.waiting() == 0
    held = session.site.pool("receive")["slots"]
    del summed
    eventually(lambda: session.site.pool("receive")["slots"] == held - 1)


def changed(number: int, change: Callable[[Pairs], object], **how: Any) -> bytes:
    pairs = [(fraction.copy(), whole.copy()) for fraction, whole in UPDATES[number]]
    change(pairs)
    return written(pairs, SOURCES[number], **{"weight": float(number), **how})


def set_item(plane: int, value: float) -> Callable[[Pairs], None]:
    def change(pairs: Pairs) -> None:
        pairs[-1][plane][-1] = value

    return change


def nothing(_pairs: Pairs) -> None:
    """Leave them as they are."""


BAD = {
    "nan": (lambda: changed(3, set_item(0, np.nan)), "a number in it is none"),
    "infinite": (lambda: changed(3, set_item(1, np.inf)), "a number in it is none"),
    "large": (lambda: changed(3, set_item(1, 2.0**52)), "larger than a masked one"),
    "fraction-of-a-whole": (lambda: changed(3, set_item(1, 0.5)), "has a fraction"),
    "no-weight": (lambda: changed(3, nothing, weight=None), "it has no weight"),
    "negative-weight": (lambda: changed(3, nothing, weight=-1.0), "its weight is -1"),
    "no-number-for-a-weight": (lambda: changed(3, nothing, weight=float("nan")), "its weight is nan"),
    "other-shapes": (lambda: changed(3, lambda pairs: pairs.pop()), "other shapes"),
    "another-party": (lambda: written(UPDATES[3], SOURCES[0], 3.0), "says that it is of host:0"),
    "no-footer": (lambda: os.urandom(200_000), "no footer"),
    "small": (lambda: b"x" * 1000, "small"),
}


@pytest.mark.parametrize("bad", BAD)
def test_an_update_that_cannot_be_added_is_left_to_the_task_and_the_others_are_in_untouched(
    make_session: Callable[..., Session], bad: str
) -> None:
    make, reason = BAD[bad]
    body = make()
    session = make_session()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.whole_sum)
        for number in range(3):
            session.push(number)
        eventually(lambda: len([e for e in session.site.events("get") if e["session"].endswith(_name(session))]) == 3)
        session.push(3, body)
        summed = future.result(timeout=20)

    assert summed.parties_in == (0, 1, 2)
    assert summed.weight == 3.0
    assert reason in summed.reason
    assert session.get(3) == body
    other = make_session()
    for number in range(3):
        other.push(number)
    # an exact sum does not depend on what was taken out of it again
    expected = other.arbiter.get_sum("masked", "t", SOURCES[:3], timeout=20)
    assert isinstance(expected, ReceivedSum)
    for (fraction, whole), (its_fraction, its_whole) in zip(sum_of(summed), sum_of(expected), strict=True):
        assert fraction.tobytes() == its_fraction.tobytes()
        assert whole.tobytes() == its_whole.tobytes()


UNFIT = {
    "nan": lambda: changed(1, set_item(0, np.nan)),
    "other-shapes-and-nan": lambda: changed(1, pop_and_spoil),
    "fraction-of-a-whole": lambda: changed(1, set_item(1, 0.5)),
    "no-weight": lambda: changed(1, nothing, weight=None),
    "other-shapes": lambda: changed(1, lambda pairs: pairs.pop()),
    "another-party": lambda: written(UPDATES[1], SOURCES[0], 1.0),
    "no-footer": lambda: os.urandom(200_000),
}


@pytest.mark.parametrize(
    ("bad", "comes"), [("nan", 0), ("other-shapes-and-nan", 0), *((bad, 1) for bad in UNFIT if "and" not in bad)]
)
def test_the_sum_goes_on_without_an_update_that_cannot_be_added(
    make_session: Callable[..., Session], caplog: pytest.LogCaptureFixture, bad: str, comes: int
) -> None:
    body = UNFIT[bad]()
    session = make_session()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.whole_sum)
        for number in (1, 0) if not comes else (0, 1):
            session.push(number, body if number == 1 else None)
            if number == 1:
                eventually(lambda: "host:1" in caplog.text)
        for number in (2, 3):
            session.push(number)
        summed = future.result(timeout=20)

    assert (summed.parties_in, summed.weight) == ((0, 2, 3), 5.0)
    assert summed.reason.startswith("host:1: ")
    assert session.get(1) == body
    for array, (fraction, whole) in enumerate(sum_of(summed)):
        others = [update[array] for number, update in enumerate(UPDATES) if number != 1]
        assert np.abs(fraction - sum(each[0] for each in others)).max(initial=0) < 1e-14
        assert np.array_equal(whole, sum(each[1] for each in others))


def pop_and_spoil(pairs: Pairs) -> None:
    pairs.pop(0)
    set_item(0, np.nan)(pairs)


def test_by_rank_a_sum_is_given_up_with_the_first_that_cannot_be_added_for_the_order_is_all_there_is(
    make_session: Callable[..., Session],
) -> None:
    session = make_session("rank")
    for number in range(4):
        session.push(number, changed(number, nothing, weight=None) if number == 1 else None)
    summed = session.whole_sum()

    assert summed.parties_in == (0,)
    assert "host:1: it has no weight" in summed.reason
    for number in (1, 2, 3):
        session.get(number)


def _name(session: Session) -> str:
    return str(session.arbiter._membership.session)


def test_where_the_first_update_cannot_be_added_everything_is_left_to_the_task(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    bodies = [changed(number, set_item(0, np.nan)) for number in range(4)]
    for number, body in enumerate(bodies):
        session.push(number, body)

    assert isinstance(session.get_sum(), NotSummed)
    assert [session.get(number) for number in range(4)] == bodies


def test_an_update_of_which_some_is_missing_is_not_added(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]]
) -> None:
    session = make_session("rank")
    for number in range(4):
        session.push(number)
    eventually(lambda: session.waiting() == 4)
    runner = sites["rank"].runner  # type: ignore[attr-defined]

    async def lose_some() -> None:
        for message in runner.gateways["a"]._assembly.context.mailbox.all_messages():
            if message.key.source == SOURCES[2]:
                message.missing = ((4096, 8192),)

    runner.run(lose_some())
    summed = session.whole_sum()

    assert summed.parties_in == (0, 1)
    assert "host:2: some of it is missing" in summed.reason


def test_updates_that_were_spilled_are_added_from_their_files_with_the_same_bits(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]]
) -> None:
    quiet, session = make_session(), make_session()
    for number in range(4):
        quiet.push(number)
    expected = bits(sum_of(quiet.whole_sum()))
    for number in range(4):
        session.push(number)
    runner = sites["exact"].runner  # type: ignore[attr-defined]
    context = runner.gateways["a"]._assembly.context

    async def of_this() -> list[Message]:
        # where no other comes meanwhile
        return [each for each in context.mailbox.all_messages() if each.key.session == _name(session)]

    eventually(lambda: len(runner.run(of_this())) == 4)

    async def spill_two() -> None:
        for message in (await of_this())[:2]:
            message.moving = asyncio.create_task(spilling._spill(context, message))
            await message.moving

    runner.run(spill_two())
    assert [message.spilled is not None for message in runner.run(of_this())].count(True) == 2

    assert bits(sum_of(session.whole_sum())) == expected
    eventually(lambda: session.site.status()["mailbox"]["spilled_bytes"] == 0)


def test_updates_that_are_lent_are_added_where_they_lie_with_the_same_bits_and_go_back_to_their_lender(
    make_session: Callable[..., Session], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    quiet = make_session()
    for number in range(4):
        quiet.push(number)
    expected = bits(sum_of(quiet.whole_sum()))
    layout = {"a": ["arbiter:1", *NAMES[:2]], "b": NAMES[2:]}
    with ExitStack() as stack:
        memory = {**MEMORY, "directory": str(tmp_path)}
        sites = stack.enter_context(
            start_gateways(layout, tmp_path, memory=memory, transport="shm", shm={"lend": True})
        )
        session = Session(sites, request.node.name, stack)
        for number in range(4):
            session.push(number)
        eventually(lambda: sum(peer["lent_messages"] for peer in sites["b"].status()["peers"]) == 2)

        assert bits(sum_of(session.whole_sum())) == expected
        eventually(lambda: sites["b"].pool("send")["slots"] == 0)


def sum_of_local(session: Session) -> ReceivedSum:
    """Of the two whose updates lie in send memory, so that receive memory is needed for the sum alone."""
    summed = session.arbiter.get_sum("masked", "t", SOURCES[:2], timeout=20)
    assert isinstance(summed, ReceivedSum), summed
    return summed


def test_without_room_to_add_up_in_a_sum_waits_and_shows_for_what_and_goes_on_when_there_is_some(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, session = make_session(), make_session()
    for each in (quiet, session):
        for number in (0, 1):
            each.push(number)
    expected = bits(sum_of(sum_of_local(quiet)))
    runner = sites["exact"].runner  # type: ignore[attr-defined]
    pool = runner.gateways["a"]._assembly.context.receive_pool
    take = pool._take

    async def lease() -> Lease:
        found: Lease | None = pool.lease(1, "what a task holds")
        assert found is not None
        return found

    async def give_room(leased: Lease) -> None:
        pool._take = take
        # who waits looks again when something comes back
        leased.release()

    def shown() -> Any:
        return [each for each in session.site.status()["sums"] if each["session"] == _name(session)]

    # what tests before have left here would make room
    monkeypatch.setattr(spilling, "_to_spill", lambda *_: None)
    leased = runner.run(lease())
    monkeypatch.setattr(pool, "_take", lambda *_: None)
    with ThreadPoolExecutor(1) as waiting:
        try:
            future = waiting.submit(sum_of_local, session)
            (found,) = eventually(lambda: [each for each in shown() if each["awaited_bytes"]])
            assert found["awaited_bytes"] > len(UPDATE)
            assert found["added"] == 0
            (line,) = [line for line in plain(render(session.site.status())) if _name(session)[:20] in line]
            assert "waits for 1.8 MiB of receive memory, to add up in" in line
        finally:
            runner.run(give_room(leased))
        assert bits(sum_of(future.result(timeout=20))) == expected
    assert shown() == []


def test_where_there_is_no_room_to_add_up_in_for_long_all_is_left_to_the_task(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sum_slot, "ROOM_SECONDS", 0.05)
    session = make_session()
    runner = sites["exact"].runner  # type: ignore[attr-defined]
    pool = runner.gateways["a"]._assembly.context.receive_pool
    monkeypatch.setattr(pool, "_take", lambda *_: None)
    for number in (0, 1):
        session.push(number)
    answer = session.arbiter.get_sum("masked", "t", SOURCES[:2], timeout=20)

    assert isinstance(answer, NotSummed)
    assert "no room for the sum" in answer.reason
    assert [session.get(number) for number in (0, 1)] == [
        written(UPDATES[number], SOURCES[number], float(number)) for number in (0, 1)
    ]


def test_by_rank_what_is_no_number_is_passed_on_as_fate_does(make_session: Callable[..., Session]) -> None:
    session = make_session("rank")
    for number in range(4):
        session.push(number, changed(number, set_item(0, np.nan) if number == 2 else nothing))

    assert np.isnan(sum_of(session.whole_sum())[-1][0][-1])


def test_a_sum_that_does_not_come_in_time_names_who_is_missing(make_session: Callable[..., Session]) -> None:
    session = make_session()
    for number in (0, 1, 3):
        session.push(number)

    with pytest.raises(FedRDMAError, match=r"1 of 4 updates did not come.*host:2") as caught:
        session.get_sum(timeout=0.5)
    assert caught.value.code is ErrorCode.PULL_TIMEOUT


def test_status_metrics_and_trace_tell_of_a_sum_under_way_and_of_who_is_missing(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]]
) -> None:
    session = make_session("rank")
    name = _name(session)
    # those of a pytest run before
    counts = metrics_of(sites["rank"])
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.whole_sum)
        for number in (0, 3):
            session.push(number)

        def shown() -> Any:
            return [each for each in session.site.status()["sums"] if each["session"] == name]

        (found,) = eventually(lambda: [each for each in shown() if (each["added"], each["waiting"]) == (1, 1)])
        assert (found["order"], found["parties"], found["party"], found["adding"]) == ("rank", 4, "arbiter:1", None)
        assert (found["missing"], found["first_missing"]) == (2, ["host:1", "host:2"])
        assert found["update_bytes"] > 1_000_000
        assert 0 < found["seconds"] < 60
        under_way = metrics_of(sites["rank"])
        for state, count in (("in", 1), ("waiting", 1), ("missing", 2)):
            assert under_way[f'fedrdma_sum_updates{{state="{state}"}}'] == count
        assert under_way["fedrdma_longest_sum_seconds"] > 0
        document = session.site.status()
        workers = document["sum_workers"]
        assert found["worker"] in workers["processes"]
        assert (found["site_sums"], workers["by_estimate"]) == (0, True)
        assert 1 <= workers["wanted"] <= workers["most"]
        assert workers["seconds_per_update"] > 0
        assert workers["queue"] == pytest.approx(workers["arrivals_per_second"] * workers["seconds_per_update"])
        text = "\n".join(plain(render(document)))
        assert "1 of 4, rank" in text
        assert "2: host:1, host:2" in text
        assert f"wanted {workers['wanted']} of {workers['most']};" in text
        for number in (1, 2):
            session.push(number)
        summed = future.result()

    assert shown() == []
    after = metrics_of(sites["rank"])
    bytes_each = len(summed.buffer)
    updates, added = 'fedrdma_added_updates_total{order="rank"}', 'fedrdma_added_bytes_total{order="rank"}'
    assert after[updates] - counts.get(updates, 0) == 4
    assert after[added] - counts.get(added, 0) == 4 * bytes_each
    assert after['fedrdma_addition_seconds_count{order="rank"}'] == after[updates]
    assert after['fedrdma_update_wait_seconds_count{order="rank"}'] == after[updates]
    # two of them have waited for others
    assert after['fedrdma_update_wait_seconds_sum{order="rank"}'] > 0
    assert after['fedrdma_notice_seconds_count{way="socket"}'] == after[updates]
    (event,) = [each for each in session.site.events("summed") if each["session"] == name]
    assert (event["order"], event["parties"], event["added"], event["reason"]) == ("rank", 4, 4, "")
    assert event["bytes"] == bytes_each


def metrics_of(sites: dict[str, Site]) -> dict[str, float]:
    runner = sites.runner  # type: ignore[attr-defined]
    lines = runner.gateways["a"]._assembly.context.metrics.render().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def plain(shown: Any) -> list[str]:
    console = Console(width=250, file=io.StringIO(), color_system=None)
    console.print(shown)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_a_sum_can_be_asked_for_once(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    for number in range(4):
        session.push(number)
    session.whole_sum()

    with pytest.raises(FedRDMAError) as caught:
        session.get_sum()
    assert caught.value.code is ErrorCode.DUPLICATE_PULL


def no_descriptor() -> NoReturn:
    raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, "no descriptor is left", "Let it have more.")


def cannot_map(_own: object, descriptor: int, *_args: object, **_named: object) -> NoReturn:
    os.close(descriptor)
    no_descriptor()


_locate = Message.locate


def locate_updates_only(message: Message) -> tuple[Place, int, int]:
    """No descriptor is left when the sum is to be handed over."""
    is_update = message.total_bytes >= len(written(UPDATES[0], SOURCES[0], 0.0))
    return _locate(message) if is_update else no_descriptor()


@pytest.mark.parametrize(
    ("whose", "name", "instead"),
    [(client_module, "_mapped", cannot_map), (Message, "locate", locate_updates_only)],
    ids=["task", "gateway"],
)
def test_a_sum_for_which_there_is_no_descriptor_waits_for_the_task_to_ask_again(
    make_session: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    whose: object,
    name: str,
    instead: Callable[..., object],
) -> None:
    session = make_session()
    for number in range(4):
        session.push(number)
    eventually(lambda: session.waiting() == 4)
    with monkeypatch.context() as without:
        without.setattr(whose, name, instead)
        assert [session.why_no_sum() for _ in range(2)] == [ErrorCode.REGION_UNAVAILABLE] * 2
    summed = session.whole_sum()
    assert summed.parties_in == (0, 1, 2, 3)
    other = make_session()
    for number in range(4):
        other.push(number)
    assert bits(sum_of(summed)) == bits(sum_of(other.whole_sum()))
    assert session.why_no_sum() is ErrorCode.DUPLICATE_PULL


def pulls(session: Session, tag: str = "t") -> ExpectedSum[bytes]:
    """What FATE's loop pulls from."""
    parties = [(source.role, source.party_id) for source in SOURCES]
    return ExpectedSum(session.arbiter, "masked", tag, parties, lambda message: bytes(message.buffer))


@pytest.mark.parametrize("ranks", [(3, 1, 0, 2), (2, 0), (1,)], ids=["another order", "some", "one"])
def test_whoever_is_pulled_first_brings_the_sum_the_others_nothing_and_none_of_them_again(
    make_session: Callable[..., Session], ranks: tuple[int, ...]
) -> None:
    session, other = make_session(), make_session()
    for number in range(4):
        session.push(number)
        other.push(number)
    expected = pulls(session)
    found = [expected.get((SOURCES[rank].role, SOURCES[rank].party_id), 20.0) for rank in ranks]

    assert None not in found
    first, *others = [each[0].load_object(None, None, "", "", NAMES[0]) for each in found if each is not None]  # type: ignore[union-attr]
    assert (bits(first[0]), first[1]) == (bits(sum_of(other.whole_sum())), 6.0)
    assert others == [([], None)] * (len(ranks) - 1)
    # twice: as FATE's own second pull of one message
    for rank in ranks:
        assert expected.get((SOURCES[rank].role, SOURCES[rank].party_id), 20.0) is None
        with pytest.raises(FedRDMAError) as caught:
            session.get(rank)
        assert caught.value.code is ErrorCode.DUPLICATE_PULL


def test_sums_of_one_name_and_tag_in_two_sessions_and_of_two_tags_in_one_do_not_mix(
    make_session: Callable[..., Session],
) -> None:
    first, second = make_session(), make_session()
    kinds = [(first, "t", 0), (second, "t", 1), (second, "another", 2)]
    made = [masked(SHAPES, len(SOURCES), seed=40 + seed) for *_, seed in kinds]
    with ThreadPoolExecutor(len(kinds)) as pool:
        futures = [pool.submit(session.get_sum, tag=tag) for session, tag, _ in kinds]
        eventually(
            lambda: sum(each["session"].startswith(_name(first)[:-1]) for each in first.site.status()["sums"]) == 3
        )
        for number in (2, 0, 3, 1):
            for session, tag, seed in kinds:
                session.push(number, written(made[seed][number], SOURCES[number], float(seed)), tag)
        results = [future.result(timeout=30) for future in futures]

    for summed, (*_, seed) in zip(results, kinds, strict=True):
        assert isinstance(summed, ReceivedSum), summed
        assert (summed.parties_in, summed.weight) == ((0, 1, 2, 3), 4.0 * seed)
        assert bits(sum_of(summed)) == bits(exact_sum(made[seed], SHAPES))


def test_a_second_job_of_the_same_session_gets_an_error_and_the_first_one_its_sum(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]]
) -> None:
    session = make_session()
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        future = pool.submit(session.whole_sum)
        eventually(lambda: [each for each in session.site.status()["sums"] if each["session"] == _name(session)])
        second = Session(sites["exact"], session.name, stack)
        session.push(0)
        assert second.why_no_sum() is ErrorCode.DUPLICATE_PULL
        # its updates are others, of the same names
        with pytest.raises(FedRDMAError) as caught:
            second.push(0, written(UPDATES[1], SOURCES[0], 9.0))
        assert caught.value.code is ErrorCode.DUPLICATE_PUSH
        for number in (1, 2, 3):
            session.push(number)
        summed = future.result(timeout=30)

    assert (summed.parties_in, summed.weight) == ((0, 1, 2, 3), 6.0)
    assert bits(sum_of(summed)) == bits(exact_sum(UPDATES, SHAPES))


def test_the_slot_of_a_sum_that_was_not_got_and_not_asked_for_again_goes_back_with_its_task(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    for number in range(4):
        session.push(number)
    with monkeypatch.context() as without:
        without.setattr(client_module, "_mapped", cannot_map)
        assert session.why_no_sum() is ErrorCode.REGION_UNAVAILABLE
    held = session.site.pool("receive")["slots"]
    session.arbiter.close()
    eventually(lambda: session.site.pool("receive")["slots"] == held - 1)


def test_a_sum_of_more_updates_than_a_gateway_awaits_at_a_time_is_left_to_fate(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "MOST_AWAITED", 7)
    first, second = make_session(), make_session()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(first.whole_sum)
        eventually(lambda: [each for each in first.site.status()["sums"] if each["session"] == first.name])
        refused = second.get_sum()
        for number in range(4):
            first.push(number)
        summed = future.result(timeout=30)

    assert isinstance(refused, NotSummed)
    assert not refused.expected
    assert "4 updates already, 7 is the limit" in refused.reason
    assert summed.parties_in == (0, 1, 2, 3)


def test_who_asks_again_while_the_sum_of_a_task_that_is_gone_is_added_to_waits_for_its_end_as_long_as_it_may(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]]
) -> None:
    warm, session = make_session(), make_session()
    for number in range(4):
        warm.push(number)
    warm.whole_sum()
    session.push(0)
    session.push(1)
    task = Connection(sites["exact"]["a"], _name(session), party("arbiter:1"))
    stopped = workers()
    for worker in stopped:
        os.kill(worker, signal.SIGSTOP)
    try:
        task.send(Sum("masked", "t", tuple(SOURCES)))
        eventually(lambda: [each for each in session.site.status()["sums"] if each["adding"] == NAMES[0]])
        task.close()
        with pytest.raises(FedRDMAError) as caught:
            session.get_sum(timeout=0.3)
        assert caught.value.code is ErrorCode.PULL_TIMEOUT
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES[1:], timeout=20)
            session.push(2)
            session.push(3)
            for worker in stopped:
                os.kill(worker, signal.SIGCONT)
            summed = again.result(timeout=30)
    finally:
        for worker in stopped:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)

    # the first was with the task that is gone, as what it had pulled would be
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.reason) == ((0, 1, 2), "")
    assert bits(sum_of(summed)) == bits(exact_sum(UPDATES[1:], SHAPES))


def test_a_sum_whose_names_are_too_long_for_the_journal_is_left_to_fate(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    with monkeypatch.context() as short:
        short.setattr(sums, "MOST_KEY_BYTES", 500)
        refused = session.get_sum()
    for number in range(4):
        session.push(number)

    assert isinstance(refused, NotSummed)
    assert "500 is the limit" in refused.reason
    assert session.whole_sum().parties_in == (0, 1, 2, 3)


def test_the_longest_sum_that_is_begun_is_a_record_that_the_next_run_reads() -> None:
    """A longer one would hide all that stands behind it."""
    each = max_key_bytes = 0
    keys: list[MessageKey] = []
    while max_key_bytes + each <= sums.MOST_KEY_BYTES and len(keys) < MOST_PARTIES:
        name, number = "\U0001f600" * 1024, len(keys)
        keys.append(MessageKey(name, name, name, Party("r" * 256, f"{number:0256}"), Party("a" * 256, "1" * 256)))
        each = len(msgspec.msgpack.encode(keys[-1]))
        max_key_bytes += each
    # as many arrays as a description of the most bytes can have, and more
    shapes = tuple((2**40,) * 6 for _ in range(MOST_ARRAYS))
    began = SumBegan(2**60, "c" * 1024, tuple(keys), "exact", shapes, 2**60, 2**60)
    assert len(encode_record(began)) < MOST_RECORD_BYTES
    # what a site's sum of all of them brings is written together, or not at all
    pulled = [Pulled(key) for key in keys]
    merged = SumMerged(2**60, tuple((number, 0.5) for number in range(len(keys))), "site", tuple(range(len(keys))))
    assert len(encode_together([*pulled, merged])) == 1


def test_a_task_that_goes_away_leaves_what_was_not_added_and_no_slot_behind(
    make_session: Callable[..., Session], sites: dict[str, dict[str, Site]]
) -> None:
    session = make_session("rank")
    before = session.site.pool("receive")["slots"]
    task = Connection(sites["rank"]["a"], _name(session), party("arbiter:1"))
    task.send(Sum("masked", "t", tuple(SOURCES)))
    session.push(0)
    eventually(lambda: session.site.pool("receive")["slots"] == before + 1)
    session.push(2)
    task.close()

    assert session.get(2) == written(UPDATES[2], SOURCES[2], 2.0)
    eventually(lambda: session.site.pool("receive")["slots"] == before)


@pytest.mark.parametrize("order", ORDERS)
def test_a_worker_that_is_killed_at_any_moment_leaves_the_same_bits(
    make_session: Callable[..., Session], order: str
) -> None:
    session = make_session(order)
    chance = random.Random(order)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.whole_sum)
        for number in range(4):
            session.push(number)
            # in the middle of its start, or of an addition; not three times in a row
            time.sleep(chance.uniform(0, 0.4))
            if number % 2:
                kill_workers()
        summed = future.result(timeout=30)

    assert summed.parties_in == (0, 1, 2, 3)
    quiet = make_session(order)
    for number in range(4):
        quiet.push(number)
    assert bits(sum_of(summed)) == bits(sum_of(quiet.whole_sum()))


def test_where_every_worker_is_killed_at_once_everything_is_left_to_the_task(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    for number in range(4):
        session.push(number)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.get_sum)
        while not future.done():
            kill_workers()
        answer = future.result()

    assert isinstance(answer, NotSummed)
    assert "3 times in a row" in answer.reason
    assert session.get(1) == written(UPDATES[1], SOURCES[1], 1.0)


class HalfWay:
    """A worker that ends three times in a row over one job, after so many blocks of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job: type[Add | Finish], number: int, blocks: int) -> None:
        self._job, self._number, self._blocks = job, number, blocks
        self._original = WorkerHandle.do
        monkeypatch.setattr(WorkerHandle, "do", self._do_for(self))

    @staticmethod
    def _do_for(half: HalfWay) -> Callable[..., Any]:
        async def do(handle: WorkerHandle, job: Any, target: OpenSum, descriptor: int | None = None) -> Any:
            if not isinstance(job, half._job) or (isinstance(job, Add) and job.number != half._number):
                return await half._original(handle, job, target, descriptor)
            half._some_of(job, target, descriptor)
            raise WorkerLostError("it ended 3 times in a row")

        return do

    def _some_of(self, job: Any, target: OpenSum, descriptor: int | None) -> None:
        begin = target.begin
        memory = memoryview(mmap.mmap(target.descriptor, begin.length, offset=begin.offset))
        adder = adder_for(Order(begin.order), begin.parties)
        accumulator = Dying(memory, list(planes_of(begin.shapes)), adder, self._blocks)
        with suppress(InterruptedError):
            if isinstance(job, Finish):
                accumulator.finish()
                return
            assert descriptor is not None
            accumulator.add(job.number, memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)), job.offset)


class Dying(Accumulator):
    """Has so many blocks left to live."""

    def __init__(self, memory: memoryview, planes: Sequence[Plane], adder: Adder, blocks: int) -> None:
        super().__init__(memory, planes, adder)
        self._left = blocks

    def _copy(self, block: int) -> None:
        if not self._left:
            raise InterruptedError
        self._left -= 1
        super()._copy(block)


def got(session: Session) -> tuple[Pairs, float, list[int]]:
    """What FATE's loop makes of it: the sum, the weight, and who came one by one with all of its bytes."""
    parties = [(source.role, source.party_id) for source in SOURCES]
    expected = ExpectedSum(session.arbiter, "masked", "t", parties, lambda message: bytes(message.buffer))
    total: Pairs = []
    weight, apart = 0.0, []
    for number, each in enumerate(parties):
        answer = expected.get(each, 20.0)
        if answer is None or isinstance(answer[0], bytes):
            body = session.get(number) if answer is None else answer[0]
            assert body == written(UPDATES[number], SOURCES[number], float(number))
            pairs, its_weight = UPDATES[number], float(number)
            apart.append(number)
        else:
            pairs, its_weight = answer[0].load_object(None, None, "", "", each)
        weight += its_weight or 0.0
        total = summed_by_rank([total, pairs]) if total and pairs else total or pairs
    return total, weight, apart


@pytest.mark.parametrize("order", [*ORDERS, "arrival"])
@pytest.mark.parametrize(("job", "number", "blocks"), [(Add, 2, 3), (Add, 4, 1), (Finish, 0, 2), (Add, 2, 0)])
def test_what_no_worker_can_finish_is_finished_by_the_task_with_the_same_bits(
    make_session: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    job: type[Add | Finish],
    number: int,
    blocks: int,
) -> None:
    quiet, session = make_session(order), make_session(order)
    for each in range(4):
        quiet.push(each)
    expected = quiet.whole_sum()
    for each in range(4):
        session.push(each)
    eventually(lambda: session.waiting() == 4)
    HalfWay(monkeypatch, job, number, blocks)
    total, weight, apart = got(session)

    assert weight == expected.weight
    if order != "arrival" and (order == "rank" or job is Finish or number == 4):
        assert bits(total) == bits(sum_of(expected))
    for (fraction, whole), (its, its_whole) in zip(total, sum_of(expected), strict=True):
        assert np.abs(fraction - its).max(initial=0) < 1e-13
        assert np.array_equal(whole, its_whole)
    assert len(apart) == (0 if job is Finish else 4 - number)


def test_an_update_that_is_half_in_and_cannot_be_added_is_taken_out_by_the_task_which_gets_it_alone(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    bad = changed(3, set_item(0, np.nan))
    HalfWay(monkeypatch, Add, 4, 2)
    with ThreadPoolExecutor(1) as pool:
        parties = [(source.role, source.party_id) for source in SOURCES]
        expected = ExpectedSum(session.arbiter, "masked", "t", parties, lambda message: bytes(message.buffer))
        first = pool.submit(expected.get, parties[0], 20.0)
        for number in range(3):
            session.push(number)
        eventually(lambda: len([e for e in session.site.events("get") if e["session"].endswith(_name(session))]) == 3)
        session.push(3, bad)
        summed = first.result()
    assert summed is not None
    assert expected.get(parties[3], 20.0) == (bad, len(bad))

    other = make_session()
    monkeypatch.undo()
    for number in range(3):
        other.push(number)
    alone = other.arbiter.get_sum("masked", "t", SOURCES[:3], timeout=20)
    assert isinstance(alone, ReceivedSum)
    pairs, weight = summed[0].load_object(None, None, "", "", parties[0])
    assert weight == alone.weight
    for (fraction, whole), (its, its_whole) in zip(pairs, sum_of(alone), strict=True):
        assert np.abs(fraction - its).max(initial=0) < 1e-14
        assert np.array_equal(whole, its_whole)


def kill_workers() -> None:
    for worker in workers():
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def workers() -> list[int]:
    """Processes of workers that this process has started."""
    found: list[int] = []
    for children in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        # a thread may have ended meanwhile
        with suppress(OSError):
            found += map(int, children.read_text().split())
    return [child for child in found if b"worker_process" in _command(child)]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
