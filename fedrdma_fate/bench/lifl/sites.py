"""A round of many clients at some sites in virtual time: each update alone, one sum a site, or a tree of sites."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedrdma_fate.bench.lifl.costs import Costs
from fedrdma_fate.bench.lifl.hierarchy import Adding
from fedrdma_fate.bench.lifl.simulation import Link, OneByOne, Worker, World
from fedrdma_fate.bench.report import DataTable
from fedrdma_fate.core.planning import parents, tops_of
from fedrdma_fate.core.sum_tree import Asked, SumPlace, plan

WAYS = ("lazy", "eager", "site-sums")
"""All added when the last one is there; each as it comes; the sums of sites, each as it comes."""

TREE = "tree"
"""The way that is played besides where there is a tree: sums of sites go to parents, which add them to their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class RoundSetting:
    """Who sends.

    Attributes:
        clients: in all; client i is at site i modulo `sites`.
        sites: how many.
        spread: seconds in which clients become ready, by chance.
    """

    clients: int
    sites: int
    spread: float


SETTINGS = (
    RoundSetting(2, 2, 1),
    RoundSetting(8, 2, 1),
    RoundSetting(64, 8, 1),
    RoundSetting(64, 8, 60),
    RoundSetting(120, 15, 1),
    RoundSetting(1000, 50, 1),
    RoundSetting(1000, 50, 60),
    RoundSetting(10_000, 500, 1),
)

GOALS = {(64, 1): "≥ 3 × sooner", (1000, 1): "≥ 10 × sooner", (1000, 60): "≤ 10 % later"}
"""By clients and spread, of `site-sums` against `eager`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Links:
    """Between sites.

    Attributes:
        site: of each site, bytes a second.
        arbiter: of the arbiter's, bytes a second.
        wait: seconds that a site's sum waits for its last, `aggregate.site_wait`.
    """

    site: float
    arbiter: float
    wait: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """Of sites.

    Attributes:
        fan_in: sums of others that a site adds to its own, `aggregate.fan_in`.
        levels: of sites.
        near: of the link between a site and its parent, bytes a second; a parent's is shared by those below it.
    """

    fan_in: int
    levels: int
    near: float


@dataclasses.dataclass(frozen=True, slots=True)
class RoundOfSites:
    """How one went.

    Attributes:
        setting: who sends.
        way: how, of WAYS, or TREE.
        seconds: until the sum is whole.
        after_last: of those, after the last client was ready.
        up_bytes: to the arbiter's site.
        transfers: that they were.
        between_bytes: from sites to parents.
        asked: sums that the arbiter has asked for, its fan-in where all are in time.
        levels: of sites that add.
        wall_seconds: that playing it took.
    """

    setting: RoundSetting
    way: str
    seconds: float
    after_last: float
    up_bytes: int
    transfers: int
    between_bytes: int
    asked: int
    levels: int
    wall_seconds: float


def play(
    setting: RoundSetting, way: str, costs: Costs, links: Links, update_bytes: int, seed: int, tree: Tree | None = None
) -> RoundOfSites:
    """Play one.

    Args:
        setting: who sends.
        way: how, of WAYS, or TREE.
        costs: of adding.
        links: between sites.
        update_bytes: of each update, and of a sum.
        seed: of when clients are ready.
        tree: how sites are put together, where the way is TREE.
    """
    began = time.monotonic()
    world, ends = World(), list[float]()
    ready = np.random.default_rng((seed, setting.clients)).uniform(0, setting.spread, setting.clients).tolist()
    to_arbiter = Link(world, links.arbiter, links.site)
    arbiter = Adding(
        way != "lazy", _worker(world, costs), update_bytes, range(setting.clients), lambda: ends.append(world.now)
    )
    sites = _Sites(world, costs, links, update_bytes, setting, arbiter, to_arbiter)
    if way in ("site-sums", TREE):
        sites.ask(tree if way == TREE else None)
    for party in range(setting.clients):
        world.at(ready[party], functools.partial(sites.came, party))
    world.run()
    (end,) = ends
    wall = time.monotonic() - began
    carried, between = to_arbiter.carried, sites.between_bytes
    return RoundOfSites(
        setting, way, end, end - max(ready), carried, sites.transfers, between, sites.asked, sites.levels, wall
    )


def _worker(world: World, costs: Costs) -> Worker:
    return Worker(world, costs.add_seconds_per_byte, costs.notice_seconds, 0.0)


class _Sites:
    """All that send to the arbiter, as `core/sum_tree.py` says whose sum goes where.

    Attributes:
        transfers: to the arbiter's site.
        asked: sums that the arbiter has asked for.
        levels: of sites, the deepest.
    """

    def __init__(
        self,
        world: World,
        costs: Costs,
        links: Links,
        update_bytes: int,
        setting: RoundSetting,
        arbiter: Adding,
        to_arbiter: Link,
    ) -> None:
        self._world = world
        self._costs = costs
        self._links = links
        self._update_bytes = update_bytes
        self._count = min(setting.sites, setting.clients)
        self._arbiter = arbiter
        self._parties = {str(site): range(site, setting.clients, self._count) for site in range(self._count)}
        self._own = [OneByOne(to_arbiter.send) for _ in range(self._count)]
        self._near: list[Link] = []
        self._sums: dict[str, _SiteSum] = {}
        self.transfers = 0
        self.asked = self.levels = 0

    def ask(self, tree: Tree | None) -> None:
        """The arbiter asks each site for its sum, or in a tree those at the top for what is below them, too."""
        above: Sequence[int | None] = [None] * self._count
        if tree is not None:
            above = parents(self._count, tree.fan_in, tops_of(self._count, tree.fan_in, tree.levels))
            # a parent takes what comes over a link of its own
            self._near = [Link(self._world, tree.near, tree.near) for _ in range(self._count)]
        fan_in = 0 if tree is None else tree.fan_in
        places = {
            str(site): SumPlace("" if (at := above[site]) is None else str(at), fan_in) for site in range(self._count)
        }
        for asked in plan("", self._parties, places, is_root=True):
            if asked.is_sum:
                self.asked += 1
                self.levels = max(self.levels, asked.levels)
                up = functools.partial(self._send_sum, self._own[int(asked.site)])
                self._begin(asked, places, up, lambda: None)

    def _begin(
        self,
        asked: Asked[int],
        places: Mapping[str, SumPlace],
        up: Callable[[Sequence[int]], object],
        none: Callable[[], object],
    ) -> _SiteSum:
        site = asked.site
        below_it = {each: self._parties[each] for each in asked.sites if each != site}
        below = [each for each in plan(site, below_it, places, is_root=False) if each.is_sum]
        wait = self._links.wait * (1 + max((each.levels for each in below), default=0))
        worker = _worker(self._world, self._costs)
        its = _SiteSum(self._world, worker, self._update_bytes, self._parties[site], wait, self._alone, up, none)
        self._sums[site] = its
        for each in below:
            near = OneByOne(self._near[int(site)].send)
            to_parent = functools.partial(self._send_near, near, its, each.site)
            its.awaits(each.site, self._begin(each, places, to_parent, functools.partial(its.none, each.site)))
        return its

    def came(self, party: int) -> None:
        """A client has put its update."""
        its = self._sums.get(str(party % self._count))
        if its is None:
            self._alone(party)
        else:
            its.came(party)

    @property
    def between_bytes(self) -> int:
        """From sites to parents."""
        return sum(link.carried for link in self._near)

    def _alone(self, party: int) -> None:
        self.transfers += 1
        self._own[party % self._count].put(self._update_bytes, lambda: self._arbiter.came(party))

    def _send_sum(self, own: OneByOne, parties: Sequence[int]) -> None:
        self.transfers += 1
        own.put(self._update_bytes, lambda: self._arbiter.came_together(parties))

    def _send_near(self, near: OneByOne, parent: _SiteSum, site: str, parties: Sequence[int]) -> None:
        near.put(self._update_bytes, lambda: parent.sum_came(site, parties))


class _SiteSum:
    """What a site adds, as `gateway/tasks/site_addition.py` does: what is here when the time is over is in it."""

    def __init__(
        self,
        world: World,
        worker: Worker,
        update_bytes: int,
        parties: Sequence[int],
        wait: float,
        alone: Callable[[int], object],
        together: Callable[[Sequence[int]], object],
        none: Callable[[], object],
    ) -> None:
        """
        Args:
            world: whose time it is.
            worker: of the site.
            update_bytes: of each update.
            parties: of the site.
            wait: seconds from the first update on.
            alone: sends the update of a party.
            together: sends the sum of some.
            none: called where there is no sum to be sent.
        """
        self._world = world
        self._worker = worker
        self._update_bytes = update_bytes
        self._missing = set(parties)
        self._wait = wait
        self._alone = alone
        self._together = together
        self._none = none
        self._below: dict[str, _SiteSum] = {}
        self._awaited: set[str] = set()
        self._kept: list[int] = []
        self._of_others: list[int] = []
        self._pending = 0
        self._waits = self._is_over = self._is_sent = self._is_alone = False

    def awaits(self, site: str, its: _SiteSum) -> None:
        """The sum of this one is to be added, too."""
        self._below[site] = its
        self._awaited.add(site)

    def came(self, party: int) -> None:
        """A client has put its update."""
        if self._is_sent or self._is_over:
            self._alone(party)
            return
        self._missing.remove(party)
        self._kept.append(party)
        self._add()

    def sum_came(self, site: str, parties: Sequence[int]) -> None:
        """The sum of a site below is here; of one that is late its parties have gone alone."""
        if site in self._awaited:
            self._awaited.remove(site)
            self._of_others += parties
            self._add()

    def none(self, site: str) -> None:
        """No sum comes of that one."""
        self._awaited.discard(site)
        self._send_if_done()

    def withdraw(self) -> None:
        """Nobody waits for it: what is in it goes alone, and what is in those below."""
        self._is_sent = True
        self._awaited.clear()
        self._go_alone()
        for its in self._below.values():
            its.withdraw()

    def _go_alone(self) -> None:
        if not self._is_alone:
            self._is_alone = True
            for party in self._kept:
                self._alone(party)

    def _add(self) -> None:
        if not self._waits:
            self._waits = True
            self._world.after(self._wait, self._time_is_over)
        self._pending += 1
        self._worker.add(self._update_bytes, self._is_in)

    def _is_in(self) -> None:
        self._pending -= 1
        self._send_if_done()

    def _time_is_over(self) -> None:
        if self._is_sent:
            return
        self._is_over = True
        for site in self._awaited:
            self._below[site].withdraw()
        self._awaited.clear()
        self._send_if_done()

    def _send_if_done(self) -> None:
        if self._is_sent or self._pending or ((self._missing or self._awaited) and not self._is_over):
            return
        self._is_sent = True
        parties = self._kept + self._of_others
        if len(parties) > 1:
            self._together(parties)
            return
        # it has one of its own at most, for the sum of another site has two or more
        self._go_alone()
        self._none()


def to_table(rounds: Sequence[RoundOfSites], links: Links, update_bytes: int, tree: Tree | None = None) -> DataTable:
    """For people."""
    title = (
        f"Rounds of updates of {update_bytes / 1e6:.0f} MB; a site's link {links.site * 8e-9:g} Gbit/s, the arbiter's "
        f"{links.arbiter * 8e-9:g}; a site's sum waits {links.wait:g} s"
    )
    if tree is not None:
        title += f"; in a tree {tree.fan_in} sums go to a parent at most, over {tree.near * 8e-9:g} Gbit/s"
    eager = {each.setting: each for each in rounds if each.way == "eager"}
    rows = []
    for each in rounds:
        setting, other = each.setting, eager.get(each.setting)
        beside = "" if other is None or each is other else f"{other.after_last / each.after_last:.2f} ×"
        goal = GOALS.get((setting.clients, int(setting.spread)), "") if each.way == "site-sums" else ""
        way = each.way if each.way != TREE else f"{each.way} of {each.levels} levels, {each.asked} at its top"
        rows.append(
            (
                f"{setting.clients} at {setting.sites}, within {setting.spread:g} s, {way}",
                f"{each.after_last:.2f} s",
                beside,
                f"{each.up_bytes / 1e9:.2f} GB in {each.transfers}",
                f"{each.between_bytes / 1e9:.2f} GB" if each.between_bytes else "",
                goal,
                f"{each.wall_seconds:.2f} s",
            )
        )
    columns = (
        "clients, sites, way",
        "after the last",
        "sooner than eager",
        "to the arbiter",
        "to parents",
        "goal",
        "played in",
    )
    return DataTable(title, columns, rows)
