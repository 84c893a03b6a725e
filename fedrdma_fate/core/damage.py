"""Which chunks came damaged: the sender's digests, told by a frame when they are asked for, beside the receiver's.

One digest speaks for a whole payload, and is all that an undamaged one costs.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Sequence

from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.wire.frames import MOST_TOLD_DIGESTS

_DIGEST_BYTES = 8
"""Of an xxh3-64."""


def can_tell(plan: ChunkPlan) -> bool:
    """Whether digests tell anything, and fit a frame: a single chunk that is damaged needs no other to be found."""
    return 1 < plan.count <= MOST_TOLD_DIGESTS


def pack_digests(digests: Sequence[int]) -> bytes:
    """Digests in index order, as a frame carries them: 64 bits each, little-endian."""
    packed = array.array("Q", digests)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def damaged_chunks(told: bytes, known: Sequence[int | None]) -> list[int] | None:
    """Chunks whose digest is another than the sender's, or not known; None where it told a wrong number of them.

    Args:
        told: the sender's.
        known: the receiver's, in index order.
    """
    if len(told) != len(known) * _DIGEST_BYTES:
        return None
    digests = array.array("Q", told)
    if sys.byteorder == "big":
        digests.byteswap()
    return [index for index, (theirs, ours) in enumerate(zip(digests, known, strict=True)) if theirs != ours]
