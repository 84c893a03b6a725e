"""Memory for the repair chunks of the links to one peer."""

from __future__ import annotations

from collections.abc import Callable

from fedrdma_fate.ports import Region


class RepairRegions:
    """One for each transport, made when its link first wants it, and kept for that link's successors."""

    def __init__(self, site: str, make: Callable[[str, int], Region]) -> None:
        self._site = site
        self._make = make
        self._made: dict[str, Region] = {}

    def get(self, transport: str, length: int) -> Region:
        """The region, for the thread of the transport's link.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there is no room for it.
        """
        if transport not in self._made:
            self._made[transport] = self._make(f"repairs-{self._site}-{transport}", length)
        return self._made[transport]
