"""The link by which the peers send to this site, and what each of them is told of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from fedrdma_fate.core.shares.receive_shares import ReceiveShares
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.engine.link_thread import LinkHandle
from fedrdma_fate.gateway.config.schema import ReceiveConfig, SendConfig
from fedrdma_fate.wire.frames import Mode

Direction = Literal["receive", "send"]
"""Whether the link is shared among those that send to this site, or those that it sends to."""

PACED_TRANSPORTS = frozenset({"udp", "verbs"})
"""Whose rate is ours to choose. TCP, and `grpc` with it, finds its own; shared memory crosses no link."""

_LEAST_WAKE_SECONDS = 0.001
"""What an event loop can tell apart."""

TRAIN_SECONDS = (0.05, 0.15, 0.4, 0.8, 1.6)
"""After a data path has come up, when to look for what trains have told: there are three, half a second apart
(`ANSWER_SECONDS`), and before anybody has begun nothing else would make anybody look."""


class Announced(Protocol):
    """A message that is about to go."""

    @property
    def transfer(self) -> int:
        """Its number."""
        ...

    @property
    def mode(self) -> Mode:
        """How it goes."""
        ...


class ToldShare(NamedTuple):
    """What a peer has of the link from now on. Rates in bytes a second.

    Attributes:
        site: the peer.
        share: infinite: no bound.
        link_rate: what is known of the link; None while that is nothing.
        found_by: how that is known.
    """

    site: str
    share: float
    link_rate: float | None
    found_by: str


class LinkSharing:
    """Shares the link among all peers that send in mode `fedrdma-x`. Belongs to the event loop's thread.

    Links are where it is seen what comes; here it is decided, for here all of them are known.
    """

    gathers = True
    """See `ReceiveShares`."""

    def __init__(self, config: ReceiveConfig | SendConfig, told: Callable[[ToldShare], object]) -> None:
        """
        Args:
            config: how it is shared.
            told: called with each share that is another now.
        """
        self._config = config
        self._told = told
        self._shares = ReceiveShares(
            None if config.rate is None else config.rate / 8, gathers=self.gathers, turns=config.share == "turns"
        )
        self._links: dict[str, LinkHandle] = {}
        self._timer: asyncio.TimerHandle | None = None

    def join(self, site: str, transport: str, link: LinkHandle, round_trip: float | None) -> bool:
        """A data path of a peer that keeps to what it is told is up, and the one that it sends by; whether it is new.

        Another link's takes the place of the one before.
        """
        if self._config.share == "off" or transport not in PACED_TRANSPORTS:
            self.leave(site)
            return False
        if self._links.get(site) is link:
            return False
        self._links[site] = link
        self._shares.join(site, self._now, round_trip)
        self._look_at(site)
        self._tell()
        for seconds in TRAIN_SECONDS:
            asyncio.get_running_loop().call_later(seconds, self._look_again, site, link)
        return True

    def leave(self, site: str, link: LinkHandle | None = None) -> None:
        """The data path of this link, or whichever it is, is gone."""
        if site in self._links and link in (None, self._links[site]):
            del self._links[site]
            self._shares.leave(site, self._now)
            self._tell()

    def begun(self, site: str, offer: Announced, round_trip: float | None, total_bytes: int = 0) -> None:
        """A peer has announced a transfer, of so many bytes where that matters: where peers take turns."""
        if offer.mode == "fedrdma-x" and site in self._links:
            self._shares.on_path(site, self._now, None, round_trip)
            self._look_at(site)
            self._shares.on_arrivals(site, self._arrivals(self._links[site]))
            self._shares.on_begin(site, offer.transfer, self._now, total_bytes)
            self._tell()

    def ended(self, site: str, transfer: int) -> None:
        """A transfer is there, or will not come."""
        if site in self._links:
            self._shares.on_end(site, transfer, self._now)
            self._tell()

    def status(self) -> dict[str, object]:
        """Who sends, each share, the total, and how it was found."""
        shares, link = self._shares, self._shares.link
        return {
            "share": self._config.share,
            "bits_per_second": None if link.rate is None else link.rate * 8,
            "found_by": link.found_by,
            "sending": shares.active,
            "expected": shares.expected if shares.senders else 0,
            "senders": [
                {
                    "site": site,
                    "sending": sender.active,
                    "share_bits_per_second": sender.share * 8 if math.isfinite(sender.share) else None,
                    "arriving_bits_per_second": sender.arrived_rate * 8 if sender.active else 0.0,
                    "ignores_share": sender.ignores,
                    "waits_for_turn": sender.active and not sender.in_turn,
                }
                for site, sender in shares.senders.items()
            ],
        }

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _look_at(self, site: str) -> None:
        """What its link knows of the way from the peer; where that is nothing, what it knows of the way to it."""
        link = self._links[site]
        rate = link.probed_rate
        if rate is None and self._shares.link.rate is None and (known := link.known_path) is not None:
            rate = max(known.state.capacity, known.state.rate)
        self._shares.on_path(site, self._now, rate, None)

    def _arrivals(self, link: LinkHandle) -> Arrivals:
        """What has come of one."""
        return link.arrivals

    def _pass_on(self, link: LinkHandle, share: float, place: float) -> None:
        """Its share is another."""
        link.share(share, place)

    def _look_again(self, site: str, link: LinkHandle) -> None:
        if self._links.get(site) is link:
            self._look_at(site)
            self._tell()

    def _on_timer(self) -> None:
        self._timer = None
        for site, link in self._links.items():
            self._shares.on_arrivals(site, self._arrivals(link))
            self._look_at(site)
        self._shares.on_timer(self._now)
        self._tell()

    def _tell(self) -> None:
        link = self._shares.link
        for site, share in self._shares.take_told().items():
            self._pass_on(self._links[site], share, self._shares.senders[site].place)
            self._told(ToldShare(site, share, link.rate, link.found_by))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._shares.timer()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(due, loop.time() + _LEAST_WAKE_SECONDS), self._on_timer)
