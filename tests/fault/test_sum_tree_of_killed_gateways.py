"""A tree of sites whose gateways are killed, at any level: each party counts once, with the same bits."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from tests.fault.test_tasks_come_back import Doing
from tests.support.sites import InProcesses, Sites, eventually, party, runner_of, start_all, start_gateways
from tests.support.sum_orders import orders_of
from tests.support.summands import bits, exact_sum, masked, pairs_in, written

ARBITER = party("arbiter:9")
SOURCES = [party(f"host:{number}") for number in range(6)]
SHAPES = ((200_001,), (3,), ())
"""Of several blocks, 3.2 MB."""
UPDATES = masked(SHAPES, len(SOURCES), seed=8)
MEMORY = {"send_bytes": "48MiB", "receive_bytes": "64MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
NAME = "masked"
SITE_SUM = f"{NAME} (sum of a site)"
SITE_OF = dict(zip(SOURCES, "ppllmm", strict=True))
BESIDE = {"l": "p", "m": "p"}
"""Two sites below a parent."""
BELOW = {"l": "p", "m": "l"}
"""One below the other: a tree of three levels."""


def start(directory: Path, parents: Mapping[str, str]) -> AbstractContextManager[Sites]:
    """The arbiter's gateway, a parent, and two sites."""
    hosts = [str(source) for source in SOURCES]
    return start_gateways(
        {"a": ["arbiter:9"], "p": hosts[:2], "l": hosts[2:4], "m": hosts[4:]},
        directory,
        runner=InProcesses(),
        connected=False,
        memory=MEMORY,
        of_site=lambda name: {"aggregate": {"site_wait": 600.0, "parent": parents.get(name)}},
        timeouts={"drain": 1.0, "connect": 3.0},
    )


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with start(tmp_path_factory.mktemp("sum-tree"), BESIDE) as running:
        yield running


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with start(tmp_path_factory.mktemp("levels"), BELOW) as running:
        yield running


@pytest.fixture
def sites(four: Sites) -> Sites:
    start_all(four)
    return four


class Job:
    """Everybody of a session."""

    def __init__(self, sites: Sites, session: str, stack: ExitStack, parents: Mapping[str, str] = BESIDE) -> None:
        self.sites, self.session, self._parents = sites, session, parents
        self.arbiter = stack.enter_context(sites["a"].client(session, "arbiter:9"))
        self._hosts = [stack.enter_context(sites[SITE_OF[each]].client(session, str(each))) for each in SOURCES]

    def push(self, *numbers: int) -> None:
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            host: GatewayClient = self._hosts[number]
            lease = host.lease(len(body))
            lease.buffer[:] = body
            lease.commit(NAME, "t", [ARBITER], "object")

    def asks(self) -> Doing:
        doing = Doing(self.arbiter.get_sum, NAME, "t", SOURCES, timeout=100)
        for site, by in (("p", "a"), *self._parents.items()):
            eventually(lambda site=site, by=by: self.orders_at(site, by) == 1, 30)
        return doing

    def orders_at(self, site: str, by: str) -> int:
        """Of this session."""
        return orders_of(self.sites[site], self.session, by)

    def site_sums_come(self, site: str) -> int:
        events = self.sites[site].events("delivered")
        return sum((each["session"], each["name"]) == (self.session, SITE_SUM) for each in events)

    def added(self) -> int:
        """Updates that are in the sum."""
        return len({event["source"] for event in self.sites["a"].events("get") if event["session"] == self.session})

    def check(self, doing: Doing) -> None:
        summed = doing.result()
        assert isinstance(summed, ReceivedSum), summed
        assert (summed.parties_in, summed.weight, summed.reason) == (tuple(range(6)), 15.0, "")
        assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))
        for site in "plm":
            eventually(lambda site=site: self.sites[site].pool("send")["slots"] == 0, 30)
            eventually(lambda site=site: self.sites[site].status()["mailbox"]["messages"] == 0, 30)


@pytest.fixture
def job(sites: Sites, session: str) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(sites, session, stack)


@pytest.fixture
def deep(levels: Sites, session: str) -> Iterator[Job]:
    """That of the tree of three levels."""
    start_all(levels)
    with ExitStack() as stack:
        yield Job(levels, session, stack, BELOW)


def restart(sites: Sites, name: str) -> None:
    runner_of(sites).kill(sites[name])
    runner_of(sites).start(sites[name])


def test_a_parent_that_is_killed_with_a_childs_sum_in_its_own_loses_nothing(sites: Sites, job: Job) -> None:
    asking = job.asks()
    job.push(2, 3, 0)
    eventually(lambda: job.site_sums_come("p") == 1, 20)
    restart(sites, "p")
    job.push(1, 4, 5)

    job.check(asking)


@pytest.mark.sweep
def test_a_parent_that_is_gone_is_done_without(sites: Sites, job: Job) -> None:
    asking = job.asks()
    job.push(0, 1)
    sites_below = (2, 3, 4)
    job.push(*sites_below)
    runner_of(sites).kill(sites["p"])
    job.push(5)
    # what is below it comes while it is gone
    eventually(lambda: job.added() == 4, 30)
    runner_of(sites).start(sites["p"])

    job.check(asking)


@pytest.mark.sweep
def test_an_arbiters_gateway_that_is_killed_when_the_parents_sum_is_in_goes_on(sites: Sites, job: Job) -> None:
    asking = job.asks()
    job.push(*range(6))
    eventually(lambda: job.site_sums_come("a") == 1, 20)
    restart(sites, "a")

    job.check(asking)


def push_while_some_are_killed(sites: Sites, job: Job, seed: int) -> None:
    """All parties in some order, after every other one a gateway; in the end each counts once."""
    chance = random.Random(seed)
    asking = job.asks()
    order = chance.sample(range(6), 6)
    for number in order:
        job.push(number)
        if number in order[1::2]:
            # while it comes, is added, is sent, is passed on, is in
            time.sleep(chance.uniform(0, 0.05))
            restart(sites, chance.choice("aplm"))

    job.check(asking)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(8))
def test_whoever_is_killed_at_any_moment_each_party_counts_once(sites: Sites, job: Job, seed: int) -> None:
    push_while_some_are_killed(sites, job, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("is_back", [True, False], ids=["and is back", "and stays away"])
def test_the_middle_of_three_levels_that_is_killed_with_what_it_was_sent_loses_nothing(
    deep: Job, *, is_back: bool
) -> None:
    asking = deep.asks()
    deep.push(4, 5, 2)
    eventually(lambda: deep.site_sums_come("l") == 1, 20)
    runner_of(deep.sites).kill(deep.sites["l"])
    if is_back:
        runner_of(deep.sites).start(deep.sites["l"])
    deep.push(0, 1)
    # the top's own, by its order or alone, and what is below the middle, which goes alone
    eventually(lambda: deep.added() >= 4, 30)
    if not is_back:
        runner_of(deep.sites).start(deep.sites["l"])
    deep.push(3)

    deep.check(asking)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(4))
def test_whoever_of_three_levels_is_killed_at_any_moment_each_party_counts_once(deep: Job, seed: int) -> None:
    push_while_some_are_killed(deep.sites, deep, seed)
