"""Sums whose gateway is killed, or stopped, and started again: they go on, with the same bits, and nothing is lost."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fedrdma_fate.client import connections
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import Sum, Summed
from fedrdma_fate.unix_sockets import close_all
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.fault.test_gateway_restarted import kill_keeper
from tests.fault.test_tasks_come_back import Doing
from tests.support.raw_task import Connection
from tests.support.sites import InProcesses, Site, Sites, eventually, party, runner_of, start_gateways
from tests.support.summands import bits, masked, pairs_in, summed_by_rank, written

ARBITER = party("arbiter:9")
SOURCES = [party(f"host:{number}") for number in range(4)]
SHAPES = ((200_001,), (3,), ())
"""Of several blocks, 3.2 MB."""
UPDATES = masked(SHAPES, len(SOURCES), seed=4)
MEMORY = {"send_bytes": "32MiB", "receive_bytes": "32MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
NAME = "masked"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """The arbiter's gateway, which adds by rank, for then the right bits are known, and that of the others."""
    with start_gateways(
        {"a": ["arbiter:9"], "b": [str(source) for source in SOURCES]},
        tmp_path_factory.mktemp("sums"),
        runner=InProcesses(),
        connected=False,
        memory=MEMORY,
        aggregate={"sums": True, "order": "rank"},
        timeouts={"drain": 1.0, "connect": 3.0},
    ) as running:
        yield running


class Job:
    """Everybody of a session."""

    def __init__(self, sites: Sites, session: str, stack: ExitStack) -> None:
        self.sites, self.session = sites, session
        self.arbiter = stack.enter_context(sites["a"].client(session, "arbiter:9"))
        self._hosts = [stack.enter_context(sites["b"].client(session, str(source))) for source in SOURCES]

    def push(self, number: int) -> None:
        body = written(UPDATES[number], SOURCES[number], float(number))
        host: GatewayClient = self._hosts[number]
        lease = host.lease(len(body))
        lease.buffer[:] = body
        lease.commit(NAME, "t", [ARBITER], "object")

    def asks(self) -> Doing:
        return Doing(self.arbiter.get_sum, NAME, "t", SOURCES, timeout=100)

    def added(self) -> int:
        """Updates that are in the sum, or with a task."""
        return len({event["source"] for event in self.sites["a"].events("get") if event["session"] == self.session})


@pytest.fixture
def job(sites: Sites, session: str) -> Iterator[Job]:
    sites.wait_until_connected()
    with ExitStack() as stack:
        yield Job(sites, session, stack)


def restart(sites: Sites, *, in_order: bool = False) -> None:
    end: Callable[[Site], None] = runner_of(sites).stop if in_order else runner_of(sites).kill
    end(sites["a"])
    runner_of(sites).start(sites["a"])


def check(summed: Any) -> None:
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.weight, summed.reason) == ((0, 1, 2, 3), 6.0, "")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(summed_by_rank(UPDATES))


@pytest.mark.parametrize("in_order", [False, True], ids=["killed", "stopped"])
def test_a_sum_whose_gateway_is_started_again_goes_on_with_those_that_are_in(
    sites: Sites, job: Job, *, in_order: bool
) -> None:
    asking = job.asks()
    for number in (0, 1):
        job.push(number)
    eventually(lambda: job.added() == 2)
    restart(sites, in_order=in_order)
    job.push(2)
    eventually(lambda: job.added() == 3)
    restart(sites, in_order=in_order)
    job.push(3)

    check(asking.result())


def test_a_gateway_that_is_killed_at_any_moment_of_a_sum_leaves_the_same_bits(sites: Sites, job: Job) -> None:
    chance = random.Random(job.session)
    asking = job.asks()
    for number in range(4):
        job.push(number)
        # while it comes, is added, is in
        time.sleep(chance.uniform(0, 0.05))
        restart(sites)

    check(asking.result())


def test_what_a_task_has_of_a_sum_stays_and_its_slot_comes_back(sites: Sites, job: Job) -> None:
    for number in range(4):
        job.push(number)
    before = sites["a"].pool("receive")["slots"]
    summed = job.asks().result()
    restart(sites)
    # it comes back
    job.arbiter.put_inline("back", "t", [SOURCES[0]], "bytes", b"")
    sites.wait_until_connected()
    held = sites["a"].pool("receive")["slots"]

    check(summed)
    del summed
    job.arbiter.put_inline("more", "t", [SOURCES[0]], "bytes", b"")
    eventually(lambda: sites["a"].pool("receive")["slots"] == held - 1)
    assert held - 1 <= before


def test_a_sum_that_its_task_did_not_get_is_asked_for_again(
    sites: Sites, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, lost = connections.call_for_descriptors, []

    def call(connection: socket.socket, request: Any, *rest: Any) -> Any:
        answer = original(connection, request, *rest)
        if isinstance(request, Sum) and not lost:
            lost.append(answer[0])
            close_all(answer[1])
            restart(sites)
            raise GatewayError(ErrorCode.GATEWAY_UNREACHABLE, "it was killed while it answered.")
        return answer

    monkeypatch.setattr(connections, "call_for_descriptors", call)
    for number in range(4):
        job.push(number)

    check(job.asks().result())
    assert isinstance(lost[0], Summed)


def test_where_its_memory_is_gone_too_whoever_asks_is_told_which_updates_are_lost(sites: Sites, job: Job) -> None:
    asking = job.asks()
    for number in (0, 1):
        job.push(number)
    eventually(lambda: job.added() == 2)
    runner_of(sites).kill(sites["a"])
    kill_keeper(sites["a"])
    runner_of(sites).start(sites["a"])

    with pytest.raises(FedRDMAError, match="in a sum") as caught:
        asking.result()
    assert caught.value.code is ErrorCode.MESSAGE_LOST


def test_a_task_that_ends_while_its_gateway_is_down_leaves_no_sum_behind(sites: Sites, session: str) -> None:
    with ExitStack() as stack:
        job = Job(sites, session, stack)
        sites.wait_until_connected()
        task = Connection(sites["a"], session, ARBITER)
        idle = sites["a"].pool("receive")["slots"]
        task.send(Sum(NAME, "t", tuple(SOURCES)))
        job.push(0)
        eventually(lambda: job.added() == 1)
        assert sites["a"].pool("receive")["slots"] == idle + 1
        runner_of(sites).kill(sites["a"])
        task.close()
        runner_of(sites).start(sites["a"])
        sites.wait_until_connected()

        eventually(lambda: sites["a"].pool("receive")["slots"] <= idle, 20)
