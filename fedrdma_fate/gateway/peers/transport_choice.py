"""Which transport is the best of those that there may be to a peer, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedrdma_fate.wire.frames import Hello

LEAST_UDP_ROUND_TRIP_SECONDS = 0.005
"""From here on `auto` takes UDP. On shorter paths TCP makes losses good soon, and this process moves less by UDP than
the kernel does by TCP; and no busy host takes so long to answer one ping of three."""

FIRST_PINGS = 3
"""Whose least round trip that is."""

_WHY = {
    "shm": "both gateways run on one host",
    "verbs": "both gateways have an RDMA device",
    "udp": "UDP passes",
    "tcp": "reachable by TCP",
}


def choose_transport(
    own: tuple[str, ...],
    host: str,
    peer: Hello,
    unusable: Mapping[str, str] = MappingProxyType({}),
    absent: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str]:
    """The transport to use, and why.

    Args:
        own: transports that this side allows, best first.
        host: identity of this host.
        peer: the peer's greeting.
        unusable: transports that were given up, and why.
        absent: transports of `own` that this host cannot offer, and why.
    """
    notes: list[str] = []
    for name in own:
        objection = _objection(name, host, peer, absent) or unusable.get(name, "")
        if not objection:
            return name, "; ".join([_WHY.get(name, "the fallback"), *notes])
        notes.append(f"{name}: {objection}")
    return "grpc", "; ".join(["the fallback", *notes])


def better_transports(
    used: str, own: tuple[str, ...], host: str, peer: Hello, absent: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """What would be used before `used`, were it not given up; the best first. Arguments as of `choose_transport`."""
    before = own[: own.index(used)] if used in own else own
    return tuple(name for name in before if not _objection(name, host, peer, absent))


def _objection(name: str, host: str, peer: Hello, absent: Mapping[str, str]) -> str:
    """Why a transport is none for this peer; an empty string where it is."""
    if name in absent:
        return absent[name]
    if name not in peer.transports:
        return f"not offered by {peer.site}"
    return "other host" if name == "shm" and peer.host != host else ""
