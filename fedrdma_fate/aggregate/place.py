"""Where an accumulator's parts lie in its slot; known to the gateway, which has no NumPy, and to the worker."""

from __future__ import annotations

import struct

from fedrdma_fate.core.fold import Order
from fedrdma_fate.wire.summand import ITEM_BYTES

BLOCK_ITEMS = 32768
"""Added at once, 256 KiB of float64: a block of the sum, one of the update and one of scratch fit a core's cache."""

MARK_BYTES = 4096
"""At the start of the slot: a page, of which the first eight bytes are used. Zero: nothing has been added."""

PLANES_AT = MARK_BYTES + BLOCK_ITEMS * ITEM_BYTES
"""Where the planes begin, behind the mark and the block that is kept aside; a multiple of a page."""

_PAGE_BYTES = 4096
"""Planes begin at a multiple of this, for a task maps them from there on."""

NUMBER_SHIFT = 35
"""Of an update's number in the mark; the bits below say how far it has come, zero before anything has changed."""

_MARK = struct.Struct("=Q")


def half_in(slot: memoryview, number: int) -> bool:
    """Whether some of an update may be in the sum, or all of it, by the accumulator's mark."""
    mark = int(_MARK.unpack_from(slot)[0])
    return mark >> NUMBER_SHIFT == number and bool(mark & ((1 << NUMBER_SHIFT) - 1))


def planes_at(order: Order, planes_bytes: int) -> int:
    """Where planes of so many bytes begin; before them lie as many of what was rounded away, where that is kept."""
    if order is not Order.ARRIVAL:
        return PLANES_AT
    return PLANES_AT + -(-planes_bytes // _PAGE_BYTES) * _PAGE_BYTES


def accumulator_bytes(order: Order, planes_bytes: int) -> int:
    """Length of the slot for planes of so many bytes."""
    return planes_at(order, planes_bytes) + planes_bytes
