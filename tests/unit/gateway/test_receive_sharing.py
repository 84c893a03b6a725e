"""What a receiver's link carries is known before the first round, of trains that are wanted of all peers at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.core.path_probe import JointAnswer
from fedrdma_fate.core.shares.joint_probe import ANSWERED_SECONDS, WANTED_SECONDS, datagrams_each
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.gateway.config.schema import ReceiveConfig
from fedrdma_fate.gateway.receive_sharing import ReceiveSharing
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES
from tests.support.twin import run_virtually

PEERS = 4
OWN = 1e8
"""Of each peer's link."""

LINK = 2e8
"""Of the receiver's."""


class Link:
    """As much of a link as is looked at. Its peer's trains meet those of others at a link of the receiver's.

    Attributes:
        asked: (when, how many datagrams), for each train that was wanted.
        come: of each train, at most.
    """

    def __init__(self, place: int, round_trip: float) -> None:
        self.known_path = None
        self.probed_rate: float | None = OWN
        self.arrivals = Arrivals()
        self.wanted: JointAnswer | None = None
        self.asked: list[tuple[float, int]] = []
        self.come = 1000
        self._place = place
        self._round_trip = round_trip

    def share(self, rate: float, place: float) -> None:
        pass

    def want_train(self, began: float, count: int) -> None:
        now = asyncio.get_running_loop().time()
        self.asked.append((now, count))
        self.wanted = None
        came = min(count, self.come)
        if came:
            own = DATAGRAM_BYTES / LINK
            # by turns, the first of each after those of the others before it
            first = now + self._round_trip + (self._place + 1) * own
            spread = (count - 1) * PEERS * own
            self.wanted = JointAnswer(began, first + spread - began, spread, came, count)


class Site:
    """A site with peers at different distances."""

    def __init__(self, config: ReceiveConfig | None = None) -> None:
        self.sharing = ReceiveSharing(config or ReceiveConfig(), lambda _: None)
        self.trips = [0.02 * (number + 1) for number in range(PEERS)]
        self.links: list[Any] = [Link(number, trip) for number, trip in enumerate(self.trips)]

    def join(self, count: int = PEERS, *, sends_trains: bool = True) -> None:
        for number in range(count):
            self.sharing.join(str(number), "udp", self.links[number], self.trips[number], sends_trains=sends_trains)

    @property
    def rate(self) -> float:
        told: Any = self.sharing.status()["bits_per_second"]
        return float(told) / 8

    @property
    def expected(self) -> int:
        told: Any = self.sharing.status()["expected"]
        return int(told)

    @property
    def counts(self) -> list[list[int]]:
        return [[count for _, count in link.asked] for link in self.links]


async def answered() -> None:
    """Until trains have come, and longer ones as well."""
    await asyncio.sleep(WANTED_SECONDS + 2 * (ANSWERED_SECONDS + 0.1))


def test_trains_of_all_come_at_one_moment_and_tell_more_than_that_of_the_fastest() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        assert site.rate == OWN
        await answered()
        first, more = datagrams_each(PEERS, more=False), datagrams_each(PEERS, more=True)
        assert site.counts == [[first, more]] * PEERS
        for number in range(2):
            comes = [link.asked[number][0] + trip for link, trip in zip(site.links, site.trips, strict=True)]
            assert max(comes) - min(comes) < 1e-6
        assert site.rate == pytest.approx(LINK, rel=0.05)

    run_virtually(scenario())


def test_where_half_of_the_trains_do_not_come_nothing_is_believed_and_where_one_does_not_less() -> None:
    async def scenario() -> None:
        site = Site()
        for link in site.links[:2]:
            link.come = 0
        site.join()
        await answered()
        assert site.rate == OWN
        one = Site()
        one.links[0].come = 0
        one.join()
        await answered()
        assert OWN < one.rate < LINK

    run_virtually(scenario())


@pytest.mark.parametrize("case", ["older", "alone", "configured", "off", "fast"])
def test_nobody_is_asked_who_would_not_understand_it_or_where_it_would_tell_nothing(case: str) -> None:
    async def scenario() -> None:
        configs = {"configured": ReceiveConfig(rate=8 * OWN), "off": ReceiveConfig(share="off")}
        site = Site(configs.get(case))
        if case == "fast":
            for link in site.links:
                link.probed_rate = None
        site.join(1 if case == "alone" else PEERS, sends_trains=case != "older")
        await answered()
        assert site.counts == [[]] * PEERS

    run_virtually(scenario())


def test_while_somebody_sends_nobody_is_asked_but_when_it_has_ended_all_are() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        offer: Any = SimpleNamespace(transfer=1, mode="fedrdma-x")
        site.sharing.begun("0", offer, 0.02)
        await answered()
        assert site.counts == [[]] * PEERS
        site.sharing.ended("0", 1)
        await answered()
        assert all(site.counts)

    run_virtually(scenario())


def test_who_has_left_is_not_asked_and_when_a_path_is_another_before_all_have_come_all_are_again() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        site.sharing.leave("3")
        newer: Any = Link(0, site.trips[0])
        await asyncio.sleep(WANTED_SECONDS + 0.01)
        site.sharing.join("0", "udp", newer, site.trips[0], sends_trains=True)
        await answered()
        assert site.counts[3] == []
        assert [count for _, count in newer.asked] == site.counts[1][-2:]
        assert len(site.counts[1]) == 3
        assert site.rate == pytest.approx(LINK, rel=0.3)

    run_virtually(scenario())


def test_only_parties_of_sessions_here_are_expected_also_of_those_that_connect_later() -> None:
    async def scenario() -> None:
        site = Site()
        # an earlier run has left sessions, of which this one knows before anybody has connected
        site.sharing.expect(["0", "1"])
        site.join()
        assert site.expected == 2
        site.sharing.expect([])
        assert site.expected == PEERS

    run_virtually(scenario())
