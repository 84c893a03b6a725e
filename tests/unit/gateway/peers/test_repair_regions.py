"""Memory for repair chunks is made once for a transport, and again only when it could not be had."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.peers.repair_regions import RepairRegions
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.support.endpoints import HeapRegion


def test_each_transport_has_one_which_its_next_link_gets_too() -> None:
    made: list[tuple[str, int]] = []

    def make(name: str, length: int) -> Region:
        made.append((name, length))
        return HeapRegion(length)

    regions = RepairRegions("there", make)
    assert regions.get("verbs", 4096) is regions.get("verbs", 4096)
    assert regions.get("tcp", 4096) is not regions.get("verbs", 4096)
    assert made == [("repairs-there-verbs", 4096), ("repairs-there-tcp", 4096)]


def test_what_could_not_be_had_is_asked_for_again() -> None:
    full = True

    def make(_: str, length: int) -> Region:
        if full:
            raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, "no room.")
        return HeapRegion(length)

    regions = RepairRegions("there", make)
    with pytest.raises(MemoryPoolError):
        regions.get("verbs", 4096)
    full = False
    assert regions.get("verbs", 4096).length == 4096
