"""Sums of sites round by round: who was asked once keeps back what comes before it is asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.gateway.tasks.site_sums import SiteSums
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import SumOrder, SumOrders
from fedrdma_fate.wire.site_sum import NEXT_TAG
from tests.support.sites import InThread, Sites, eventually, party, start_gateways
from tests.support.sum_orders import orders_of
from tests.support.summands import SHAPES, bits, masked, pairs_in, written

NAMES = [f"host:{number}" for number in range(6)]
SOURCES = [party(name) for name in NAMES]
OF_SITE = {"b": range(3), "c": range(3, 6)}
ARBITER = party("arbiter:1")
UPDATES = masked(SHAPES, len(SOURCES), seed=7)
MEMORY = {"send_bytes": "16MiB", "receive_bytes": "24MiB", "ring_slots": 2, "ring_slot_bytes": "256KiB"}
LONG_WAIT = 600.0
"""Seconds that no site waits in a test."""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[float, Sites]]:
    """Whose sites wait long, and hardly."""
    layout = {"a": ["arbiter:1"], **{site: [NAMES[number] for number in numbers] for site, numbers in OF_SITE.items()}}
    with ExitStack() as stack:
        made = {}
        for wait in (LONG_WAIT, 0.2):
            directory = tmp_path_factory.mktemp(f"sites-{wait:.0f}")
            running = start_gateways(layout, directory, memory=MEMORY, aggregate={"site_wait": wait})
            made[wait] = stack.enter_context(running)
        assert all(isinstance(each, Sites) for each in made.values())
        yield made  # type: ignore[misc]


class Session:
    """A session in which everybody has a task."""

    def __init__(self, sites: Sites, name: str, stack: ExitStack) -> None:
        self.name = name
        self.sites = sites
        self.pool = stack.enter_context(ThreadPoolExecutor(1))
        self.arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self.hosts = [
            stack.enter_context(sites[site].client(name, NAMES[number]))
            for site, numbers in OF_SITE.items()
            for number in numbers
        ]

    def push(self, tag: str, numbers: Sequence[int] = range(6)) -> None:
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            client: GatewayClient = self.hosts[number]
            lease = client.lease(len(body))
            lease.buffer[:] = body
            lease.commit("masked", tag, [ARBITER], "object")

    def round(self, tag: str, before: Sequence[int] = ()) -> Any:
        """One in which these push before the sum is asked for; bits and weight."""
        self.push(tag, before)
        future = self.pool.submit(self.arbiter.get_sum, "masked", tag, SOURCES, timeout=90.0)
        left = [number for number in range(6) if number not in before]
        asked = {site for site, numbers in OF_SITE.items() if len(set(numbers) & set(left)) > 1}
        for site in asked:
            eventually(lambda site=site: self.orders_at(site, tag) == 1)
        self.push(tag, left)
        summed = future.result(timeout=120)
        assert isinstance(summed, ReceivedSum), summed
        assert (summed.parties_in, summed.reason) == (tuple(range(6)), "")
        return bits(pairs_in(summed.buffer, summed.shapes)), summed.weight

    def orders_at(self, site: str, tag: str) -> int:
        """Of this session's round."""
        return orders_of(self.sites[site], self.name, "a", tag)

    def come(self, tag: str) -> tuple[int, int]:
        """Sums of sites, and updates by themselves, that have come of a round."""
        delivered = [event for event in self.sites["a"].events("delivered") if event["session"] == self.name]
        of_round = [event for event in delivered if event["tag"] == tag]
        sums = sum("sum of a site" in event["name"] for event in of_round)
        return sums, len(of_round) - sums

    def on_loop(self, site: str, look: Callable[[SiteSums], Any]) -> Any:
        """What the sums of a site look like, as its event loop sees them."""
        runner = self.sites.runner
        assert isinstance(runner, InThread)

        async def asked() -> Any:
            assembly = runner.gateways[site]._assembly
            assert assembly is not None
            found = assembly.peers["a"].site_sums
            assert isinstance(found, SiteSums)
            return look(found)

        return runner.run(asked())

    def bytes_come(self, tag: str) -> int:
        """Of payloads, to the arbiter's site."""
        delivered = self.sites["a"].events("delivered")
        return sum(each["bytes"] for each in delivered if (each["session"], each["tag"]) == (self.name, tag))

    def expect(self, at: str = "bc") -> None:
        """Say ahead that sums will be asked for, until these sites know."""
        self.arbiter.expect_sum("masked", SOURCES)
        for site in at:
            eventually(lambda site=site: self.knows_ahead(site))

    def knows_ahead(self, site: str) -> bool:
        """Whether it keeps back what comes."""
        rounds = self.on_loop(site, lambda sums: list(sums._asked["a"]))
        return any(session == self.name for session, _, _ in rounds)

    def ahead(self) -> int:
        """Orders ahead that stand at the arbiter's site."""
        runner = self.sites.runner
        assert isinstance(runner, InThread)

        async def asked() -> int:
            assembly = runner.gateways["a"]._assembly
            assert assembly is not None
            orders = assembly.context.sum_orders
            return sum(orders._orders[number][1].session == self.name for number in orders._ahead)

        return runner.run(asked())

    def kept_back(self, site: str) -> int:
        """Sums that the site expects to be asked for."""
        return int(self.on_loop(site, lambda sums: len(sums._expected["a"])))


@pytest.fixture
def make_session(sites: dict[float, Sites], request: pytest.FixtureRequest) -> Iterator[Callable[..., Session]]:
    with ExitStack() as stack:
        numbers = iter(range(100))
        yield lambda wait=LONG_WAIT: Session(sites[wait], f"{request.node.name}-{next(numbers)}", stack)


@pytest.fixture(scope="module")
def right(sites: dict[float, Sites]) -> Any:
    with ExitStack() as stack:
        return Session(sites[0.2], "right", stack).round("r")


def test_from_the_second_round_on_it_does_not_matter_who_comes_before_the_sum_is_asked_for(
    make_session: Callable[..., Session], right: Any
) -> None:
    session = make_session()
    assert session.round("r1") == right
    for tag in ("r2", "r3"):
        assert session.round(tag, before=range(6)) == right
        eventually(lambda tag=tag: session.come(tag) == (2, 0))
    # some before, some after
    assert session.round("r4", before=(0, 3, 4)) == right
    eventually(lambda: session.come("r4") == (2, 0))
    for site in OF_SITE:
        assert session.kept_back(site) == 0
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_in_the_first_round_nothing_waits_to_be_asked_for(make_session: Callable[..., Session]) -> None:
    session = make_session()
    session.push("r1", range(6))
    eventually(lambda: session.come("r1") == (0, 6))
    assert [session.kept_back(site) for site in OF_SITE] == [0, 0]


def test_an_order_of_fewer_does_not_keep_the_others_out_of_the_next_round(
    make_session: Callable[..., Session], right: Any
) -> None:
    session = make_session()
    session.push("r1", [0])
    eventually(lambda: session.come("r1") == (0, 1))
    future = session.pool.submit(session.arbiter.get_sum, "masked", "r1", SOURCES, timeout=90.0)
    eventually(lambda: session.orders_at("b", "r1") > 0)
    session.push("r1", range(1, 6))
    assert isinstance(future.result(timeout=120), ReceivedSum)
    assert session.round("r2", before=(1, 2, 3, 4, 5)) == right
    assert session.round("r3", before=(0, 1, 2, 3, 4, 5)) == right
    for site in OF_SITE:
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_what_is_not_asked_for_in_time_goes_alone_and_is_not_waited_for_again(
    make_session: Callable[..., Session], right: Any
) -> None:
    session = make_session(0.2)
    assert session.round("r1") == right
    session.push("r2", range(6))
    for number, source in enumerate(SOURCES):
        body = written(UPDATES[number], source, float(number))
        assert bytes(session.arbiter.get("masked", "r2", source, timeout=60).buffer) == body
    for site in OF_SITE:
        eventually(lambda site=site: session.kept_back(site) == 0)
        asked = session.on_loop(site, lambda sums: [round_ for round_ in sums._asked["a"] if round_[0] == session.name])
        assert asked == []
    # and when it is asked for again, it is as before
    assert session.round("r3") == right


def test_a_straggler_of_a_round_that_is_over_is_not_kept_back(make_session: Callable[..., Session], right: Any) -> None:
    session = make_session(0.2)
    future = session.pool.submit(session.arbiter.get_sum, "masked", "r1", SOURCES, timeout=90.0)
    eventually(lambda: session.orders_at("b", "r1") > 0 and session.orders_at("c", "r1") > 0)
    session.push("r1", (0, 1, 3, 4))
    # in a sum or alone, as long as it takes
    for site in OF_SITE:
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0, 60.0)
    session.push("r1", (2, 5))
    assert [session.kept_back(site) for site in OF_SITE] == [0, 0]
    summed = future.result(timeout=120)
    assert isinstance(summed, ReceivedSum)
    assert (bits(pairs_in(summed.buffer, summed.shapes)), summed.weight) == right


def test_a_session_that_ends_leaves_nothing_kept_back(make_session: Callable[..., Session], right: Any) -> None:
    session = make_session()
    assert session.round("r1") == right
    session.push("r2", (0, 1))
    assert session.kept_back("b") == 1
    runner = session.sites.runner
    assert isinstance(runner, InThread)

    async def end() -> None:
        assembly = runner.gateways["b"]._assembly
        assert assembly is not None
        assembly.peers["a"].sending.end_session(session.name)

    runner.run(end())
    eventually(lambda: session.sites["b"].pool("send")["slots"] <= 1)
    session.on_loop("b", lambda sums: [each.end() for each in list(sums._expected["a"].values())])
    eventually(lambda: session.kept_back("b") == 0)
    eventually(lambda: session.sites["b"].pool("send")["slots"] == 0)


def test_what_was_said_ahead_has_the_first_round_summed_though_all_come_before_the_sum_is_asked_for(
    make_session: Callable[..., Session], right: Any
) -> None:
    session = make_session()
    session.expect()
    assert session.ahead() == 2
    for tag in ("r1", "r2"):
        assert session.round(tag, before=range(6)) == right
        eventually(lambda tag=tag: session.come(tag) == (2, 0))
    assert session.bytes_come("r1") == session.bytes_come("r2") > 0
    assert session.ahead() == 0
    for site in OF_SITE:
        assert session.kept_back(site) == 0
        eventually(lambda site=site: session.sites[site].pool("send")["slots"] == 0)


def test_who_has_sent_before_it_was_said_ahead_comes_alone_and_the_others_of_its_site_in_a_sum(
    make_session: Callable[..., Session], right: Any
) -> None:
    session = make_session()
    session.push("r1", (0, 3, 4))
    eventually(lambda: session.come("r1") == (0, 3))
    session.expect()
    # of c one is left, which is no sum
    session.push("r1", (1, 2, 5))
    eventually(lambda: session.come("r1") == (0, 4))
    assert session.kept_back("b") == 1
    summed = session.pool.submit(session.arbiter.get_sum, "masked", "r1", SOURCES, timeout=90.0).result(timeout=120)
    assert isinstance(summed, ReceivedSum)
    assert (bits(pairs_in(summed.buffer, summed.shapes)), summed.weight) == right
    eventually(lambda: session.come("r1") == (1, 4))
    assert session.round("r2", before=range(6)) == right
    eventually(lambda: session.come("r2") == (2, 0))


def test_a_first_round_that_is_not_asked_for_in_time_goes_alone_and_is_not_waited_for_again(
    make_session: Callable[..., Session], right: Any
) -> None:
    session = make_session(0.2)
    session.expect()
    session.push("r1", range(6))
    eventually(lambda: session.come("r1") == (0, 6), 60.0)
    for site in OF_SITE:
        eventually(lambda site=site: session.kept_back(site) == 0)
    # it still stands, and is told again with what is said of others: nobody waits for it once more
    session.arbiter.expect_sum("others", SOURCES)
    for site in OF_SITE:
        eventually(lambda site=site: session.knows_ahead(site))
        names = session.on_loop(site, lambda sums: [r[1] for r in sums._asked["a"] if r[0] == session.name])
        assert names == ["others"]
    session.push("r2", range(6))
    eventually(lambda: session.come("r2") == (0, 6), 60.0)
    assert session.round("r3") == right


def test_what_a_task_has_said_ahead_ends_with_it(make_session: Callable[..., Session]) -> None:
    session = make_session()
    with session.sites["a"].client(session.name, "arbiter:1") as other:
        other.expect_sum("masked", SOURCES)
        other.expect_sum("masked", SOURCES[:1])
        other.expect_sum("masked", [SOURCES[0], SOURCES[3]])
        assert session.ahead() == 2
    eventually(lambda: session.ahead() == 0)
    for site in OF_SITE:
        eventually(lambda site=site: session.on_loop(site, lambda sums: sums._ahead["a"]) == set())


@pytest.mark.parametrize(
    ("destination", "sources"), [("arbiter:1", SOURCES[3:]), ("host:0", SOURCES[:3]), ("arbiter:1", SOURCES[:1] * 2)]
)
def test_what_is_said_ahead_of_parties_that_it_cannot_be_of_is_ignored(
    make_session: Callable[..., Session], destination: str, sources: Sequence[Any]
) -> None:
    session = make_session()
    wrong = SumOrder(1, session.name, "masked", NEXT_TAG, party(destination), tuple(sources), 6)
    right = SumOrder(2, f"{session.name}-right", "masked", NEXT_TAG, ARBITER, tuple(SOURCES[:3]), 6)
    runner = session.sites.runner
    assert isinstance(runner, InThread)
    # of what was said ahead, or it was made to say, in a test before: it would be taken for what it is made to say here
    runner.tell("a", "b", SumOrders(()))
    eventually(lambda: session.on_loop("b", lambda sums: sums._ahead["a"]) == set())
    runner.tell("a", "b", SumOrders((wrong,)))
    runner.tell("a", "b", SumOrders((right,)))
    eventually(lambda: session.on_loop("b", lambda sums: sums._ahead["a"]) == {2})
    assert not session.knows_ahead("b")
    session.push("r1", (0, 1))
    eventually(lambda: session.come("r1") == (0, 2))


@pytest.mark.parametrize(
    ("sources", "code"),
    [([SOURCES[0], SOURCES[0]], ErrorCode.CLIENT_PROTOCOL), ([SOURCES[0], party("host:99")], ErrorCode.WRONG_PARTY)],
)
def test_a_task_that_says_ahead_one_party_twice_or_names_a_stranger_is_told(
    make_session: Callable[..., Session], sources: Sequence[Any], code: ErrorCode
) -> None:
    session = make_session()
    with pytest.raises(GatewayError) as refused:
        session.arbiter.expect_sum("masked", sources)
    assert refused.value.code is code
    assert session.ahead() == 0


def test_a_site_that_connects_later_is_told_ahead_then_and_one_without_sums_never(
    tmp_path: Path, right: Any, request: pytest.FixtureRequest
) -> None:
    layout = {"a": ["arbiter:1"], **{site: [NAMES[number] for number in numbers] for site, numbers in OF_SITE.items()}}

    def of_site(name: str) -> dict[str, Any]:
        return {"aggregate": {"site_wait": LONG_WAIT, "site_sums": name != "c"}}

    with ExitStack() as stack:
        sites = stack.enter_context(start_gateways(layout, tmp_path, memory=MEMORY, of_site=of_site))
        assert isinstance(sites, Sites)
        sites.runner.stop(sites["b"])
        eventually(lambda: not sites["a"].connected())
        with sites["a"].client(request.node.name, "arbiter:1") as arbiter:
            arbiter.expect_sum("masked", SOURCES)
            sites.runner.start(sites["b"])
            session = Session(sites, request.node.name, stack)
            eventually(lambda: session.knows_ahead("b"), 30.0)
            assert not session.knows_ahead("c")
            assert session.round("r1", before=range(6)) == right
            eventually(lambda: session.come("r1") == (1, 3))


def test_where_updates_are_added_by_rank_nothing_is_said_ahead(tmp_path: Path) -> None:
    layout = {"a": ["arbiter:1"], **{site: [NAMES[number] for number in numbers] for site, numbers in OF_SITE.items()}}
    with ExitStack() as stack:
        sites = stack.enter_context(start_gateways(layout, tmp_path, memory=MEMORY, aggregate={"order": "rank"}))
        assert isinstance(sites, Sites)
        session = Session(sites, "by rank", stack)
        session.arbiter.expect_sum("masked", SOURCES)
        assert session.ahead() == 0
