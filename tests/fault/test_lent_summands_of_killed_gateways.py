"""Updates that another gateway of this host has lent, which is killed while a worker is adding one where it lies."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from tests.fault.test_gateway_restarted import kill_keeper
from tests.fault.test_tasks_come_back import Doing
from tests.support.sites import InProcesses, Sites, eventually, party, runner_of, start_gateways
from tests.support.summands import SHAPES, bits, exact_sum, masked, pairs_in, written

NAMES = ["host:0", "host:1", "host:2"]
SOURCES = [party(name) for name in NAMES]
ARBITER = party("arbiter:1")
UPDATES = masked(SHAPES, len(SOURCES), seed=8)
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """The arbiter's gateway, and one that lends, as processes."""
    with (
        tempfile.TemporaryDirectory() as shared,
        start_gateways(
            {"a": ["arbiter:1"], "b": NAMES},
            tmp_path_factory.mktemp("lent-summands"),
            runner=InProcesses(),
            connected=False,
            memory={**MEMORY, "directory": shared},
            transport="shm",
            shm={"lend": True},
            # the one that is stopped
            aggregate={"workers": 1},
            timeouts={"drain": 1.0, "connect": 3.0},
        ) as running,
    ):
        yield running


class Job:
    """Everybody of a session; the arbiter's worker can be stopped."""

    def __init__(self, sites: Sites, session: str, stack: ExitStack) -> None:
        self.sites = sites
        self.arbiter = stack.enter_context(sites["a"].client(session, "arbiter:1"))
        self._hosts = [stack.enter_context(sites["b"].client(session, name)) for name in NAMES]
        self._stopped: int | None = None
        self.at_rest = self.slots()
        stack.callback(self.go_on)

    def slots(self) -> tuple[int, int]:
        """That are leased: of the lender's send region, and of the arbiter's receive region."""
        return self.sites["b"].pool("send")["slots"], self.sites["a"].pool("receive")["slots"]

    def push(self, *numbers: int, tag: str) -> None:
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            host: GatewayClient = self._hosts[number]
            lease = host.lease(len(body))
            lease.buffer[:] = body
            lease.commit("masked", tag, [ARBITER], "object")

    def ask(self, tag: str) -> Doing:
        return Doing(self.arbiter.get_sum, "masked", tag, SOURCES, timeout=100.0)

    def stops_over_the_first(self) -> Doing:
        """The sum of all three, lent, the first of which is with a worker that does nothing."""
        warm = self.ask("warm")
        self.push(0, 1, 2, tag="warm")
        check(warm.result())
        (self._stopped,) = self.sites["a"].status()["sum_workers"]["processes"]
        os.kill(self._stopped, signal.SIGSTOP)
        asking = self.ask("t")
        self.push(0, 1, 2, tag="t")
        eventually(lambda: sum(peer["lent_messages"] for peer in self.sites["b"].status()["peers"]) == 3)
        eventually(lambda: [each for each in self.sites["a"].status()["sums"] if each["adding"]])
        return asking

    def go_on(self) -> None:
        if self._stopped is not None:
            os.kill(self._stopped, signal.SIGCONT)
            self._stopped = None


@pytest.fixture
def job(sites: Sites, session: str) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(sites, session, stack)


def check(summed: Any) -> None:
    """All are in, with the right bits."""
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.weight, summed.reason) == ((0, 1, 2), 3.0, "")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))


@pytest.mark.parametrize(
    "is_back",
    [
        pytest.param(True, id="back before it is in"),
        pytest.param(False, id="back afterwards", marks=pytest.mark.sweep),
    ],
)
def test_a_lender_that_is_killed_while_its_update_is_added_changes_no_bit(
    sites: Sites, job: Job, *, is_back: bool
) -> None:
    asking = job.stops_over_the_first()
    runner_of(sites).kill(sites["b"])
    eventually(lambda: not sites["a"].connected())
    if is_back:
        # what is being read is given to nobody else by the next run
        runner_of(sites).start(sites["b"])
        sites.wait_until_connected()
    job.go_on()
    if not is_back:
        runner_of(sites).start(sites["b"])

    summed = asking.result()
    check(summed)
    del summed, asking
    eventually(lambda: job.slots() == job.at_rest)


@pytest.mark.sweep
def test_a_lender_whose_memory_goes_with_it_leaves_what_it_had_lent_whole(sites: Sites, job: Job) -> None:
    asking = job.stops_over_the_first()
    runner_of(sites).kill(sites["b"])
    kill_keeper(sites["b"])
    runner_of(sites).start(sites["b"])
    sites.wait_until_connected()
    job.go_on()

    # what is lent is mapped by who has it
    summed = asking.result()
    check(summed)
    del summed, asking
    eventually(lambda: job.slots() == job.at_rest)
