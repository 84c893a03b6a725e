"""Sums of which a party leaves, or whose job ends, and sites whose own jobs' sums are added in another order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.client.sessions import drop_session
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.sites import Sites, eventually, party, start_gateways
from tests.support.sum_orders import orders_of
from tests.support.summands import SHAPES, bits, exact_sum, masked, pairs_in, written

NAMES = [f"host:{number}" for number in range(4)]
SOURCES = [party(name) for name in NAMES]
ARBITER = party("arbiter:1")
UPDATES = masked(SHAPES, len(SOURCES), seed=13)
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "16MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
LONG_WAIT = 600.0
"""Seconds that no site waits in a test."""
ORDERS = {"a": "exact", "b": "rank", "c": "arrival"}


def settings(name: str) -> dict[str, Any]:
    """Each site adds its own jobs' sums in another order."""
    return {"aggregate": {"site_wait": LONG_WAIT, "order": ORDERS[name]}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    layout = {"a": ["arbiter:1"], "b": NAMES[:2], "c": NAMES[2:]}
    with start_gateways(layout, tmp_path_factory.mktemp("leave"), memory=MEMORY, of_site=settings) as running:
        yield running


class Session:
    """A session in which everybody has a task."""

    def __init__(self, sites: Sites, name: str, stack: ExitStack) -> None:
        self.sites, self.name = sites, name
        self._pool = stack.enter_context(ThreadPoolExecutor(1))
        self.arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self.hosts: list[GatewayClient] = [
            stack.enter_context(sites["b" if number < 2 else "c"].client(name, host))
            for number, host in enumerate(NAMES)
        ]

    def push(self, *numbers: int) -> None:
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            lease = self.hosts[number].lease(len(body))
            lease.buffer[:] = body
            lease.commit("masked", "t", [ARBITER], "object")

    def ask(self) -> Future[ReceivedSum | NotSummed]:
        """And wait until both sites have orders."""
        future = self._pool.submit(self.arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0)
        for site in "bc":
            eventually(lambda site=site: orders_of(self.sites[site], self.name, "a") == 1)
        return future


@pytest.fixture
def session(sites: Sites, request: pytest.FixtureRequest) -> Iterator[Session]:
    with ExitStack() as stack:
        yield Session(sites, request.node.name, stack)


def test_sites_add_as_the_arbiters_asks_whatever_their_own_order_is(session: Session) -> None:
    future = session.ask()
    session.push(3, 0, 2, 1)
    summed = future.result(60)

    assert isinstance(summed, ReceivedSum)
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))
    delivered = [each["name"] for each in session.sites["a"].events("delivered") if each["session"] == session.name]
    assert delivered == ["masked (sum of a site)"] * 2


@pytest.mark.parametrize("pushed", [(0, 1, 2), (0, 2)], ids=["a sum of the other site is in", "nothing is in"])
def test_a_job_that_is_ended_at_a_partys_site_ends_the_sum_at_once_and_nothing_stays_kept_back(
    session: Session, pushed: tuple[int, ...]
) -> None:
    future = session.ask()
    session.push(*pushed)
    drop_session(session.sites["c"].address, session.name)

    with pytest.raises(FedRDMAError) as caught:
        future.result(30)
    assert caught.value.code is ErrorCode.SESSION_ENDED
    for site in "bc":
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_a_party_that_only_leaves_is_waited_for_as_by_a_get_and_may_come_back(sites: Sites, session: Session) -> None:
    future = session.ask()
    session.push(0, 1, 2)
    session.hosts[3].leave()
    with sites["c"].client(session.name, NAMES[3]) as back:
        session.hosts[3] = back
        session.push(3)
        summed = future.result(60)

    assert isinstance(summed, ReceivedSum)
    assert (summed.parties_in, summed.reason) == ((0, 1, 2, 3), "")
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))


def test_a_party_that_leaves_when_its_update_is_kept_back_is_in_the_sum(session: Session) -> None:
    future = session.ask()
    session.push(0, 1, 3)
    session.hosts[3].leave()
    session.push(2)
    summed = future.result(60)

    assert isinstance(summed, ReceivedSum)
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))
