"""RDMA devices for tests: in the testbed, or a card; without one, tests that need one are skipped and say so."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, Protocol

import pytest

from fedrdma_fate.ports import Region
from fedrdma_fate.transport.verbs.device_selection import PortPreference
from fedrdma_fate.transport.verbs.interface import DeviceInfo, Verbs
from fedrdma_fate.transport.verbs.transport import ChunkServicePreference, VerbsSettings, VerbsTransport, load_verbs
from fedrdma_fate.wire.errors import TransportError
from tests.support.namespaces import NAMESPACES, NamespacedVerbs

OTHER_HOST = "host1"
"""Network namespace of the testbed's second host."""


class HasRegion(Protocol):
    """A side of a test, which has a region."""

    @property
    def region(self) -> Region:
        """The region that its peer writes into."""
        ...


@dataclasses.dataclass(frozen=True)
class TestPort:
    """A port that a test may use, and how to open its device."""

    __test__ = False

    verbs: Verbs
    preference: PortPreference


@functools.cache
def usable_ports() -> tuple[TestPort, ...]:
    """Active ports with an IPv4 address: those seen here, and in the testbed that of the second host too."""
    try:
        verbs = load_verbs()
    except TransportError:
        return ()
    found = _ports_of(verbs)
    if len(found) == 1 and (NAMESPACES / OTHER_HOST).exists():
        found += _ports_of(NamespacedVerbs(OTHER_HOST, verbs))
    return tuple(found)


def skip_without_device(transport: str = "verbs") -> None:
    """Skip a test of `verbs` on a machine without RDMA."""
    if transport.startswith("verbs") and not usable_ports():
        pytest.skip("no RDMA device here; `scripts/testbed run` has software ones")


def port_for(side: HasRegion) -> TestPort:
    """The port of one of two sides, which the name of its region tells: of two ports, the passive side has the last."""
    return usable_ports()[-1 if side.region.name == "passive" else 0]


def verbs_transport(
    side: HasRegion,
    queue_pairs: int = 2,
    poll: Literal["event", "busy"] = "event",
    chunk_service: ChunkServicePreference = "auto",
) -> VerbsTransport:
    """A transport over the port of that side."""
    port = port_for(side)
    settings = VerbsSettings(port.preference, queue_pairs, chunk_service=chunk_service, poll=poll)
    return VerbsTransport(settings, [side.region], port.verbs)


def _ports_of(verbs: Verbs) -> list[TestPort]:
    devices = sorted(verbs.devices(), key=lambda device: device.name)
    indices = [(device.name, _gid_index(device)) for device in devices]
    return [TestPort(verbs, PortPreference(name, gid_index=index)) for name, index in indices if index is not None]


def _gid_index(device: DeviceInfo) -> int | None:
    for port in device.ports:
        for gid in port.gids:
            if port.active and gid.roce_v2 and gid.ipv4 is not None:
                return gid.index
    return None
