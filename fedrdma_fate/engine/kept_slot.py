"""A slot in which a transfer may go on by another data path."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.held import Held, Ranges
from fedrdma_fate.ports import Slot
from fedrdma_fate.security.slot_records import SlotOpener
from fedrdma_fate.wire.frames import Offer


@dataclasses.dataclass(frozen=True, slots=True)
class KeptSlot:
    """What has come of a transfer before its link ended.

    Attributes:
        offer: what had announced it.
        slot: where it lies.
        held: what of it has come, and lies there open.
        sealed: opens what lies there as sealed, by tags that its sender tells; None: nothing does.
        adopted: besides, what lay there open when that attempt began, for which its sender vouches.
    """

    offer: Offer
    slot: Slot
    held: Held
    sealed: SlotOpener | None = None
    adopted: Ranges = ()

    def is_of(self, offer: Offer) -> bool:
        """Whether this announces the same payload, however it is cut, and whichever way it comes."""
        mine, theirs = self.offer, offer
        return (mine.transfer, mine.key, mine.kind, mine.total_bytes, mine.mode) == (
            theirs.transfer,
            theirs.key,
            theirs.kind,
            theirs.total_bytes,
            theirs.mode,
        )
