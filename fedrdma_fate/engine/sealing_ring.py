"""Memory for what is sealed and on its way: registered, bounded, and shared by all transfers of a data path."""

from __future__ import annotations

from fedrdma_fate.memory.allocator import SlotAllocator
from fedrdma_fate.ports import Region, Slot

SEALING_RING_BYTES = 32 * 1024 * 1024
"""Of each data path that is sealed so: more than is under way at 10 Gbit/s and 20 ms, which is 25 MB."""

LARGEST_SEALED_CHUNK_BYTES = SEALING_RING_BYTES // 2 - 4096
"""Two such chunks fit, each with its tag: one is sealed while the other is on its way. Whole pages."""

WINDOW_BYTES = SEALING_RING_BYTES * 7 // 8
"""Most bytes of a transfer in flight: what waits for room looks late to its sender, so that it rather waits itself."""

_GRANULE_BYTES = 64
"""A cache line: what a chunk takes up is rounded up to it, and not to pages, for small ones would take a page more."""


class SealingRing:
    """Hands out room for chunks as sealed. Belongs to its link's thread."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._allocator = SlotAllocator(region.length - region.length % _GRANULE_BYTES, _GRANULE_BYTES)

    @property
    def held_bytes(self) -> int:
        """In use."""
        return self._allocator.length - self._allocator.free_bytes

    def take(self, length: int) -> Slot | None:
        """Room for so many bytes; None while there is none."""
        offset = self._allocator.allocate(length)
        return None if offset is None else Slot(self._region, offset, length)

    def give_back(self, slot: Slot) -> None:
        """What `take` gave is free."""
        self._allocator.free(slot.offset)
