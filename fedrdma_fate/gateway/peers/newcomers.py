"""Connections to the control port whose peer is not known yet: how many there may be, and how fast they may come.

Whoever can reach the port can make them, so they get a known number of descriptors. What one address has too many of
makes room for another's: who is alone at an address is only ever displaced by as many addresses as there are places.
"""

from __future__ import annotations

import collections
import dataclasses
import ipaddress
from collections.abc import Callable

from fedrdma_fate.gateway.peers.token_bucket import TokenBucket

MOST_NEWCOMERS = 64
"""Connections that have not greeted yet: more than peers that dial at once, and few descriptors of the usual 1024."""

BURST = 64
"""Connections that may come from one address at once: every peer behind one address after a restart of this site."""

PER_SECOND = 16.0
"""Connections from one address, on and on: a peer dials five times a second at most."""

MOST_ADDRESSES = 1024
"""Whose rate is remembered; the one that was longest quiet is forgotten first."""

_NETWORK_BITS = 64
"""Of an IPv6 address: a host has the rest to itself (RFC 4291, section 2.5.4)."""


@dataclasses.dataclass(eq=False, slots=True)
class Newcomer:
    """A connection whose peer is not known yet.

    Attributes:
        source: where it comes from.
        drop: ends it at once.
    """

    source: str
    drop: Callable[[], None]


class Newcomers:
    """Admits connections, and lets them go when their peers are known or they have ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: seconds, of any origin.
        """
        self._clock = clock
        self._buckets: collections.OrderedDict[str, TokenBucket] = collections.OrderedDict()
        # in the order in which they came
        self._present: dict[Newcomer, None] = {}

    def __len__(self) -> int:
        return len(self._present)

    def admit(self, host: str, drop: Callable[[], None]) -> Newcomer | None:
        """A connection from a host has come; None when it may not stay.

        Where all places are taken, the oldest connection of the source that has most of them is dropped.
        """
        source = _source(host)
        if not self._may_come(source):
            return None
        newcomer = Newcomer(source, drop)
        if len(self._present) >= MOST_NEWCOMERS:
            counts = collections.Counter(present.source for present in (*self._present, newcomer))
            most = max(counts.values())
            # the newcomer itself is never the oldest of a source that has two, and there are more than places
            oldest = next(present for present in self._present if counts[present.source] == most)
            self.leave(oldest)
            oldest.drop()
        self._present[newcomer] = None
        return newcomer

    def leave(self, newcomer: Newcomer) -> None:
        """Its peer is known, or it has ended. May be repeated."""
        self._present.pop(newcomer, None)

    def leave_known(self, newcomer: Newcomer) -> None:
        """It is one of those who may come as often as they like: its address gets back what it has taken."""
        self.leave(newcomer)
        if (bucket := self._buckets.get(newcomer.source)) is not None:
            bucket.fill(self._clock())
            bucket.level = min(BURST, bucket.level + 1)

    def _may_come(self, source: str) -> bool:
        now = self._clock()
        bucket = self._buckets.pop(source, None) or TokenBucket(PER_SECOND, BURST, now)
        bucket.fill(now)
        self._buckets[source] = bucket
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        if bucket.level < 1:
            return False
        bucket.level -= 1
        return True


def _source(host: str) -> str:
    """What is counted together: an address of IPv4, a network of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
