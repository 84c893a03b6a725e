"""A session of several sites of which one comes late, and whose gateways are stopped, and killed, between its rounds.

`python -m tests.support.late_sites [--sites 4] [--late 60] [--megabytes 100]`: a gateway for each site, each a process
and a peer of all others over tcp, all on this host; a silo at each, and the arbiter at the first. A round is an
aggregation as in `site_times`, of other numbers each time, and sum and aggregates are held against what they have to
be, bit by bit. The gateway and the party of the last site start so many seconds after all others have put. Then, when
all others have put for the next round, a silo's gateway is stopped in order and started again, or killed; and so is the
arbiter's, where the updates of the others lie.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fedrdma_fate.client.client import GatewayClient, Received, ReceivedSum
from tests.support.site_times import ARBITER, DOWN, PARAMETER_BYTES, STEP_SECONDS, UP, running, silo
from tests.support.sites import InProcesses, Site, Sites, eventually, runner_of
from tests.support.summands import Floats, Pairs, bits, pairs_in, summed_by_rank, written

SITES = 4
GET_SECONDS = 2 * STEP_SECONDS
"""Beyond the lateness, and a gateway's start."""

FRACTION_STEP = 2.0**-32
"""Fractions are whole multiples of it: then no addition rounds, and the right bits are the same in whatever order."""

RESTARTED = ("a silo's", "the arbiter's")
"""Whose gateways are stopped and killed: that of site 1, which has never been late, and that of the first."""


class AllButOne(InProcesses):
    """Starts all sites but one, which is started when that is asked for once more."""

    def __init__(self, late: str) -> None:
        """
        Args:
            late: the site's name.
        """
        super().__init__(STEP_SECONDS)
        self._late = late

    def start(self, site: Site) -> None:
        """Start a gateway."""
        if site.name == self._late:
            self._late = ""
        else:
            super().start(site)


@dataclasses.dataclass(frozen=True)
class Round:
    """What a round took, in seconds.

    Attributes:
        whole: from the first put until the last silo has the aggregate.
        after: the part of it after what was done meanwhile.
    """

    whole: float
    after: float


class Session:
    """A silo at each site, and the arbiter at the first. A silo attaches when it first puts."""

    def __init__(self, sites: Sites, name: str, megabytes: float) -> None:
        """
        Args:
            sites: in their order.
            name: of the session.
            megabytes: of an update.
        """
        self._sites, self._name = list(sites.values()), name
        self.silos = [silo(number) for number in range(len(sites))]
        items = max(1, int(megabytes * 1e6) // PARAMETER_BYTES)
        made = np.random.default_rng(16)
        self._updates: list[tuple[Floats, Floats]] = [
            (made.integers(-(2**33), 2**33, items) * FRACTION_STEP, made.integers(-(10**7), 10**7, items) * 1.0)
            for _ in self.silos
        ]
        self._clients: dict[int, GatewayClient] = {}
        self._stack = contextlib.ExitStack()
        self.arbiter = self._attached(0, ARBITER)

    def close(self) -> None:
        """All tasks go."""
        self._stack.close()

    def put(self, number: int, tag: int) -> None:
        """A silo's update of a round."""
        if number not in self._clients:
            self._clients[number] = self._attached(number, self.silos[number])
        body = written(self._update(number, tag), self.silos[number])
        lease = self._clients[number].lease(len(body), timeout=STEP_SECONDS)
        lease.buffer[:] = body
        lease.commit(UP, str(tag), [ARBITER], "object")

    def sum(self, tag: int, timeout: float = GET_SECONDS) -> ReceivedSum:
        """Of the updates of a round."""
        summed = self.arbiter.get_sum(UP, str(tag), self.silos, timeout=timeout)
        assert isinstance(summed, ReceivedSum), summed
        return summed

    def round(self, tag: int, last: int | None = None, meanwhile: Callable[[], None] = lambda: None) -> Round:
        """One aggregation.

        Args:
            tag: its number.
            last: the silo that puts when all others have, and wait, and `meanwhile` has returned; else one like all.
            meanwhile: what is done to its site.

        Raises:
            AssertionError: the sum, or an aggregate, is not to the bit what it has to be.
        """
        everybody = range(len(self.silos))
        others = [number for number in everybody if number != last]
        began = time.monotonic()
        with ThreadPoolExecutor(2 * len(self.silos) + 1) as pool:
            arbiter = pool.submit(self._arbitrate, tag)
            for put in [pool.submit(self.put, number, tag) for number in others]:
                put.result()
            gets = [pool.submit(self._aggregate, number, tag) for number in others]
            meanwhile()
            able = time.monotonic()
            if last is not None:
                self.put(last, tag)
                gets.append(pool.submit(self._aggregate, last, tag))
            received = [get.result() for get in gets]
            ended = time.monotonic()
            summed = arbiter.result()
        self.check(summed, tag)
        [(fraction, _)] = self._right(tag)
        for aggregate in received:
            assert bytes(aggregate.buffer) == fraction.tobytes(), f"the aggregate of round {tag}"
        return Round(ended - began, ended - able)

    def check(self, summed: ReceivedSum, tag: int) -> None:
        """Everybody is in a sum, once.

        Raises:
            AssertionError: they are not.
        """
        assert (summed.parties_in, summed.weight) == (tuple(range(len(self.silos))), len(self.silos)), summed.reason
        assert bits(pairs_in(summed.buffer, summed.shapes)) == bits(self._right(tag)), f"the sum of round {tag}"

    def _attached(self, number: int, party: Any) -> GatewayClient:
        client = GatewayClient(self._sites[number].address, self._name, party, connect_timeout=STEP_SECONDS)
        return self._stack.enter_context(client)

    def _update(self, number: int, tag: int) -> Pairs:
        fraction, whole = self._updates[number]
        return [(fraction + tag, whole + tag)]

    def _right(self, tag: int) -> Pairs:
        return summed_by_rank([self._update(number, tag) for number in range(len(self.silos))])

    def _arbitrate(self, tag: int) -> ReceivedSum:
        summed = self.sum(tag)
        [shape] = summed.shapes
        # the first of its two planes
        aggregate = summed.buffer[: 8 * shape[0]]
        lease = self.arbiter.lease(len(aggregate), timeout=STEP_SECONDS)
        lease.buffer[:] = aggregate
        lease.commit(DOWN, str(tag), self.silos, "object")
        return summed

    def _aggregate(self, number: int, tag: int) -> Received:
        return self._clients[number].get(DOWN, str(tag), ARBITER, timeout=GET_SECONDS)


@contextlib.contextmanager
def all_but_the_last(count: int, megabytes: float, directory: Path) -> Iterator[Sites]:
    """Sites of which the last does not run yet."""
    with running(count, 1, megabytes, directory, AllButOne(f"site{count - 1:02}")) as sites:
        yield sites


def come_late(sites: Sites, seconds: float) -> None:
    """Wait so long, and start the last site's gateway."""
    time.sleep(seconds)
    runner_of(sites).start(list(sites.values())[-1])


def end_and_start(sites: Sites, number: int, *, killed: bool) -> None:
    """A gateway ends and is started again."""
    site = list(sites.values())[number]
    if killed:
        runner_of(sites).kill(site)
    else:
        runner_of(sites).stop(site)
    runner_of(sites).start(site)


def check_nothing_left(sites: Sites, session: str) -> None:
    """Every message was delivered once, and none waits.

    Raises:
        AssertionError: it is not so.
    """
    events = [event for site in sites.values() for event in site.events("delivered") if event["session"] == session]
    parts = ("name", "tag", "source", "destination")
    delivered = Counter(tuple(str(event[part]) for part in parts) for event in events)
    assert delivered, "nothing was traced"
    assert {key: times for key, times in delivered.items() if times > 1} == {}
    eventually(lambda: not any(site.status()["mailbox"]["messages"] for site in sites.values()))


def measure_rounds(count: int, megabytes: float, late: float) -> Iterator[str]:
    """The lines of the table."""
    with (
        tempfile.TemporaryDirectory() as name,
        all_but_the_last(count, megabytes, Path(name)) as sites,
        contextlib.closing(Session(sites, "late", megabytes)) as session,
    ):
        found = session.round(0, count - 1, lambda: come_late(sites, late))
        yield _line(f"the last site comes after {late:g} s", found)
        tag = 1
        yield _line("nothing", session.round(tag))
        for number in (1, 0):
            for killed in (False, True):
                tag += 1

                def meanwhile(number: int = number, *, killed: bool = killed) -> None:
                    end_and_start(sites, number, killed=killed)

                found = session.round(tag, number, meanwhile)
                whose = RESTARTED[number == 0]
                yield _line(f"{whose} gateway is {'killed' if killed else 'stopped'} and started", found)
        yield _line("nothing", session.round(tag + 1))
        check_nothing_left(sites, "late")


def _line(what: str, found: Round) -> str:
    return f"| {what} | {found.whole:.2f} s | {found.after:.2f} s |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=SITES, help="how many")
    parser.add_argument("--late", type=float, default=60.0, help="seconds after which the last site comes")
    parser.add_argument("--megabytes", type=float, default=100.0, help="of an update")
    given = parser.parse_args()
    print("| meanwhile | the round | of it after that |\n|---|---|---|", flush=True)
    for line in measure_rounds(given.sites, given.megabytes, given.late):
        print(line, flush=True)
    print(f"\nload of the last minute: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
