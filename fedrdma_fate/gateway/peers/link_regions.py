"""Memory that the links to one peer take besides: for repair chunks, and for what is sealed before it is posted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

from fedrdma_fate.ports import Region

Purpose = Literal["repairs", "sealing"]
"""What a region is for."""


class LinkRegions:
    """One for each transport and purpose, made when its link first wants it, and kept for that link's successors."""

    def __init__(self, site: str, make: Callable[[str, int], Region]) -> None:
        self._site = site
        self._make = make
        self._made: dict[tuple[Purpose, str], Region] = {}

    def maker(self, purpose: Purpose, transport: str) -> Callable[[int], Region]:
        """Gets it, by its length, for the thread of the transport's link."""
        return functools.partial(self.get, purpose, transport)

    def get(self, purpose: Purpose, transport: str, length: int) -> Region:
        """The region.

        Raises:
            MemoryPoolError: REGION_UNAVAILABLE when there is no room for it.
        """
        if (purpose, transport) not in self._made:
            self._made[purpose, transport] = self._make(f"{purpose}-{self._site}-{transport}", length)
        return self._made[purpose, transport]
