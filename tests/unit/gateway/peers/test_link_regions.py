"""Memory of a link is made once for a transport, and again only when it could not be had."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.peers.link_regions import LinkRegions
from fedrdma_fate.ports import Region
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.support.endpoints import HeapRegion


def test_each_transport_has_one_which_its_next_link_gets_too() -> None:
    made: list[tuple[str, int]] = []

    def make(name: str, length: int) -> Region:
        made.append((name, length))
        return HeapRegion(length)

    regions = LinkRegions("there", make)
    assert regions.get("repairs", "verbs", 4096) is regions.get("repairs", "verbs", 4096)
    assert regions.get("repairs", "tcp", 4096) is not regions.get("repairs", "verbs", 4096)
    assert made == [("repairs-there-verbs", 4096), ("repairs-there-tcp", 4096)]


def test_what_chunks_are_sealed_in_is_not_what_repair_chunks_are_summed_in() -> None:
    regions = LinkRegions("there", lambda _, length: HeapRegion(length))
    assert regions.maker("sealing", "verbs")(4096) is not regions.maker("repairs", "verbs")(4096)
    assert regions.maker("sealing", "verbs")(4096) is regions.maker("sealing", "verbs")(4096)


def test_what_could_not_be_had_is_asked_for_again() -> None:
    full = True

    def make(_: str, length: int) -> Region:
        if full:
            raise MemoryPoolError(ErrorCode.REGION_UNAVAILABLE, "no room.")
        return HeapRegion(length)

    regions = LinkRegions("there", make)
    with pytest.raises(MemoryPoolError):
        regions.get("repairs", "verbs", 4096)
    full = False
    assert regions.get("repairs", "verbs", 4096).length == 4096
