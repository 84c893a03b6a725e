"""Repair chunks in memory: the sender's sums, and adding in place."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable

from fedrdma_fate.core.x.repair_code import LARGEST_REPAIR_BYTES, RepairPlan
from fedrdma_fate.late_numpy import prepare
from fedrdma_fate.ports import Region, Slot
from fedrdma_fate.wire.errors import MemoryPoolError

logger = logging.getLogger(__name__)

MakeRegion = Callable[[int], Region]
"""Makes a region of so many bytes that the transport can register; raises MemoryPoolError where there is no room."""


def add_into(target: memoryview, source: memoryview) -> None:
    """Exclusive or, as far as the source goes."""
    import numpy as np

    sums = np.frombuffer(target, np.uint8)[: len(source)]
    np.bitwise_xor(sums, np.frombuffer(source, np.uint8), out=sums)


class RepairSums:
    """The repair chunks of one transfer, at the sender."""

    def __init__(self, plan: RepairPlan, region: Region) -> None:
        self.plan = plan
        self._region = region
        ctypes.memset(region.address, 0, plan.repair_bytes)

    def slot(self, number: int) -> Slot:
        """Where a repair chunk lies."""
        length = self.plan.chunks.chunk_bytes
        return Slot(self._region, number * length, length)

    def add(self, piece: Slot, numbers: tuple[int, ...]) -> None:
        """Add a chunk of the payload to these."""
        for number in numbers:
            add_into(self.slot(number).view, piece.view)


class RepairBuffer:
    """Memory for the repair chunks of one transfer of a link at a time; made when it is first wanted."""

    def __init__(self, make: MakeRegion | None) -> None:
        self._make = make
        self._region: Region | None = None
        self._in_use = False

    def acquire(self, wish: RepairPlan, slot_bytes: int) -> RepairSums | None:
        """Room for as many of these as fit a slot of that length, until it is given back; None when there is none."""
        if self._in_use or self._make is None or not prepare():
            return None
        plan = wish.within(slot_bytes)
        if plan is None:
            return None
        if self._region is None:
            try:
                self._region = self._make(LARGEST_REPAIR_BYTES)
            except MemoryPoolError as error:
                logger.info("no repair chunks: %s", error)
                self._make = None
                return None
        self._in_use = True
        return RepairSums(plan, self._region)

    def release(self) -> None:
        """The transport reads it no more."""
        self._in_use = False
