"""The link is shared where all peers are seen: who takes part, what is told, and when it is looked at."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.shares.receive_shares import GATHER_SECONDS
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.core.x.controller import LEAST_RATE
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.gateway.config.schema import ReceiveConfig
from fedrdma_fate.gateway.link_sharing import LinkSharing, ToldShare
from fedrdma_fate.wire.frames import MessageKey, Mode, Offer, Party
from tests.support.twin import run_virtually

RTT = 0.02
LINK = 1e8


class Link:
    """As much of a link as is looked at."""

    def __init__(self, probed_rate: float | None = LINK, known: float | None = None) -> None:
        self.probed_rate = probed_rate
        self.known_path = None if known is None else KnownPath(PathState(known, RTT, None), "remembered")
        self.arrivals = Arrivals()
        self.told: list[float] = []
        self.places: set[float] = set()

    def share(self, rate: float, place: float) -> None:
        self.told.append(rate)
        self.places.add(place)


def offer(transfer: int, mode: Mode = "fedrdma-x") -> Offer:
    key = MessageKey("s", "m", "t", Party("guest", "1"), Party("host", "2"))
    return Offer("udp", transfer, key, "bytes", 1 << 20, mode, 1, 1 << 14, 0)


class Site:
    """A site with links to some peers."""

    def __init__(self, count: int, config: ReceiveConfig | None = None, **link: Any) -> None:
        self.noted: dict[str, float] = {}
        self.sharing = LinkSharing(config or ReceiveConfig(), self._note)
        self.links: dict[str, Any] = {str(number): Link(**link) for number in range(count)}
        for site, each in self.links.items():
            self.sharing.join(site, "udp", each, RTT)

    def _note(self, told: ToldShare) -> None:
        self.noted[told.site] = told.share

    def told(self, site: str) -> float:
        told: float = self.links[site].told[-1]
        return told


def run(scenario: Coroutine[Any, Any, None]) -> None:
    run_virtually(scenario)


def test_each_of_several_peers_is_told_its_part_before_it_sends_anything() -> None:
    async def scenario() -> None:
        site = Site(4)
        assert [site.told(name) for name in site.links] == pytest.approx([0.98 * LINK / 4] * 4)
        assert len(set.union(*(link.places for link in site.links.values()))) == 4
        assert site.noted["2"] == site.told("2")

    run(scenario())


def test_when_one_sends_alone_it_has_no_bound_and_when_two_do_each_has_half() -> None:
    async def scenario() -> None:
        site = Site(4)
        site.sharing.begun("0", offer(7), RTT)
        await asyncio.sleep(0.1)
        assert site.told("0") == math.inf
        site.sharing.begun("1", offer(8), RTT)
        await asyncio.sleep(0.005)
        assert site.told("0") == site.told("1") == pytest.approx(0.98 * LINK / 2)
        site.sharing.ended("1", 8)
        await asyncio.sleep(0.005)
        assert site.told("0") == math.inf
        site.sharing.ended("0", 7)

    run(scenario())


def test_what_links_have_seen_arrive_is_looked_at_while_somebody_sends() -> None:
    async def scenario() -> None:
        site = Site(2)
        for name in site.links:
            site.sharing.begun(name, offer(1), RTT)
        loop = asyncio.get_running_loop()
        came = 0.0
        for step in range(1, 400):
            # the slow one has a tenth of its half
            site.links["0"].arrivals = Arrivals(int(step * 5e3), 0, loop.time())
            came += min(site.told("1"), LINK - 5e6) * 1e-3
            site.links["1"].arrivals = Arrivals(int(came), 0, loop.time())
            await asyncio.sleep(0.001)
        assert 5e6 < site.told("0") < 10e6
        status: Any = site.sharing.status()
        assert status["sending"] == 2
        assert [sender["site"] for sender in status["senders"]] == ["0", "1"]
        assert status["senders"][0]["arriving_bits_per_second"] == pytest.approx(8 * 5e6, rel=0.05)
        assert site.told("1") > 0.85 * LINK

    run(scenario())


def test_with_sharing_off_nobody_is_told_anything() -> None:
    async def scenario() -> None:
        site = Site(4, ReceiveConfig(share="off"))
        for name in site.links:
            site.sharing.begun(name, offer(1), RTT)
        await asyncio.sleep(1.0)
        assert not any(link.told for link in site.links.values())

    run(scenario())


@pytest.mark.parametrize("transport", ["tcp", "shm", "grpc"])
def test_who_sends_by_what_has_a_rate_of_its_own_or_crosses_no_link_takes_no_part(transport: str) -> None:
    async def scenario() -> None:
        site = Site(2)
        assert not site.sharing.join("1", transport, site.links["1"], RTT)
        site.sharing.begun("0", offer(1), RTT)
        site.sharing.begun("1", offer(1), RTT)
        await asyncio.sleep(0.1)
        assert site.told("0") == math.inf, "alone on the link"

    run(scenario())


def test_transfers_of_other_modes_take_no_share() -> None:
    async def scenario() -> None:
        site = Site(2)
        site.sharing.begun("0", offer(1), RTT)
        site.sharing.begun("1", offer(1, "fedrdma-e"), RTT)
        await asyncio.sleep(0.1)
        assert site.told("0") == math.inf

    run(scenario())


def test_a_link_that_is_gone_leaves_its_share_to_the_others_and_another_link_of_the_peer_stays() -> None:
    async def scenario() -> None:
        site = Site(2)
        site.sharing.begun("0", offer(1), RTT)
        newer: Any = Link()
        assert site.sharing.join("0", "verbs", newer, RTT)
        assert not site.sharing.join("0", "verbs", newer, RTT), "known already"
        site.sharing.leave("0", site.links["0"])
        assert newer.told, "the newer one takes part"
        site.sharing.leave("0", newer)
        site.sharing.leave("0", newer)
        await asyncio.sleep(0.1)
        assert site.told("1") == math.inf

    run(scenario())


def test_where_no_train_has_told_of_the_way_from_a_peer_what_is_known_of_the_way_to_it_counts() -> None:
    async def scenario() -> None:
        site = Site(2, probed_rate=None, known=5e7)
        assert site.told("0") == pytest.approx(0.98 * 5e7 / 2)

    run(scenario())


def test_what_a_train_tells_after_its_path_has_come_up_is_told_before_anybody_begins() -> None:
    async def scenario() -> None:
        site = Site(2, probed_rate=None)
        assert not site.links["0"].told
        site.links["1"].probed_rate = LINK
        await asyncio.sleep(0.1)
        assert site.told("0") == site.told("1") == pytest.approx(0.98 * LINK / 2)

    run(scenario())


def test_the_rate_that_was_set_by_hand_counts() -> None:
    async def scenario() -> None:
        site = Site(2, ReceiveConfig(rate=4e8))
        assert site.told("0") == pytest.approx(0.98 * 5e7 / 2)
        status = site.sharing.status()
        assert (status["bits_per_second"], status["found_by"]) == (4e8, "configured")

    run(scenario())


def test_by_turns_few_send_at_a_time_and_the_others_are_shown_to_wait() -> None:
    async def scenario() -> None:
        site = Site(12, ReceiveConfig(share="turns"))
        for name in site.links:
            site.sharing.begun(name, offer(1), RTT, 4 << 20)
        await asyncio.sleep(0.01)
        least = [name for name in site.links if site.told(name) == LEAST_RATE]
        assert least == [str(number) for number in range(4, 12)], "in the order in which they have asked"
        status: Any = site.sharing.status()
        assert [each["site"] for each in status["senders"] if each["waits_for_turn"]] == least
        site.sharing.ended("0", 1)
        await asyncio.sleep(0.01)
        assert site.told("4") == pytest.approx(site.told("1"), rel=0.02)
        assert site.told("4") > LINK / 5
        for number in range(1, 11):
            site.sharing.ended(str(number), 1)
        await asyncio.sleep(GATHER_SECONDS + RTT)
        status = site.sharing.status()
        assert [each["site"] for each in status["senders"] if each["sending"]] == ["11"]
        assert site.told("11") == math.inf
        assert not any(each["waits_for_turn"] for each in status["senders"])

    run(scenario())


def test_what_a_peer_has_sent_before_does_not_count_as_come_of_what_it_announces_now() -> None:
    async def scenario() -> None:
        site = Site(12, ReceiveConfig(share="turns"))
        for link in site.links.values():
            link.arrivals = Arrivals(1 << 30, 0, asyncio.get_running_loop().time())
        for name in site.links:
            site.sharing.begun(name, offer(1), RTT, 4 << 20)
        await asyncio.sleep(0.01)
        assert sum(site.told(name) > LEAST_RATE for name in site.links) == 4

    run(scenario())
