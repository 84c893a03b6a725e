"""The link by which this site sends to all its peers, and what goes to each of them by it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator

from fedrdma_fate.core.shares.joint_probe import (
    ANSWERED_SECONDS,
    KNOWN_SECONDS,
    MOST_REPEATS,
    REPEAT_SECONDS,
    SETTLED_SECONDS,
    Arrived,
    believed_rate,
    datagrams_each,
    joint_rate,
    least_answered,
)
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.core.x.short_path import SHORT_ROUND_TRIP_SECONDS
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.gateway.config.schema import SendConfig
from fedrdma_fate.gateway.link_sharing import Announced, LinkSharing, ToldShare


class SendSharing(LinkSharing):
    """Shares the link among all peers that are sent to in mode `fedrdma-x`, by the rules for those that send to us.

    Nobody is told anything: the senders are the links of this gateway, and begin when it says so.
    """

    gathers = False

    def __init__(self, config: SendConfig, told: Callable[[ToldShare], object]) -> None:
        """
        Args:
            config: how it is shared.
            told: see `LinkSharing`.
        """
        super().__init__(config, told)
        self._begins_several = False
        self._probed_peers = 0
        self._repeats = 0
        self._has_waited = False
        self._come_bytes = 0
        self._settled: asyncio.TimerHandle | None = None
        self._by_datagrams: set[LinkHandle] = set()

    def join(self, site: str, transport: str, link: LinkHandle, round_trip: float | None) -> bool:
        """See `LinkSharing`; when the latest is a while ago, all are probed at once."""
        if transport == "udp" and _is_short(link):
            return False
        is_new = super().join(site, transport, link, round_trip)
        if is_new:
            if transport == "udp":
                self._by_datagrams.add(link)
            self._has_waited = False
            if self._settled is not None:
                self._settled.cancel()
            self._settled = asyncio.get_running_loop().call_later(SETTLED_SECONDS, self._probe_jointly, False)
        return is_new

    @contextlib.contextmanager
    def together(self, sites: int) -> Iterator[None]:
        """What begins inside goes to so many sites: where to several, all are decided on at its end.

        Until then each has the part of the link that it would have if as many sent as usual.
        """
        self._begins_several = sites > 1
        try:
            yield
        finally:
            self._begins_several = False
            self._settle()

    def begun(self, site: str, offer: Announced, round_trip: float | None, total_bytes: int = 0) -> None:
        """See `LinkSharing`; a message that goes alone has no bound when it is handed to its link."""
        super().begun(site, offer, round_trip, total_bytes)
        if not self._begins_several:
            self._settle()

    def _settle(self) -> None:
        self._shares.settle(self._now)
        self._tell()

    def leave(self, site: str, link: LinkHandle | None = None) -> None:
        """See `LinkSharing`; what goes to it has no bound but its own any more."""
        if (left := self._links.get(site)) is not None and link in (None, left):
            left.limit(math.inf, 0.0)
            self._by_datagrams.discard(left)
        super().leave(site, link)

    def _arrivals(self, link: LinkHandle) -> Arrivals:
        return link.deliveries

    def _pass_on(self, link: LinkHandle, share: float, place: float) -> None:
        link.limit(share, place)

    def _look_at(self, site: str) -> None:
        """What its link knows of the way to the peer, from trains and transfers."""
        known = self._links[site].known_path
        if known is not None:
            state = known.state
            self._shares.on_path(site, self._now, max(state.capacity, state.rate), state.min_rtt or None)

    def _look_again(self, site: str, link: LinkHandle) -> None:
        if link in self._by_datagrams and _is_short(link):
            self.leave(site, link)
        super()._look_again(site, link)

    # -- trains to all at one moment ------------------------------------------------------------------------------

    def _probe_jointly(self, more: bool, told: float = 0.0) -> None:
        """Where nothing goes: what the link carries to all peers at once.

        That is when more are there than before, and some times more where trains have not told that it carries all.
        While the own trains of some are not answered they are waited for, once: where all paths come up at one moment
        all of one may be lost in the queue that the others fill, and the others tell of the link without it.

        Args:
            more: by longer trains than before.
            told: what the shorter ones have told, bytes a second.
        """
        self._settled = None
        peers = len(self._links)
        for site in self._links:
            self._look_at(site)
        loop, began = asyncio.get_running_loop(), self._now
        known = sum(link.known_path is not None for link in self._links.values())
        is_repeat = not more and peers <= self._probed_peers
        if known < peers and not self._has_waited:
            self._has_waited = True
            self._believe(told)
            self._settled = loop.call_later(KNOWN_SECONDS, self._probe_jointly, False)
            return
        if peers < 2 or known < least_answered(peers) or (is_repeat and not self._may_repeat):
            self._believe(told)
            return
        if self._shares.under_way or (is_repeat and self._has_come()):
            self._believe(told)
            self._settled = loop.call_later(SETTLED_SECONDS, self._probe_jointly, False)
            return
        if not more:
            self._repeats = self._repeats + 1 if is_repeat else 0
        self._probed_peers = peers
        for link in self._links.values():
            link.probe_jointly(began, datagrams_each(peers, more=more))
        self._settled = loop.call_later(ANSWERED_SECONDS, self._on_probed, began, peers, more, told)

    @property
    def _may_repeat(self) -> bool:
        """Whether trains once more could tell what is not known."""
        return self._repeats < MOST_REPEATS and self._shares.may_be_told_more

    def _has_come(self) -> bool:
        """Whether any of the peers has sent something since this was asked the last time."""
        before = self._come_bytes
        self._come_bytes = sum(link.arrivals.received_bytes for link in self._links.values())
        return self._come_bytes != before

    def _on_probed(self, began: float, peers: int, more: bool, told: float) -> None:
        self._settled = None
        arrived = self._arrived(began)
        rate = joint_rate(arrived, peers)
        wanted = datagrams_each(peers, more=more)
        # where a queue is known to hold no more than these, longer ones would overrun it
        has_room = len(arrived) == peers and all(train.sent == wanted for train in arrived)
        if rate and not more and has_room and self._shares.wants_more(rate):
            self._probe_jointly(True, rate)
            return
        self._believe(believed_rate(rate, told, arrived, peers))
        if self._may_repeat:
            self._has_come()
            pause = REPEAT_SECONDS * 2**self._repeats
            self._settled = asyncio.get_running_loop().call_later(pause, self._probe_jointly, False)

    def _arrived(self, began: float) -> list[Arrived]:
        """The trains of this moment that are answered."""
        arrived = []
        for site, link in self._links.items():
            known, joint, round_trip = link.known_path, link.joint, self._shares.senders[site].round_trip
            if known is None or joint is None or joint.began != began:
                # who has lost its path meanwhile, or joined, or does not answer
                continue
            trip = known.state.min_rtt if round_trip is None else min(known.state.min_rtt, round_trip)
            arrived.append(Arrived(joint.seconds, trip, known.state.rate, joint.came, joint.spread, joint.sent))
        return arrived

    def _believe(self, rate: float) -> None:
        """The link carries so many bytes a second; 0: nothing was told."""
        if rate:
            self._shares.on_joint_train(rate, self._now)
            self._tell()


def _is_short(link: LinkHandle) -> bool:
    """Whether reports clock what goes by it, and nothing is paced: then the sockets of this host share its link."""
    known = link.known_path
    return known is not None and 0 < known.state.min_rtt < SHORT_ROUND_TRIP_SECONDS
