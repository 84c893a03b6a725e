"""A tree of sites of three levels: sums go up by each of them, and each party counts once whatever one of them does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.client import GatewayClient, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed
from fedrdma_fate.gateway.tasks import site_addition
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.site_sum import MOST_TRANSFER, Part, SiteSum
from tests.support.sites import Sites, eventually, party, start_gateways
from tests.support.sum_orders import orders_of
from tests.support.summands import bits, exact_sum, masked, pairs_in, written

NAMES = [f"host:{number}" for number in range(8)]
SOURCES = [party(name) for name in NAMES]
ARBITER = party("arbiter:1")
SHAPES = ((9_001,), (3, 5))
"""Just more than what a message may have that is sent with its name and tag."""
UPDATES = masked(SHAPES, len(SOURCES), seed=31)
LAYOUT = {"a": ["arbiter:1"], "top": NAMES[:2], "middle": NAMES[2:4], "leaf": NAMES[4:6], "apart": NAMES[6:]}
SITE_OF = {name: site for site, names in LAYOUT.items() for name in names}
PARENTS = {"leaf": "middle", "middle": "top"}
MEMORY = {"send_bytes": "4MiB", "receive_bytes": "6MiB", "ring_slots": 2, "ring_slot_bytes": "64KiB"}
LONG_WAIT = 600.0
"""Seconds that no site waits in a test."""
TREE = {"top": "a", "middle": "top", "leaf": "middle", "apart": "a"}
"""Whose order each site has."""


def settings(name: str) -> dict[str, Any]:
    """Of a site of the tree."""
    return {"aggregate": {"site_wait": LONG_WAIT, "parent": PARENTS.get(name)}}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with start_gateways(LAYOUT, tmp_path_factory.mktemp("deep"), memory=MEMORY, of_site=settings) as running:
        yield running


class Session:
    """A session in which everybody has a task."""

    def __init__(self, sites: Sites, name: str, stack: ExitStack) -> None:
        self.name = name
        self.sites = sites
        self._pool = stack.enter_context(ThreadPoolExecutor(1))
        self._arbiter = stack.enter_context(sites["a"].client(name, "arbiter:1"))
        self._hosts = [stack.enter_context(sites[SITE_OF[each]].client(name, each)) for each in NAMES]

    def push(self, *numbers: int) -> None:
        for number in numbers:
            body = written(UPDATES[number], SOURCES[number], float(number))
            client: GatewayClient = self._hosts[number]
            lease = client.lease(len(body))
            lease.buffer[:] = body
            lease.commit("masked", "t", [ARBITER], "object")

    def ask(self, by: dict[str, str]) -> Future[ReceivedSum | NotSummed]:
        """Ask for the sum of all, and wait until these sites have orders by those."""
        future = self._pool.submit(self._arbiter.get_sum, "masked", "t", SOURCES, timeout=60.0)
        for site, its in by.items():
            eventually(lambda site=site, its=its: self.orders_at(site, its) == 1)
        return future

    def orders_at(self, site: str, by: str) -> int:
        """Of this session."""
        return orders_of(self.sites[site], self.name, by)

    def come(self, site: str = "a") -> tuple[int, int]:
        """Sums of sites, and updates by themselves, that have come to a site."""
        delivered = [each for each in self.sites[site].events("delivered") if each["session"] == self.name]
        sums = sum("sum of a site" in each["name"] for each in delivered)
        return sums, len(delivered) - sums

    def check(self, future: Future[ReceivedSum | NotSummed]) -> None:
        """Each party is in once, and nothing is left anywhere."""
        summed = future.result(timeout=90)
        assert isinstance(summed, ReceivedSum), summed
        assert (summed.parties_in, summed.reason) == (tuple(range(len(NAMES))), "")
        assert summed.weight == sum(range(len(NAMES)))
        assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(exact_sum(UPDATES, SHAPES))
        for site in set(LAYOUT) - {"a"}:
            eventually(lambda site=site: self.sites[site].pool("send")["slots"] == 0)
            eventually(lambda site=site: self.sites[site].status()["mailbox"]["messages"] == 0)
            eventually(lambda site=site: not any(peer["sum_orders"] for peer in self.sites[site].status()["peers"]))


@pytest.fixture
def session(sites: Sites, request: pytest.FixtureRequest) -> Iterator[Session]:
    with ExitStack() as stack:
        yield Session(sites, request.node.name, stack)


def test_sums_go_up_three_levels_with_the_bits_of_each_party_alone(session: Session) -> None:
    future = session.ask(TREE)
    session.push(*reversed(range(8)))

    session.check(future)
    assert session.come("middle") == session.come("top") == (1, 0)
    # the tree's, and that of the site apart
    assert session.come() == (2, 0)


@pytest.mark.parametrize(
    ("of_middle", "sums_come"),
    [
        pytest.param({"site_sums": False}, (3, 2), id="it adds nothing"),
        pytest.param({"fan_in": 0}, (3, 0), id="it adds nobody's", marks=pytest.mark.sweep),
    ],
)
def test_where_the_middle_of_the_tree_does_not_do_its_part_the_others_are_asked_past_it(
    tmp_path: Path, of_middle: dict[str, Any], sums_come: tuple[int, int]
) -> None:
    def of_site(name: str) -> dict[str, Any]:
        its: dict[str, Any] = settings(name)
        return {"aggregate": {**its["aggregate"], **(of_middle if name == "middle" else {})}}

    with start_gateways(LAYOUT, tmp_path, memory=MEMORY, of_site=of_site) as sites, ExitStack() as stack:
        session = Session(sites, "past", stack)
        future = session.ask({"top": "a", "apart": "a"})
        for site in ("leaf", "middle") if of_middle.get("site_sums", True) else ("leaf",):
            eventually(lambda site=site: sum(session.orders_at(site, by) for by in ("a", "middle", "top")) == 1)
        session.push(*range(8))

        session.check(future)
        assert session.come() == sums_come


Lie = Callable[[SiteSum], SiteSum]


def names(site: str, instead_of: int, other: Party) -> tuple[str, Lie]:
    """It says that another party is in its sum, in place of one of it."""

    def lie(said: SiteSum) -> SiteSum:
        return SiteSum(
            said.parties,
            tuple(
                Part(other, part.weight, part.transfer) if part.party == SOURCES[instead_of] else part
                for part in said.parts
            ),
            said.shapes,
        )

    return site, lie


def says_fewer(site: str, *left: int) -> tuple[str, Lie]:
    """It has added all, and does not say so of some."""

    def lie(said: SiteSum) -> SiteSum:
        return SiteSum(
            said.parties, tuple(part for part in said.parts if SOURCES.index(part.party) in left), said.shapes
        )

    return site, lie


def says_of_fewer_in_all(site: str) -> tuple[str, Lie]:
    """Its fractions have other bits behind the point, it says."""
    return site, lambda said: SiteSum(said.parties - 1, said.parts, said.shapes)


OF_SITE = {"leaf": set(SOURCES[4:6]), "middle": set(SOURCES[2:6]), "top": set(SOURCES[:6])}
"""Whose updates are in the sum that it sends."""


@pytest.mark.parametrize(
    ("liar", "come"),
    [
        # its parties go alone, and the sums of those above it go without
        pytest.param(names("leaf", 4, SOURCES[2]), (2, 2), id="leaf: the middle's", marks=pytest.mark.sweep),
        pytest.param(names("leaf", 4, SOURCES[0]), (2, 2), id="leaf: the top's"),
        pytest.param(names("leaf", 4, SOURCES[6]), (2, 2), id="leaf: of the site apart", marks=pytest.mark.sweep),
        pytest.param(names("leaf", 4, ARBITER), (2, 2), id="leaf: the arbiter", marks=pytest.mark.sweep),
        pytest.param(says_of_fewer_in_all("leaf"), (2, 2), id="leaf: of another whole", marks=pytest.mark.sweep),
        # nothing of what is below it is in the top's sum
        pytest.param(names("middle", 2, SOURCES[0]), (2, 4), id="middle: the top's", marks=pytest.mark.sweep),
        pytest.param(names("middle", 4, SOURCES[7]), (2, 4), id="middle: of the site apart"),
        pytest.param(names("middle", 4, party("host:77")), (2, 4), id="middle: nobody", marks=pytest.mark.sweep),
        # the arbiter takes nothing of it
        pytest.param(names("top", 0, SOURCES[6]), (2, 6), id="top: of the site apart", marks=pytest.mark.sweep),
        pytest.param(names("top", 4, party("host:77")), (2, 6), id="top: nobody"),
        pytest.param(names("top", 4, ARBITER), (2, 6), id="top: the arbiter", marks=pytest.mark.sweep),
        pytest.param(says_of_fewer_in_all("top"), (2, 6), id="top: of another whole", marks=pytest.mark.sweep),
    ],
)
def test_a_site_of_the_tree_that_lies_of_whom_its_sum_is_gets_no_lie_into_it(
    session: Session, monkeypatch: pytest.MonkeyPatch, liar: tuple[str, Lie], come: tuple[int, int]
) -> None:
    site, lie = liar
    encode, lies = site_addition.encode_site_sum, []

    def encode_lie(said: SiteSum) -> bytes:
        if said.parts[0].transfer == MOST_TRANSFER:
            # room for it, and for longer names
            return encode(said) + bytes(64)
        if {part.party for part in said.parts} != OF_SITE[site]:
            return encode(said)
        lies.append(site)
        return encode(lie(said))

    monkeypatch.setattr(site_addition, "encode_site_sum", encode_lie)
    future = session.ask(TREE)
    session.push(*range(6))
    eventually(lambda: lies)
    session.push(6, 7)

    session.check(future)
    assert lies == [site]
    assert session.come() == come


@pytest.mark.parametrize("site", ["middle", "top"])
def test_a_site_that_does_not_say_that_it_has_added_what_it_was_sent_spoils_the_sum_and_no_party_counts_twice(
    session: Session, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    # as a site that lies about its own: nobody can check fractions, but who is in is told of each once
    encode = site_addition.encode_site_sum
    _, lie = says_fewer(site, 0, 1, 2, 3)

    def encode_lie(said: SiteSum) -> bytes:
        of_site = {part.party for part in said.parts} == OF_SITE[site] and said.parts[0].transfer != MOST_TRANSFER
        return encode(lie(said) if of_site else said)

    monkeypatch.setattr(site_addition, "encode_site_sum", encode_lie)
    future = session.ask(TREE)
    session.push(*range(8))
    summed = future.result(timeout=90)

    assert isinstance(summed, ReceivedSum), summed
    assert (summed.parties_in, summed.weight) == (tuple(range(8)), 28.0)
    # those that were left out come alone
    assert session.come() == (2, 2)
