"""Sums of sites whose gateways are killed, at the site or the arbiter: each party counts once, with the same bits."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from tests.fault.test_tasks_come_back import Doing
from tests.support.sites import InProcesses, Sites, eventually, log_of, party, runner_of, start_gateways
from tests.support.sum_orders import orders_of
from tests.support.summands import bits, exact_sum, masked, pairs_in, written

ARBITER = party("arbiter:9")
EACH = 4
SOURCES = [party(f"host:{number}") for number in range(2 * EACH)]
SHAPES = ((200_001,), (3,), ())
"""Of several blocks, 3.2 MB."""
UPDATES = masked(SHAPES, len(SOURCES), seed=4)
MEMORY = {"send_bytes": "48MiB", "receive_bytes": "64MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
NAME = "masked"
SITE_SUM = f"{NAME} (sum of a site)"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """The arbiter's gateway, and those of two sites."""
    hosts = [str(source) for source in SOURCES]
    with start_gateways(
        {"a": ["arbiter:9"], "b": hosts[:EACH], "c": hosts[EACH:]},
        tmp_path_factory.mktemp("site-sums"),
        runner=InProcesses(),
        connected=False,
        memory=MEMORY,
        aggregate={"site_sums": True, "site_wait": 600.0},
        timeouts={"drain": 1.0, "connect": 3.0},
    ) as running:
        yield running


@pytest.fixture
def sites(three: Sites) -> Sites:
    for site in three.values():
        if site.name not in runner_of(three).processes:
            runner_of(three).start(site)
    three.wait_until_connected()
    return three


class Job:
    """Everybody of a session."""

    def __init__(self, sites: Sites, session: str, stack: ExitStack) -> None:
        self.sites, self.session = sites, session
        self.arbiter = stack.enter_context(sites["a"].client(session, "arbiter:9"))
        self._hosts = [
            stack.enter_context(sites["b" if number < EACH else "c"].client(session, str(source)))
            for number, source in enumerate(SOURCES)
        ]

    def push(self, number: int, body: bytes | None = None) -> None:
        body = written(UPDATES[number], SOURCES[number], float(number)) if body is None else body
        host: GatewayClient = self._hosts[number]
        lease = host.lease(len(body))
        lease.buffer[:] = body
        lease.commit(NAME, "t", [ARBITER], "object")

    def asks(self) -> Doing:
        doing = Doing(self.arbiter.get_sum, NAME, "t", SOURCES, timeout=100)
        for site in "bc":
            eventually(lambda site=site: self.orders_at(site) == 1, 20)
        return doing

    def orders_at(self, site: str) -> int:
        """By the arbiter's, of this session."""
        return orders_of(self.sites[site], self.session, "a")

    def site_sums_come(self) -> int:
        events = self.sites["a"].events("delivered")
        return sum((each["session"], each["name"]) == (self.session, SITE_SUM) for each in events)

    def added(self) -> int:
        """Updates that are in the sum."""
        return len({event["source"] for event in self.sites["a"].events("get") if event["session"] == self.session})

    def spoil(self, number: int) -> bytes:
        """Push an update with a number that is none, and wait until the arbiter's gateway has left it out."""
        pairs = [(fraction.copy(), whole.copy()) for fraction, whole in UPDATES[number]]
        pairs[0][0][-1] = math.nan
        body, key = written(pairs, SOURCES[number], float(number)), f"{NAME}/t in {self.session}"
        self.push(number, body)
        eventually(lambda: f"{key} is not added, and left to FATE: {SOURCES[number]}" in log_of(self.sites["a"]), 20)
        return body


@pytest.fixture
def job(sites: Sites, session: str) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(sites, session, stack)


def restart(sites: Sites, name: str) -> None:
    runner_of(sites).kill(sites[name])
    runner_of(sites).start(sites[name])


def check(summed: Any) -> None:
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.weight, summed.reason) == (tuple(range(8)), 28.0, "")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))


def check_without(number: int, summed: Any) -> None:
    """The sum of all but one, which was left out."""
    assert isinstance(summed, ReceivedSum), summed
    others = tuple(each for each in range(8) if each != number)
    assert (summed.parties_in, summed.weight) == (others, 28.0 - number)
    assert summed.reason.startswith(f"{SOURCES[number]}: ")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum([UPDATES[each] for each in others], SHAPES))


def test_a_site_that_is_killed_while_it_adds_sends_each_party_alone(sites: Sites, job: Job) -> None:
    asking = job.asks()
    for number in (0, 1, 2):
        job.push(number)
    restart(sites, "b")
    for number in (3, 4, 5, 6, 7):
        job.push(number)

    check(asking.result())


def test_an_arbiters_gateway_that_is_killed_when_one_sum_is_in_goes_on(sites: Sites, job: Job) -> None:
    asking = job.asks()
    for number in (0, 1, 2, 3):
        job.push(number)
    eventually(lambda: job.added() == 4, 20)
    assert job.site_sums_come() == 1
    restart(sites, "a")
    for number in (4, 5, 6, 7):
        job.push(number)

    check(asking.result())
    for site in "bc":
        eventually(lambda site=site: sites[site].pool("send")["slots"] == 0, 20)


@pytest.mark.parametrize("killed", ["a", "b"], ids=["the arbiter's", "the site's"])
def test_a_sum_that_an_update_was_left_out_of_goes_on_without_it_whoever_is_killed(
    sites: Sites, job: Job, killed: str
) -> None:
    asking = job.asks()
    job.push(0)
    bad = job.spoil(1)
    restart(sites, killed)
    sites.wait_until_connected()
    for number in (2, 3, 4, 5, 6, 7):
        job.push(number)

    check_without(1, asking.result())
    assert bytes(job.arbiter.get(NAME, "t", SOURCES[1], timeout=20).buffer) == bad
    for site in "bc":
        eventually(lambda site=site: sites[site].pool("send")["slots"] == 0, 20)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_killed_at_any_moment_each_party_counts_once(sites: Sites, job: Job, seed: int) -> None:
    chance = random.Random(seed)
    asking = job.asks()
    order = chance.sample(range(8), 8)
    for number in order:
        job.push(number)
        if number in order[2::3]:
            # while it comes, is added, is sent, is in
            time.sleep(chance.uniform(0, 0.05))
            restart(sites, chance.choice("abc"))

    check(asking.result())
