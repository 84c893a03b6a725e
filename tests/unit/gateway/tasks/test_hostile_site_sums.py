"""A site whose gateway lies with sums of sites: what it sends unasked, twice, late or elsewhere is in no sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.wire.frames import MOST_PARTIES, MOST_SUM_ORDERS, Party, SumOrder, SumOrders
from fedrdma_fate.wire.site_sum import Part, SiteSum, encode_site_sum, site_sum_key
from fedrdma_fate.wire.summand import planes_bytes
from tests.support.sites import InThread, Sites, eventually, party, start_gateways
from tests.support.sum_orders import orders_of, wait_for_orders_to_end
from tests.support.summands import SHAPES, bits, masked, pairs_in, written

NAMES = [f"host:{number}" for number in range(4)]
SOURCES = [party(name) for name in NAMES]
HONEST, LYING = SOURCES[:2], SOURCES[2:]
ARBITER = party("arbiter:1")
UPDATES = masked(SHAPES, len(SOURCES), seed=11)
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "24MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
LONG_WAIT = 600.0
"""Seconds that no site waits in a test."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    layout = {"a": ["arbiter:1"], "b": NAMES[:2], "c": NAMES[2:]}
    aggregate = {"site_wait": LONG_WAIT}
    with start_gateways(layout, tmp_path_factory.mktemp("sites"), memory=MEMORY, aggregate=aggregate) as running:
        assert isinstance(running, Sites)
        yield running


class Session:
    """A session in which everybody has a task, and the gateway of the last two lies."""

    def __init__(self, sites: Sites, name: str, stack: ExitStack) -> None:
        self.name = name
        self.sites = sites
        self.pool = stack.enter_context(ThreadPoolExecutor(1))
        self.arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self.hosts = {
            source: stack.enter_context(sites["b" if source in HONEST else "c"].client(name, str(source)))
            for source in SOURCES
        }

    def push(self, source: Party) -> None:
        number = SOURCES.index(source)
        body = written(UPDATES[number], source, float(number))
        client: GatewayClient = self.hosts[source]
        lease = client.lease(len(body))
        lease.buffer[:] = body
        lease.commit("masked", "t", [ARBITER], "object")

    def ask(self, orders: bool = True) -> Future[ReceivedSum | NotSummed]:
        future = self.pool.submit(self.arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0)
        if orders:
            eventually(lambda: self.orders_at("c") == 1)
        return future

    def orders_at(self, site: str) -> int:
        """By the arbiter's, of this session."""
        return orders_of(self.sites[site], self.name, "a")

    def forge(self, sources: Sequence[Party] = LYING, *, session: str = "", transfer: int = 1) -> None:
        """Have the lying gateway send a sum that nobody has added."""
        key = site_sum_key(session or self.name, "masked", "t", LYING[0], ARBITER)
        assert key is not None
        parts = tuple(Part(source, 1.0, transfer + number) for number, source in enumerate(sources))
        # zeros: numbers that can be right
        whole = bytes(planes_bytes(SHAPES)) + encode_site_sum(SiteSum(len(SOURCES), parts, SHAPES))
        runner = self.sites.runner
        assert isinstance(runner, InThread)

        async def send() -> None:
            assembly = runner.gateways["c"]._assembly
            assert assembly is not None
            lease = assembly.context.send_pool.lease(len(whole), "a liar")
            assert lease is not None
            lease.slot.view[:] = whole
            assembly.peers["a"].sending.put_site_sum(key, Payload(lease.slot, len(whole)), lease, "fedrdma-e")

        runner.run(send())

    def messages_at_arbiter(self) -> int:
        """Of this session, that wait there."""
        runner = self.sites.runner
        assert isinstance(runner, InThread)

        async def count() -> int:
            assembly = runner.gateways["a"]._assembly
            assert assembly is not None
            return sum(message.key.session == self.name for message in assembly.context.mailbox.all_messages())

        return runner.run(count())

    def forged_come(self, session: str = "") -> int:
        delivered = self.sites["a"].events("delivered")
        return sum(
            event["session"] == (session or self.name) and "sum of a site" in event["name"] for event in delivered
        )


@pytest.fixture
def session(sites: Sites, request: pytest.FixtureRequest) -> Iterator[Session]:
    wait_for_orders_to_end(sites)
    with ExitStack() as stack:
        yield Session(sites, request.node.name, stack)


@pytest.fixture(scope="module")
def right(sites: Sites) -> Any:
    """What the sum is where nobody lies."""
    with ExitStack() as stack:
        session = Session(sites, "right", stack)
        for source in SOURCES:
            session.push(source)
        return whole(session.ask(orders=False))


def whole(future: Future[ReceivedSum | NotSummed]) -> Any:
    summed = future.result(timeout=90)
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.reason) == (tuple(range(len(SOURCES))), "")
    return bits(pairs_in(summed.buffer, summed.shapes)), summed.weight


@pytest.mark.parametrize(
    "sources",
    [HONEST, [LYING[0], HONEST[1]], [LYING[0], party("guest:7")], [ARBITER, LYING[0]]],
    ids=["of another site's", "of another site's besides", "of nobody", "of the arbiter itself"],
)
def test_a_sum_of_parties_that_it_does_not_serve_is_not_used(
    session: Session, right: Any, sources: Sequence[Party]
) -> None:
    future = session.ask()
    session.forge(sources)
    eventually(lambda: session.orders_at("c") == 0)
    for source in SOURCES:
        session.push(source)
    assert whole(future) == right


def test_a_sum_that_comes_twice_counts_once(session: Session) -> None:
    future = session.ask()
    session.forge()
    eventually(lambda: session.orders_at("c") == 0)
    session.forge()
    eventually(lambda: session.forged_come() == 2)
    for source in HONEST:
        session.push(source)
    summed = future.result(timeout=90)
    assert isinstance(summed, ReceivedSum)
    assert (summed.parties_in, summed.weight) == ((0, 1, 2, 3), 0.0 + 1.0 + 2.0)
    eventually(lambda: session.messages_at_arbiter() == 0)


def test_a_sum_that_comes_unasked_stands_for_its_own_parties_at_most_and_goes_with_its_session(
    session: Session,
) -> None:
    session.forge()
    eventually(lambda: session.forged_come() == 1)
    for source in SOURCES:
        session.push(source)
    summed = session.ask(orders=False).result(timeout=90)
    assert isinstance(summed, ReceivedSum)
    # a site can lie about its own parties' updates, one by one as well
    assert (summed.parties_in, summed.weight) == ((0, 1, 2, 3), 0.0 + 1.0 + 2.0)
    del summed
    # after the end
    session.forge(transfer=100)
    session.forge(session=f"{session.name}-never", transfer=200)
    eventually(lambda: session.forged_come() == 2)
    session.arbiter.leave()
    eventually(lambda: session.messages_at_arbiter() == 0)


def test_a_sum_of_another_session_is_in_none(sites: Sites, session: Session, right: Any) -> None:
    with ExitStack() as stack:
        other = Session(sites, f"{session.name}-other", stack)
        future = session.ask()
        session.forge(session=other.name)
        eventually(lambda: session.forged_come(other.name) == 1)
        for source in SOURCES:
            session.push(source)
        assert whole(future) == right


def test_a_site_may_order_only_what_is_sent_to_its_own_parties(sites: Sites, session: Session) -> None:
    runner = sites.runner
    assert isinstance(runner, InThread)
    to_itself = SumOrder(1, session.name, "masked", "t", LYING[0], tuple(HONEST), 4)
    to_the_arbiter = SumOrder(2, session.name, "masked", "t", ARBITER, tuple(HONEST), 4)

    def of_c() -> int:
        return next(int(peer["sum_orders"]) for peer in sites["b"].status()["peers"] if peer["site"] == "c")

    runner.tell("c", "b", SumOrders((to_itself,)))
    eventually(lambda: of_c() == 1)
    runner.tell("c", "b", SumOrders((to_the_arbiter,)))
    eventually(lambda: of_c() == 0)
    # and the arbiter gets what is its own
    session.push(HONEST[0])
    number = SOURCES.index(HONEST[0])
    body = written(UPDATES[number], HONEST[0], float(number))
    assert bytes(session.arbiter.get("masked", "t", HONEST[0], timeout=60).buffer) == body


def test_orders_are_few_and_of_few_parties(sites: Sites, session: Session) -> None:
    runner = sites.runner
    assert isinstance(runner, InThread)
    standing = tuple(
        SumOrder(number, session.name, f"m{number}", "t", ARBITER, tuple(HONEST), 4)
        for number in range(MOST_SUM_ORDERS)
    )

    def at_b() -> int:
        return sum(peer["sum_orders"] for peer in sites["b"].status()["peers"] if peer["site"] == "a")

    runner.tell("a", "b", SumOrders(standing))
    eventually(lambda: at_b() == MOST_SUM_ORDERS)
    many = tuple(Party("host", str(number)) for number in range(MOST_PARTIES))
    runner.tell("a", "b", SumOrders((*standing[:1], SumOrder(99, session.name, "m", "t", ARBITER, many, MOST_PARTIES))))
    eventually(lambda: at_b() == 0)
