"""Opens a payload in the slot that it came into, some chunks at a time, when nobody can write there any more."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.held import Held, Ranges, lies_within, longest, merged, without
from fedrdma_fate.core.plan import Chunk, SlotLayout
from fedrdma_fate.engine.both_ends import SharedWork
from fedrdma_fate.engine.sealed_source import place_of, record_at, record_count, table_place
from fedrdma_fate.ports import SealBrokenError, Slot
from fedrdma_fate.security.sealing import PathOpener, digest_of_offer
from fedrdma_fate.security.slot_records import AttemptOpener, is_vouched
from fedrdma_fate.wire.frames import Offer, encode_frame
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD, TAG_BYTES

SLICE_BYTES = 4 * 1024 * 1024
"""Opened at a time, at most a chunk more: a millisecond or two, for other transfers of the link pace by its thread."""

LEAST_SHARED_CHUNK_BYTES = 128 * 1024
"""Shorter ones a second thread does not share: they take no longer than it takes two threads to pass Python's lock."""


def opens(opener: AttemptOpener, slot: Slot, layout: SlotLayout, chunk: Chunk, tag: bytes, adopted: Ranges) -> bool:
    """Open a chunk where it lies in a slot, or look at it, where its sender says that it lies there open.

    That goes for bytes that were there when the attempt began: of others nobody may find out by guessing what they are.
    Where the tag is wrong, nothing is left of the chunk.
    """
    room = slot.part(layout.payload_at + chunk.offset, chunk.length + TAG_BYTES).view
    if is_vouched(tag) and not lies_within(chunk, adopted):
        room[: chunk.length] = bytes(chunk.length)
        return False
    try:
        opener.open_in_place(place_of(chunk), tag, room)
    except SealBrokenError:
        return False
    return True


@dataclasses.dataclass(slots=True)
class Opening:
    """A payload that is whole in its slot, as sealed.

    Attributes:
        offer: what announced it.
        slot: where it lies.
        layout: where in the slot.
        started: when the offer came.
        missing: what has not come of it, which may be so: whole chunks.
        adopted: bytes that lay there open when this attempt began, each range by its start and end.
        opened: how many of its chunks are open, or damaged.
        damaged: chunks whose tags are wrong; of them nothing is left.
    """

    offer: Offer
    slot: Slot
    layout: SlotLayout
    started: float
    missing: Ranges = ()
    adopted: Ranges = ()
    opened: int = 0
    damaged: list[Chunk] = dataclasses.field(default_factory=list)
    _opener: AttemptOpener | None = None

    @property
    def opened_bytes(self) -> int:
        """Of the payload."""
        return min(self.opened * self.layout.plan.chunk_bytes, self.offer.total_bytes)

    def begin(self, grant: int, opener: PathOpener) -> None:
        """Look at what it was sealed for.

        Raises:
            SealBrokenError: for something else.
        """
        message = digest_of_offer(encode_frame(self.offer))
        introduction = bytes(self._table(0, INTRODUCTION_BYTES))
        self._opener = opener.of_slot(grant, introduction, self.offer.transfer, message)

    @property
    def is_shared(self) -> bool:
        """Whether a second thread is worth it: long chunks, and more than a slice of them."""
        return self.offer.total_bytes > SLICE_BYTES and self.layout.plan.chunk_bytes >= LEAST_SHARED_CHUNK_BYTES

    def advance(self, shared: SharedWork | None = None) -> bool:
        """Open some more; whether all of it is done.

        Args:
            shared: a second thread, which opens some of it where a core is free.

        Raises:
            SealBrokenError: it was not begun.
        """
        if self._opener is None:
            raise SealBrokenError("opened before it has begun")
        plan, opener = self.layout.plan, self._opener
        chunks: list[Chunk] = []
        done = 0
        records = record_count(plan)
        while self.opened < records and done < SLICE_BYTES:
            chunk = record_at(plan, self.opened)
            self.opened += 1
            if not lies_within(chunk, self.missing):
                chunks.append(chunk)
                done += max(chunk.length, TAG_BYTES)

        def open_one(chunk: Chunk) -> bool:
            tag = bytes(self._table(table_place(plan, chunk), RECORD_OVERHEAD))
            return opens(opener, self.slot, self.layout, chunk, tag, self.adopted)

        are_right = [open_one(chunk) for chunk in chunks] if shared is None else shared.run(open_one, chunks)
        self.damaged += [chunk for chunk, is_right in zip(chunks, are_right, strict=True) if not is_right]
        return self.opened == records

    @property
    def held(self) -> Held:
        """What of it is open, and right; when all is done."""
        whole = ((0, self.offer.total_bytes),) if self.offer.total_bytes else ()
        wrong = merged((chunk.offset, chunk.offset + chunk.length) for chunk in self.damaged)
        return Held(longest(without(without(whole, wrong), self.missing)), tagged=True)

    def _table(self, at: int, length: int) -> memoryview:
        return self.slot.part(self.layout.payload_at + self.layout.plan.trailer_at + at, length).view
