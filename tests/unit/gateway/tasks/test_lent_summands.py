"""Updates that another gateway of this host has lent, while a worker is adding them where they lie."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed
from tests.support.sites import Sites, eventually, party, start_gateways
from tests.support.summands import SHAPES, bits, exact_sum, masked, pairs_in, written

NAMES = ["host:0", "host:1", "host:2"]
SOURCES = [party(name) for name in NAMES]
ARBITER = party("arbiter:1")
UPDATES = masked(SHAPES, len(SOURCES), seed=8)
BODIES = [written(update, source, 1.0) for update, source in zip(UPDATES, SOURCES, strict=True)]
MEMORY = {"send_bytes": "8MiB", "receive_bytes": "8MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}


class Lenders:
    """A session of an arbiter at one gateway, and of others at one that lends; its worker can be stopped."""

    def __init__(self, sites: Sites, session: str, stack: ExitStack) -> None:
        self.sites, self.session = sites, session
        self.pool = stack.enter_context(ThreadPoolExecutor(2))
        self.arbiter = stack.enter_context(sites["a"].client(session, "arbiter:1"))
        self.hosts = [sites["b"].client(session, name) for name in NAMES]
        for host in self.hosts:
            stack.callback(host.close)
        self._stopped: int | None = None
        stack.callback(self.go_on)

    def push(self, number: int, tag: str) -> None:
        client: GatewayClient = self.hosts[number]
        lease = client.lease(len(BODIES[number]))
        lease.buffer[:] = BODIES[number]
        lease.commit("masked", tag, [ARBITER], "object")

    def ask(self, tag: str) -> Future[ReceivedSum | NotSummed]:
        return self.pool.submit(self.arbiter.get_sum, "masked", tag, SOURCES, timeout=30.0)

    def push_and_stop_over_the_first(self) -> Future[ReceivedSum | NotSummed]:
        """The sum of all three, whose first update is with a worker that does nothing."""
        for number in range(3):
            self.push(number, "warm")
        check(self.ask("warm"))
        (self._stopped,) = self.sites["a"].status()["sum_workers"]["processes"]
        os.kill(self._stopped, signal.SIGSTOP)
        for number in range(3):
            self.push(number, "t")
        eventually(lambda: self.lent() == 3)
        future = self.ask("t")
        eventually(lambda: [each for each in self.sites["a"].status()["sums"] if each["adding"]])
        return future

    def go_on(self) -> None:
        if self._stopped is not None:
            os.kill(self._stopped, signal.SIGCONT)
            self._stopped = None

    def lent(self) -> int:
        return sum(peer["lent_messages"] for peer in self.sites["b"].status()["peers"])


@pytest.fixture
def lenders(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lenders]:
    layout = {"a": ["arbiter:1"], "b": NAMES}
    # the one worker is stopped
    settings = {"shm": {"lend": True}, "aggregate": {"workers": 1}}
    with start_gateways(layout, tmp_path, memory=MEMORY, transport="shm", **settings) as sites, ExitStack() as stack:
        yield Lenders(sites, request.node.name, stack)


def check(future: Future[ReceivedSum | NotSummed]) -> None:
    """All are in, with the right bits."""
    summed = future.result(timeout=60)
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.weight, summed.reason) == ((0, 1, 2), 3.0, "")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))


def test_an_update_that_its_lender_wants_back_while_it_is_added_stays_whole_and_is_given_back_afterwards(
    lenders: Lenders,
) -> None:
    future = lenders.push_and_stop_over_the_first()
    # more than is free there: what waits is copied, what is being added is not
    wanted = lenders.pool.submit(lenders.hosts[0].lease, 7 << 20, timeout=30.0)
    eventually(lambda: lenders.lent() == 1)
    assert not wanted.done()
    lenders.go_on()

    check(future)
    wanted.result(timeout=30).release()
    eventually(lambda: lenders.lent() == 0)


def close_tasks(lenders: Lenders) -> None:
    for host in lenders.hosts:
        host.close()
    eventually(lambda: lenders.sites["b"].status()["tasks"] == 0)


def stop_gateway(lenders: Lenders) -> None:
    lenders.sites.runner.stop(lenders.sites["b"])
    eventually(lambda: not lenders.sites["a"].status()["peers"][0]["connected"])


@pytest.mark.parametrize("goes", [close_tasks, stop_gateway], ids=["task", "gateway"])
def test_a_lender_that_goes_while_its_update_is_added_changes_no_bit(
    lenders: Lenders, goes: Callable[[Lenders], Any]
) -> None:
    future = lenders.push_and_stop_over_the_first()
    goes(lenders)
    lenders.go_on()

    check(future)
