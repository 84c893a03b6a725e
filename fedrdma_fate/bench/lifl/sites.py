"""A round of many clients at some sites in virtual time: each update alone, or one sum a site."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np

from fedrdma_fate.bench.lifl.costs import Costs
from fedrdma_fate.bench.lifl.hierarchy import Adding
from fedrdma_fate.bench.lifl.simulation import Link, OneByOne, Worker, World
from fedrdma_fate.bench.report import DataTable

WAYS = ("lazy", "eager", "site-sums")
"""All added when the last one is there; each as it comes; the sums of sites, each as it comes."""


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
class RoundOfSites:
    """How one went.

    Attributes:
        setting: who sends.
        way: how, of WAYS.
        seconds: until the sum is whole.
        after_last: of those, after the last client was ready.
        up_bytes: to the arbiter's site.
        transfers: that they were.
        wall_seconds: that playing it took.
    """

    setting: RoundSetting
    way: str
    seconds: float
    after_last: float
    up_bytes: int
    transfers: int
    wall_seconds: float


def play(setting: RoundSetting, way: str, costs: Costs, links: Links, update_bytes: int, seed: int) -> RoundOfSites:
    """Play one.

    Args:
        setting: who sends.
        way: how, of WAYS.
        costs: of adding.
        links: between sites.
        update_bytes: of each update, and of a sum.
        seed: of when clients are ready.
    """
    began = time.monotonic()
    world, ends = World(), list[float]()
    ready = np.random.default_rng((seed, setting.clients)).uniform(0, setting.spread, setting.clients).tolist()
    down = Link(world, links.arbiter, links.site)
    arbiter = Adding(
        way != "lazy", _worker(world, costs), update_bytes, range(setting.clients), lambda: ends.append(world.now)
    )
    transfers = 0

    def send(own: OneByOne, there: Callable[[], object]) -> None:
        nonlocal transfers
        transfers += 1
        own.put(update_bytes, there)

    def alone(own: OneByOne, party: int) -> None:
        send(own, lambda: arbiter.came(party))

    def together(own: OneByOne, those: Sequence[int]) -> None:
        send(own, lambda: arbiter.came_together(those))

    for site in range(min(setting.sites, setting.clients)):
        own = OneByOne(down.send)
        parties = range(site, setting.clients, setting.sites)
        comes: Callable[[int], object] = functools.partial(alone, own)
        if way == "site-sums" and len(parties) > 1:
            worker = _worker(world, costs)
            summed = functools.partial(together, own)
            comes = _SiteSum(world, worker, update_bytes, parties, links.wait, comes, summed).came
        for party in parties:
            world.at(ready[party], functools.partial(comes, party))
    world.run()
    (end,) = ends
    wall = time.monotonic() - began
    return RoundOfSites(setting, way, end, end - max(ready), down.carried, transfers, wall)


def _worker(world: World, costs: Costs) -> Worker:
    return Worker(world, costs.add_seconds_per_byte, costs.notice_seconds, 0.0)


class _SiteSum:
    """What a site adds, as `gateway/tasks/site_sums.py` does: what is here when the time is over is in it."""

    def __init__(
        self,
        world: World,
        worker: Worker,
        update_bytes: int,
        parties: Sequence[int],
        wait: float,
        alone: Callable[[int], object],
        together: Callable[[Sequence[int]], object],
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
        """
        self._world = world
        self._worker = worker
        self._update_bytes = update_bytes
        self._missing = set(parties)
        self._wait = wait
        self._alone = alone
        self._together = together
        self._kept: list[int] = []
        self._added = 0
        self._is_over = self._is_sent = False

    def came(self, party: int) -> None:
        """A client has put its update."""
        if self._is_sent or self._is_over:
            self._alone(party)
            return
        if not self._kept:
            self._world.after(self._wait, self._time_is_over)
        self._missing.remove(party)
        self._kept.append(party)
        self._worker.add(self._update_bytes, self._is_in)

    def _is_in(self) -> None:
        self._added += 1
        self._send_if_done()

    def _time_is_over(self) -> None:
        self._is_over = True
        self._send_if_done()

    def _send_if_done(self) -> None:
        if self._is_sent or self._added < len(self._kept) or (self._missing and not self._is_over):
            return
        self._is_sent = True
        if len(self._kept) > 1:
            self._together(self._kept)
        else:
            self._alone(self._kept[0])


def to_table(rounds: Sequence[RoundOfSites], links: Links, update_bytes: int) -> DataTable:
    """For people."""
    title = (
        f"Rounds of updates of {update_bytes / 1e6:.0f} MB; a site's link {links.site * 8e-9:g} Gbit/s, the arbiter's "
        f"{links.arbiter * 8e-9:g}; a site's sum waits {links.wait:g} s"
    )
    eager = {each.setting: each for each in rounds if each.way == "eager"}
    rows = []
    for each in rounds:
        setting, other = each.setting, eager.get(each.setting)
        beside = "" if other is None or each is other else f"{other.after_last / each.after_last:.2f} ×"
        goal = GOALS.get((setting.clients, int(setting.spread)), "") if each.way == "site-sums" else ""
        rows.append(
            (
                f"{setting.clients} at {setting.sites}, within {setting.spread:g} s, {each.way}",
                f"{each.after_last:.2f} s",
                beside,
                f"{each.up_bytes / 1e9:.2f} GB in {each.transfers}",
                goal,
                f"{each.wall_seconds:.2f} s",
            )
        )
    columns = ("clients, sites, way", "after the last", "sooner than eager", "to the arbiter", "goal", "played in")
    return DataTable(title, columns, rows)
