"""The link by which the peers send to this site, and what it carries of trains that are wanted of all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection

from fedrdma_fate.core.shares.joint_probe import (
    ANSWERED_SECONDS,
    WANTED_SECONDS,
    Arrived,
    believed_rate,
    datagrams_each,
    held_bytes,
    wanted_delays,
    wanted_rate,
)
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.gateway.config.schema import ReceiveConfig
from fedrdma_fate.gateway.link_sharing import LinkSharing, ToldShare


class ReceiveSharing(LinkSharing):
    """Shares the link among all peers that send.

    Where their own links are slower than it, no train of one tells what it carries. So those that know how are asked
    for trains that are to come at one moment, while nothing else does.
    """

    def __init__(self, config: ReceiveConfig, told: Callable[[ToldShare], object]) -> None:
        """
        Args:
            config: how it is shared.
            told: see `LinkSharing`.
        """
        super().__init__(config, told)
        self._sending_trains: set[str] = set()
        self._asked_peers = 0
        self._settled: asyncio.TimerHandle | None = None

    def join(
        self, site: str, transport: str, link: LinkHandle, round_trip: float | None, *, sends_trains: bool = False
    ) -> bool:
        """See `LinkSharing`; when the latest is a while ago, all that send trains when they are asked are.

        Args:
            site: the peer.
            transport: of the data path.
            link: its.
            round_trip: of the control channel, seconds; None while unknown.
            sends_trains: whether it knows how.
        """
        is_new = super().join(site, transport, link, round_trip)
        if is_new and sends_trains and self._config.rate is None:
            self._sending_trains.add(site)
            if self._settled is not None:
                self._settled.cancel()
            self._settled = asyncio.get_running_loop().call_later(WANTED_SECONDS, self._want_trains)
        return is_new

    def leave(self, site: str, link: LinkHandle | None = None) -> None:
        """See `LinkSharing`."""
        super().leave(site, link)
        if site not in self._links:
            self._sending_trains.discard(site)

    def expect(self, sites: Collection[str]) -> None:
        """Only parties of these sites are in sessions that have joined here; none: that is not known."""
        # before there are links there need be no loop
        self._shares.expect(sites, self._now if self._links else 0.0)
        if self._links:
            self._tell()

    def _want_trains(self, more: bool = False, told: float = 0.0) -> None:
        """Where nothing comes, and more peers are there than before: ask all.

        Args:
            more: for longer trains than before.
            told: what the shorter ones have told, bytes a second.
        """
        self._settled = None
        links = {site: self._links[site] for site in self._sending_trains}
        # where no train of one has told anything, longer ones are needed than a buffer may hold
        is_known = any(link.probed_rate is not None for link in links.values())
        if len(links) < 2 or not is_known or (len(links) <= self._asked_peers and not more):
            self._believe(told)
            return
        loop, began = asyncio.get_running_loop(), self._now
        if self._shares.under_way:
            self._believe(told)
            self._settled = loop.call_later(WANTED_SECONDS, self._want_trains)
            return
        round_trips = {site: self._round_trip(site) for site in links}
        count = datagrams_each(len(links), more=more)
        for site, delay in wanted_delays(round_trips).items():
            loop.call_later(delay, links[site].want_train, began, count)
        longest = max(round_trips.values())
        self._settled = loop.call_later(ANSWERED_SECONDS + longest, self._on_come, links, began, longest, more, told)

    def _round_trip(self, site: str) -> float:
        """Of the way to a peer, seconds; 0 while unknown: then it is asked last, and its train is late."""
        known, told = self._links[site].known_path, self._shares.senders[site].round_trip
        trips = [told or 0.0, 0.0 if known is None else known.state.min_rtt]
        return min((trip for trip in trips if trip > 0), default=0.0)

    def _on_come(self, links: dict[str, LinkHandle], began: float, longest: float, more: bool, told: float) -> None:
        self._settled, self._asked_peers = None, len(links)
        trains = []
        for site, link in links.items():
            wanted = link.wanted
            # not of who has lost its path meanwhile, or whose train is lost
            if self._links.get(site) is link and wanted is not None and wanted.began == began:
                rate = link.probed_rate or math.inf
                trains.append(Arrived(wanted.seconds, longest, rate, wanted.came, wanted.spread, wanted.sent))
        rate, count = wanted_rate(trains, len(links)), datagrams_each(len(links), more=more)
        # where a queue is known to hold no more than these, longer ones would overrun it
        has_room = all(train.sent == count for train in trains)
        if not more and has_room and self._shares.wants_more(rate):
            self._want_trains(True, rate)
            return
        self._believe(believed_rate(rate, told, trains, len(links)), held_bytes(trains))

    def _believe(self, rate: float, held: int = 0) -> None:
        """The link carries so many bytes a second, and so many were held in a buffer; 0: nothing was told."""
        if rate:
            self._shares.on_wanted_train(rate, self._now, held)
            self._tell()
