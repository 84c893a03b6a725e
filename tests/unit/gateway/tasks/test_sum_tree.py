"""A tree of sites: a parent adds what the sites below it have added, and each party counts once whatever happens.

More than 500 lines: gateways are started once for all of it, and each good flow stands beside what a site can do wrong.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrdma_fate.cli.status import render
from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed, Sum
from fedrdma_fate.core.link_tuner import Finding
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks import site_addition
from fedrdma_fate.wire.frames import MOST_SUM_ORDERS, MessageKey, SumOrder, SumOrders
from fedrdma_fate.wire.site_sum import Part, SiteSum, encode_site_sum, site_sum_key
from fedrdma_fate.wire.summand import planes_bytes
from tests.support.certificates import TestAuthority
from tests.support.raw_task import Connection
from tests.support.sites import InThread, Sites, eventually, party, start_gateways
from tests.support.sum_orders import orders_of, wait_for_orders_to_end
from tests.support.summands import SHAPES, bits, exact_sum, masked, pairs_in, written

NAMES = [f"host:{number}" for number in range(6)]
SOURCES = [party(name) for name in NAMES]
ARBITER = party("arbiter:1")
UPDATES = masked(SHAPES, len(SOURCES), seed=21)
UPDATE_BYTES = len(written(UPDATES[0], SOURCES[0], 1.0))
LAYOUT = {"a": ["arbiter:1"], "p": NAMES[:2], "l": NAMES[2:4], "m": NAMES[4:]}
SITE_OF = dict(zip(NAMES, "ppllmm", strict=True))
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "24MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
LONG_WAIT = 600.0
"""Seconds that no site waits in a test."""


def settings(name: str, **more: Any) -> dict[str, Any]:
    """Of a site of the tree: two have a parent."""
    return {"aggregate": {"site_wait": LONG_WAIT, **({"parent": "p"} if name in "lm" else {}), **more}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sites]]:
    with ExitStack() as stack:

        def start(kind: str, of_site: Callable[[str], dict[str, Any]]) -> Sites:
            directory = tmp_path_factory.mktemp(kind)
            return stack.enter_context(start_gateways(LAYOUT, directory, memory=MEMORY, of_site=of_site))

        yield {
            "tree": start("tree", settings),
            # nobody is waited for, at the parent a little longer
            "hasty": start("hasty", lambda name: settings(name, site_wait=0.5 if name == "p" else 0.2)),
        }


class Session:
    """A session in which everybody has a task."""

    def __init__(self, sites: Sites, name: str, stack: ExitStack) -> None:
        self.name = name
        self.sites = sites
        self.pool = stack.enter_context(ThreadPoolExecutor(1))
        self.arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self.hosts = [stack.enter_context(sites[SITE_OF[each]].client(name, each)) for each in NAMES]

    def push(self, *numbers: int, tag: str = "t") -> None:
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            client: GatewayClient = self.hosts[number]
            lease = client.lease(len(body))
            lease.buffer[:] = body
            lease.commit("masked", tag, [ARBITER], "object")

    def ask(self, tag: str = "t", at: dict[str, str] | None = None) -> Future[ReceivedSum | NotSummed]:
        """Ask for the sum, and wait until each site has the order that it should."""
        future = self.pool.submit(self.arbiter.get_sum, "masked", tag, SOURCES, timeout=60.0)
        for site, by in ({"p": "a", "l": "p", "m": "p"} if at is None else at).items():
            eventually(lambda site=site, by=by: self.orders_at(site, by, tag) == 1)
        return future

    def orders_at(self, site: str, by: str, tag: str | None = None) -> int:
        """Of this session."""
        return orders_of(self.sites[site], self.name, by, tag)

    def come(self, site: str = "a", origin: str | None = None) -> tuple[int, int]:
        """Sums of sites, and updates by themselves, that have come to a site."""
        delivered = [each for each in self.sites[site].events("delivered") if each["session"] == self.name]
        if origin is not None:
            delivered = [each for each in delivered if each["peer"] == origin]
        sums = sum("sum of a site" in each["name"] for each in delivered)
        return sums, len(delivered) - sums

    def bytes_come(self) -> int:
        return sum(each["bytes"] for each in self.sites["a"].events("delivered") if each["session"] == self.name)

    def check_nothing_is_left(self) -> None:
        for site in "plm":
            eventually(lambda site=site: self.sites[site].pool("send")["slots"] == 0)
            eventually(lambda site=site: self.sites[site].status()["mailbox"]["messages"] == 0)
        for site, by in (("p", "a"), ("l", "p"), ("m", "p")):
            eventually(lambda site=site, by=by: self.orders_at(site, by) == 0)


@pytest.fixture
def make_session(sites: dict[str, Sites], request: pytest.FixtureRequest) -> Iterator[Callable[..., Session]]:
    with ExitStack() as stack:
        numbers = iter(range(100))
        yield lambda kind="tree": Session(sites[kind], f"{request.node.name}-{next(numbers)}", stack)


def whole(future: Future[ReceivedSum | NotSummed]) -> tuple[Any, float | None]:
    """The bits of a sum of all, and its weight."""
    summed = future.result(timeout=90)
    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.reason) == (tuple(range(len(NAMES))), "")
    return bits(pairs_in(summed.buffer, summed.shapes)), summed.weight


@pytest.fixture(scope="module")
def alone() -> tuple[Any, float | None]:
    """The sum of updates that are added one by one, and its weight."""
    return bits(exact_sum(UPDATES, SHAPES)), 15.0


def test_a_parent_sends_one_sum_for_all_and_the_bits_are_those_of_each_party_alone(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    future = session.ask()
    session.push(4, 0, 3, 5, 1, 2)

    assert whole(future) == alone
    assert session.come() == (1, 0)
    assert session.come("p") == (2, 0)
    assert session.bytes_come() < 1.1 * UPDATE_BYTES
    session.check_nothing_is_left()


def test_a_parent_none_of_whose_parties_are_in_the_sum_adds_those_of_others(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    future = session.pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES[2:], timeout=60.0)
    for site in "lm":
        eventually(lambda site=site: session.orders_at(site, "p") == 1)
    session.push(5, 2, 4, 3)
    summed = future.result(60)

    assert isinstance(summed, ReceivedSum)
    assert (summed.parties_in, summed.weight) == ((0, 1, 2, 3), 14.0)
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES[2:], SHAPES))
    assert session.come() == (1, 0)
    session.check_nothing_is_left()


@pytest.mark.sweep
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_sums_go_up_the_tree_by_any_transport_and_sealed(
    tmp_path: Path, alone: tuple[Any, float | None], transport: str
) -> None:
    with ExitStack() as stack:
        authority = TestAuthority(tmp_path / "tls")
        sites = stack.enter_context(
            start_gateways(
                LAYOUT,
                tmp_path,
                memory=MEMORY,
                of_site=settings,
                authority=authority,
                transport=transport,
                mode="fedrdma-x",
            )
        )
        session = Session(sites, "sealed", stack)
        future = session.ask()
        session.push(3, 0, 2, 4, 1, 5)

        assert whole(future) == alone
        assert session.come() == (1, 0)
        session.check_nothing_is_left()


def test_status_shows_what_each_site_adds_and_whose_sums_go_where(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    future = session.ask()
    session.push(0, 2, 3)
    eventually(lambda: shown(session, "p")["added"] == 3)
    found = shown(session, "p")
    assert (found["asked_by"], found["missing"], found["missing_sites"]) == ("a", ["host:1"], ["m"])
    assert not found["sent"]
    eventually(lambda: shown(session, "l")["sent"])
    table = io.StringIO()
    for site in "pl":
        Console(file=table, width=300).print(render(session.sites[site].status()))
    for line in (
        "Sums of this site",
        "host:1, the sum of m",
        "Sums of l, m go to this site first",
        "Sums of this site go to p first",
    ):
        assert line in table.getvalue()
    session.push(1, 4, 5)
    whole(future)


def test_status_says_where_the_path_to_a_parent_is_no_faster_than_that_to_who_asks(
    make_session: Callable[..., Session], alone: tuple[Any, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    future = session.ask()
    rates = {"a": 1e9, "p": 2e9}
    monkeypatch.setattr(
        Sending, "rate", lambda sending, _transport: Finding(rates.get(sending._peer.site, 1e6), "measured")
    )
    sites = session.sites
    assert [sites[site].status()["sum_parent_slow"] for site in "aplm"] == [None] * 4
    rates["p"] = 5e8
    assert sites["l"].status()["sum_parent_slow"] == {
        "bits_per_second": 5e8,
        "faster": [{"site": "a", "bits_per_second": 1e9}],
    }
    assert [sites[site].status()["sum_parent_slow"] for site in "ap"] == [None] * 2
    told = io.StringIO()
    Console(file=told, width=300).print(render(sites["l"].status()))
    assert "The path to p (500.0 Mbit/s) is no faster than that to a (1000.0 Mbit/s)" in told.getvalue()
    session.push(0, 1, 2, 3, 4, 5)
    assert whole(future) == alone


def shown(session: Session, site: str) -> dict[str, Any]:
    """What it adds for others in this session."""
    (found,) = [each for each in session.sites[site].status()["site_sums"] if each["session"] == session.name]
    return dict(found)


def test_a_leaf_that_is_late_comes_alone_and_the_parents_sum_goes_without(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session("hasty")
    future = session.ask()
    session.push(0, 1, 2, 3)
    eventually(lambda: session.come()[0] == 1)
    session.push(4, 5)

    assert whole(future) == alone
    # those of the leaf that came in time are in the parent's sum, however long that took
    assert session.come() in ((1, 2), (1, 4))
    session.check_nothing_is_left()


def test_a_site_whose_updates_come_alone_holds_up_nobody_though_it_says_it_has_a_parent_and_sends_that_nothing(
    make_session: Callable[..., Session], alone: tuple[Any, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_session()
    runner = session.sites.runner
    assert isinstance(runner, InThread)
    assembly = runner.gateways["l"]._assembly
    assert assembly is not None
    # it obeys no order, and does not say so
    monkeypatch.setattr(assembly.tasks.site_sums, "keeps_back", lambda _site, _outgoing: False)
    future = session.ask()
    session.push(0, 1, 4, 5)
    eventually(lambda: session.come("p", "m") == (1, 0))
    session.push(2)
    eventually(lambda: session.come() == (0, 1))
    session.push(3)

    # of the others there is one sum, which was waited for as long as its updates were not here
    assert whole(future) == alone
    assert session.come() == (1, 2)

    # of the parent one is left, of whom alone there is no sum
    future = session.pool.submit(session.arbiter.get_sum, "masked", "u", SOURCES[1:4], timeout=60.0)
    eventually(lambda: session.orders_at("l", "p", "u") == 1)
    session.push(1, 2, 3, tag="u")
    summed = future.result(60)
    assert isinstance(summed, ReceivedSum)
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES[1:4], SHAPES))
    assert session.come() == (1, 5)
    session.check_nothing_is_left()


def test_a_party_that_is_late_at_a_leaf_comes_alone_to_the_arbiter(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session("hasty")
    future = session.ask()
    session.push(0, 1, 2, 3, 4)
    eventually(lambda: session.come()[0] == 1)
    session.push(5)

    assert whole(future) == alone
    session.check_nothing_is_left()


def test_who_was_sent_before_the_orders_came_counts_once_and_its_site_is_not_waited_for(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    session.push(4)
    eventually(lambda: session.come() == (0, 1))
    # of one that is left there is no sum: the leaf is asked for nothing, or says that nothing comes
    future = session.ask(at={"p": "a", "l": "p"})
    session.push(0, 1, 2, 3, 5)

    assert whole(future) == alone
    assert session.come() == (1, 2)
    session.check_nothing_is_left()


def test_a_leafs_update_that_is_no_summand_goes_alone_and_the_rest_in_the_sum(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    future = session.ask()
    pickled = bytes(range(256)) * 4096
    lease = session.hosts[2].lease(len(pickled))
    lease.buffer[:] = pickled
    lease.commit("masked", "t", [ARBITER], "object")
    session.push(0, 1, 3, 4, 5)
    summed = future.result(timeout=90)

    parties_in: tuple[int, ...] = ()
    if isinstance(summed, ReceivedSum):
        assert "host:2: it is no summand" in summed.reason
        parties_in = summed.parties_in
    assert 2 not in parties_in
    for number in set(range(6)) - set(parties_in):
        body = pickled if number == 2 else written(UPDATES[number], SOURCES[number], float(number))
        assert bytes(session.arbiter.get("masked", "t", SOURCES[number], timeout=30).buffer) == body


def test_the_arbiters_task_goes_away_and_what_leaves_have_kept_back_goes_alone(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    task = Connection(session.sites["a"], session.name, ARBITER)
    task.send(Sum("masked", "t", tuple(SOURCES)))
    eventually(lambda: session.orders_at("l", "p") == session.orders_at("m", "p") == 1)
    session.push(0, 2, 3, 4)
    eventually(lambda: session.come("p") == (1, 0))
    task.close()

    with session.sites["a"].client(session.name, "arbiter:1") as again:
        for number in (0, 2, 3, 4):
            body = written(UPDATES[number], SOURCES[number], float(number))
            assert bytes(again.get("masked", "t", SOURCES[number], timeout=30).buffer) == body
    session.check_nothing_is_left()


def test_the_next_round_is_kept_back_at_each_level_before_it_is_asked_for(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    future = session.ask()
    session.push(*range(6))
    assert whole(future) == alone
    session.push(2, 3, 0, 4, 5, 1, tag="u")
    future = session.ask("u", at={})

    assert whole(future) == alone
    assert session.come() == (2, 0)
    session.check_nothing_is_left()


def test_who_was_told_ahead_keeps_back_what_comes_in_the_first_round(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    session.arbiter.expect_sum("masked", SOURCES)
    for site in "plm":
        eventually(lambda site=site: any(each[0] == session.name for each in look(session.sites, site)))
    session.push(*range(6))
    future = session.ask(at={})

    assert whole(future) == alone
    assert session.come() == (1, 0)
    session.check_nothing_is_left()


def test_a_site_with_one_party_in_the_sum_is_told_nothing_ahead_and_stays_connected(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    runner = session.sites.runner
    assert isinstance(runner, InThread)

    async def channel() -> Any:
        assembly = runner.gateways["p"]._assembly
        assert assembly is not None
        return assembly.peers["l"]._stream

    before = runner.run(channel())
    session.arbiter.expect_sum("masked", SOURCES[:3])
    eventually(lambda: any(each[0] == session.name for each in look(session.sites, "p")))
    future = session.pool.submit(session.arbiter.get_sum, "masked", "t", SOURCES[:3], timeout=60.0)
    eventually(lambda: session.orders_at("p", "a") == 1)
    session.push(0, 1, 2)
    summed = future.result(60)

    assert isinstance(summed, ReceivedSum)
    assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES[:3], SHAPES))
    assert session.come() == (1, 1)
    assert runner.run(channel()) is before is not None


def look(sites: Sites, site: str) -> list[Any]:
    """Rounds of messages for the arbiter's site that a site has been asked for."""
    runner = sites.runner
    assert isinstance(runner, InThread)

    async def asked() -> list[Any]:
        assembly = runner.gateways[site]._assembly
        assert assembly is not None
        return list(assembly.tasks.site_sums._asked["a"])

    return runner.run(asked())


@pytest.mark.parametrize(
    ("by", "at", "order"),
    [
        ("m", "l", SumOrder(1, "s", "masked", "t", ARBITER, tuple(SOURCES[2:4]), 6)),
        ("p", "l", SumOrder(1, "s", "masked", "t", ARBITER, tuple(SOURCES[4:]), 6)),
        ("p", "l", SumOrder(1, "s", "masked", "t", SOURCES[2], tuple(SOURCES[2:4]), 6)),
        ("a", "l", SumOrder(1, "s", "masked", "t", ARBITER, tuple(SOURCES[4:]), 6)),
        ("a", "p", SumOrder(1, "s", "masked", "t", ARBITER, (SOURCES[0], ARBITER), 6)),
        ("a", "p", SumOrder(1, "s", "masked", "t", ARBITER, (SOURCES[0], party("host:77")), 6)),
    ],
    ids=["by no parent", "of others below nobody", "to our own", "of no child", "of its own", "of a stranger"],
)
def test_only_the_arbiters_site_and_the_parent_may_ask_and_only_for_what_is_here_or_below(
    sites: dict[str, Sites], by: str, at: str, order: SumOrder
) -> None:
    running = sites["tree"]
    assert isinstance(running.runner, InThread)
    wait_for_orders_to_end(running)

    def standing() -> int:
        return sum(peer["sum_orders"] for peer in running[at].status()["peers"] if peer["site"] == by)

    right = SumOrder(7, "never", "masked", "t", ARBITER, tuple(SOURCES[:2] if at == "p" else SOURCES[2:4]), 6)
    beside = [] if by == "m" else [right]
    running.runner.tell(by, at, SumOrders((*beside, order)))
    eventually(lambda: standing() == len(beside))
    running.runner.tell(by, at, SumOrders((order,)))
    eventually(lambda: standing() == 0)
    running.runner.tell(by, at, SumOrders(()))


def test_of_sums_that_were_passed_on_nothing_is_remembered(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    future = session.ask()
    session.push(*range(6))
    assert whole(future) == alone
    withdrawn = session.ask("u")
    session.push(2, 3, tag="u")
    eventually(lambda: session.come("p", "l") == (2, 0))
    for task in (*session.hosts, session.arbiter):
        task.leave()
    withdrawn.exception(60)
    session.check_nothing_is_left()

    runner = session.sites.runner
    assert isinstance(runner, InThread)

    async def remembered(site: str) -> bool:
        assembly = runner.gateways[site]._assembly
        assert assembly is not None
        return assembly.context.mailbox.sessions.remembers(session.name)

    for site in "aplm":
        eventually(lambda site=site: not runner.run(remembered(site)))


@pytest.mark.parametrize("comes", ["the sum", "that none comes"])
def test_a_sum_that_is_awaited_no_more_is_neither_kept_nor_missed(
    make_session: Callable[..., Session], comes: str
) -> None:
    session = make_session()
    key = site_sum_key(session.name, "masked", "t", SOURCES[2], ARBITER)
    assert key is not None
    runner = session.sites.runner
    assert isinstance(runner, InThread)

    async def come() -> tuple[bool, bool]:
        assembly = runner.gateways["p"]._assembly
        assert assembly is not None
        mailbox = assembly.context.mailbox
        if comes == "the sum":
            return mailbox.deliver(Message(key, "bytes", 3, body=b"sum", origin="l")), mailbox.holds(session.name)
        return bool(mailbox.fail(key, "FR607", "its parties go alone", "l")), mailbox.holds(session.name)

    assert runner.run(come()) == (False, False)


def test_where_a_parent_cannot_have_the_sum_of_a_site_its_parties_go_alone_at_once(
    make_session: Callable[..., Session], alone: tuple[Any, float | None]
) -> None:
    session = make_session()
    future = session.ask()
    session.push(2)
    key = site_sum_key(session.name, "masked", "t", SOURCES[2], ARBITER)
    assert key is not None
    runner = session.sites.runner
    assert isinstance(runner, InThread)

    async def fail() -> None:
        assembly = runner.gateways["p"]._assembly
        assert assembly is not None
        assembly.context.mailbox.fail(key, "FR302", "it was broken on its way", "l")

    runner.run(fail())
    eventually(lambda: session.come() == (0, 1))
    session.push(0, 1, 3, 4, 5)

    assert whole(future) == alone
    assert session.come() == (1, 2)
    session.check_nothing_is_left()


def test_many_orders_in_one_frame_are_told_below_in_one_and_count_as_many_frames_once(
    sites: dict[str, Sites], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = sites["tree"].runner
    assert isinstance(runner, InThread)
    wait_for_orders_to_end(sites["tree"])
    orders = tuple(
        SumOrder(number, "many", f"m{number}", "t", ARBITER, tuple(SOURCES), 6) for number in range(MOST_SUM_ORDERS)
    )
    told: list[tuple[str, int]] = []

    async def place() -> None:
        assembly = runner.gateways["p"]._assembly
        assert assembly is not None
        for name in "lm":
            tell = assembly.peers[name].tell_sum_orders

            def note(its: SumOrders, name: str = name, tell: Callable[[SumOrders], None] = tell) -> None:
                told.append((name, len(its.orders)))
                tell(its)

            monkeypatch.setattr(assembly.peers[name], "tell_sum_orders", note)
        site_sums = assembly.tasks.site_sums
        assert site_sums.on_orders("a", orders) == MOST_SUM_ORDERS
        assert sorted(told) == [("l", MOST_SUM_ORDERS), ("m", MOST_SUM_ORDERS)]
        assert site_sums.on_orders("a", orders) == 0
        told.clear()
        # of one site below nothing is waited for any more, which counts once, and for the other nothing has changed
        fewer = tuple(SumOrder(*_fields(each)[:5], (*SOURCES[:2], *SOURCES[4:]), 6) for each in orders)
        assert site_sums.on_orders("a", fewer) == MOST_SUM_ORDERS
        assert site_sums.on_orders("a", fewer) == 0
        assert told == [("l", 0)]
        # who was left out once is not waited for again, and strangers are nobody
        strangers = tuple(SumOrder(*_fields(each)[:5], (*SOURCES, party("host:99")), 6) for each in orders)
        assert site_sums.on_orders("a", strangers) == 0
        assert told == [("l", 0)]
        told.clear()
        assert site_sums.on_orders("a", ()) == MOST_SUM_ORDERS
        assert told == [("m", 0)]

    runner.run(place())


def _fields(order: SumOrder) -> tuple[Any, ...]:
    return order.number, order.session, order.name, order.tag, order.destination


def test_a_sum_that_a_site_was_not_asked_for_is_refused_by_one_that_it_is_not_for(
    make_session: Callable[..., Session],
) -> None:
    session = make_session()
    key = site_sum_key(session.name, "masked", "t", SOURCES[2], ARBITER)
    assert key is not None
    parts = tuple(Part(source, 1.0, 1 + number) for number, source in enumerate(SOURCES[2:4]))
    send_sum(session, "l", key, bytes(planes_bytes(SHAPES)) + encode_site_sum(SiteSum(6, parts, SHAPES)))
    eventually(lambda: session.sites["l"].pool("send")["slots"] == 0)
    assert session.come("p") == (0, 0)


def send_sum(session: Session, site: str, key: MessageKey, body: bytes) -> None:
    """Have a site send its parent a sum that nobody has added."""
    runner = session.sites.runner
    assert isinstance(runner, InThread)

    async def send() -> None:
        assembly = runner.gateways[site]._assembly
        assert assembly is not None
        lease = assembly.context.send_pool.lease(len(body), "a liar")
        assert lease is not None
        lease.slot.view[:] = body
        assembly.peers["p"].sending.put_site_sum(key, Payload(lease.slot, len(body)), lease, "fedrdma-e")

    runner.run(send())


@pytest.mark.parametrize("parties", [(SOURCES[2], SOURCES[4]), (SOURCES[2], SOURCES[0])], ids=["other", "parents"])
def test_a_leaf_that_names_others_parties_is_not_added_and_everybody_counts_once(
    make_session: Callable[..., Session],
    alone: tuple[Any, float | None],
    monkeypatch: pytest.MonkeyPatch,
    parties: tuple[Any, ...],
) -> None:
    encode = site_addition.encode_site_sum

    def lie(said: SiteSum) -> bytes:
        its = [part.party for part in said.parts]
        if its != SOURCES[2:4] or said.parts[0].transfer == site_addition.MOST_TRANSFER:
            return encode(said)
        parts = tuple(Part(party, part.weight, part.transfer) for party, part in zip(parties, said.parts, strict=True))
        return encode(SiteSum(said.parties, parts, said.shapes))

    monkeypatch.setattr(site_addition, "encode_site_sum", lie)
    session = make_session()
    future = session.ask()
    session.push(2, 3)
    eventually(lambda: session.come() == (0, 2))
    session.push(0, 1, 4, 5)

    assert whole(future) == alone
    session.check_nothing_is_left()


@pytest.mark.parametrize("shape", [(60_041, 4), (10_000,)], ids=["longer", "shorter"])
def test_a_sum_that_cannot_be_added_leaves_nothing_of_its_shapes(
    make_session: Callable[..., Session], alone: tuple[Any, float | None], shape: tuple[int, ...]
) -> None:
    session = make_session()
    future = session.ask()
    key = site_sum_key(session.name, "masked", "t", SOURCES[2], ARBITER)
    assert key is not None
    # whole numbers that are none, found when they are added
    body = b"\xff" * planes_bytes((shape,))
    parts = tuple(Part(source, 1.0, 1 + number) for number, source in enumerate(SOURCES[2:4]))
    send_sum(session, "l", key, body + encode_site_sum(SiteSum(6, parts, (shape,))))
    eventually(lambda: session.orders_at("l", "p") == 0)
    session.push(*range(6))

    assert whole(future) == alone
    assert session.come() == (1, 2)
    session.check_nothing_is_left()


@pytest.mark.sweep
@pytest.mark.parametrize(
    "of_site",
    [
        pytest.param(lambda name, changes=changes: settings(name, **changes.get(name, {})), id=id_)
        for id_, changes in (
            ("no parent at one", {"l": {"parent": None}}),
            ("it adds none", {"p": {"fan_in": 0}}),
            ("its sums are off", {"p": {"site_sums": False}}),
            ("parents of each other", {"p": {"parent": "l"}}),
            ("one at a time", {"p": {"fan_in": 1}}),
        )
    ],
)
def test_however_parents_are_configured_each_party_counts_once(
    tmp_path: Path, alone: tuple[Any, float | None], of_site: Callable[[str], dict[str, Any]]
) -> None:
    with ExitStack() as stack:
        sites = stack.enter_context(start_gateways(LAYOUT, tmp_path, memory=MEMORY, of_site=of_site))
        session = Session(sites, "mixed", stack)
        future = session.ask(at={})
        eventually(lambda: session.orders_at("l", "a") + session.orders_at("l", "p") == 1)
        eventually(lambda: session.orders_at("m", "a") + session.orders_at("m", "p") == 1)
        session.push(3, 0, 2, 4, 1, 5)

        assert whole(future) == alone
        session.check_nothing_is_left()
