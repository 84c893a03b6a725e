"""A sum whose last update is added while it comes: its gateway is killed, and the next goes on, with the same bits."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from fedrdma_fate.client import connections
from fedrdma_fate.client.client import ReceivedSum
from fedrdma_fate.client.protocol import Sum, Summed
from fedrdma_fate.engine.landing import LEAST_BYTES
from fedrdma_fate.unix_sockets import close_all
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.summand import ITEM_BYTES
from tests.fault.test_sums_of_killed_gateways import restart
from tests.fault.test_tasks_come_back import Doing
from tests.support.sites import InProcesses, Sites, eventually, party, start_gateways
from tests.support.summands import Pairs, bits, masked, pairs_in, written

ARBITER = party("arbiter:9")
SOURCES = [party(f"host:{number}") for number in range(2)]
SHAPES = ((LEAST_BYTES // ITEM_BYTES // 2 + 1000,),)
"""As short as one may be that is added while it comes."""
UPDATES = masked(SHAPES, len(SOURCES), seed=9)
MEMORY = {"send_bytes": "48MiB", "receive_bytes": "80MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}


def exact_sum() -> Pairs:
    """Fractions as integers of 52 bits behind the point."""
    fractions, wholes = zip(*(update[0] for update in UPDATES), strict=True)
    total = sum(np.rint(each * 2.0**52).astype(np.int64) for each in fractions)
    return [(np.asarray(total) * 2.0**-52, np.asarray(sum(wholes)))]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """The arbiter's gateway, and that of the others."""
    with start_gateways(
        {"a": [str(ARBITER)], "b": [str(source) for source in SOURCES]},
        tmp_path_factory.mktemp("last"),
        runner=InProcesses(),
        connected=False,
        memory=MEMORY,
        mode="fedrdma-x",
        transport="tcp",
        aggregate={"sums": True, "site_sums": False},
        timeouts={"drain": 1.0, "connect": 3.0},
    ) as running:
        yield running


class Job:
    """Everybody of a session."""

    def __init__(self, sites: Sites, session: str, stack: ExitStack) -> None:
        self.sites = sites
        self.arbiter = stack.enter_context(sites["a"].client(session, str(ARBITER)))
        self._hosts = [stack.enter_context(sites["b"].client(session, str(source))) for source in SOURCES]

    def asks(self) -> Doing:
        return Doing(self.arbiter.get_sum, "masked", "t", SOURCES, timeout=100)

    def push(self, number: int) -> None:
        body = written(UPDATES[number], SOURCES[number], float(number))
        lease = self._hosts[number].lease(len(body))
        lease.buffer[:] = body
        lease.commit("masked", "t", [ARBITER], "object")

    def first_is_in(self) -> None:
        self.push(0)
        eventually(lambda: any(each["added"] == 1 for each in self.sites["a"].status()["sums"]), 20)


@pytest.fixture
def job(sites: Sites, session: str) -> Iterator[Job]:
    sites.wait_until_connected()
    with ExitStack() as stack:
        yield Job(sites, session, stack)


def check(summed: Any) -> None:
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.weight, summed.reason) == ((0, 1), 1.0, "")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum())


def test_one_that_lies_where_its_total_went_is_given_again_by_the_next_run(
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
    asking = job.asks()
    job.first_is_in()
    job.push(1)

    check(asking.result())
    assert isinstance(lost[0], Summed)


def test_a_gateway_that_is_killed_while_the_last_one_comes_leaves_the_same_bits(sites: Sites, job: Job) -> None:
    asking = job.asks()
    job.first_is_in()
    job.push(1)
    time.sleep(random.Random(7).uniform(0, 0.05))
    restart(sites)

    check(asking.result())
