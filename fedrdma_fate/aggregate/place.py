"""Where an accumulator's parts lie in its slot; known to the gateway, which has no NumPy, and to the worker."""

from __future__ import annotations

import struct

from fedrdma_fate.wire.summand import ITEM_BYTES

BLOCK_ITEMS = 32768
"""Added at once, 256 KiB of float64: a block of the sum, one of the update and one of scratch fit a core's cache."""

MARK_BYTES = 4096
"""At the start of the slot: a page, of which the first eight bytes are used. Zero: nothing has been added."""

PLANES_AT = MARK_BYTES + BLOCK_ITEMS * ITEM_BYTES
"""Where the planes begin, behind the mark and the block that is kept aside; a multiple of a page."""


NUMBER_SHIFT = 35
"""Of an update's number in the mark; the bits below say how far it has come, zero before anything has changed."""

_MARK = struct.Struct("=Q")


def half_in(slot: memoryview, number: int) -> bool:
    """Whether some of an update may be in the sum, or all of it, by the accumulator's mark."""
    mark = int(_MARK.unpack_from(slot)[0])
    return mark >> NUMBER_SHIFT == number and bool(mark & ((1 << NUMBER_SHIFT) - 1))


def accumulator_bytes(planes_bytes: int) -> int:
    """Length of the slot for planes of so many bytes."""
    return PLANES_AT + planes_bytes
