"""Tags of what lies sealed in a slot, as its sender has told them: by them it is opened when the data path is gone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from fedrdma_fate.core.digest import block_digest
from fedrdma_fate.core.held import PIECE_BYTES, Held, Piece, longest, merged
from fedrdma_fate.core.plan import Chunk, SlotLayout, plan_of_offer
from fedrdma_fate.core.sealed_plan import with_table
from fedrdma_fate.engine.granted_slot import offer_digest
from fedrdma_fate.engine.kept_slot import KeptSlot
from fedrdma_fate.engine.opening import opens
from fedrdma_fate.engine.sealed_source import record_at, record_count
from fedrdma_fate.ports import SealBrokenError
from fedrdma_fate.wire.errors import TransferError
from fedrdma_fate.wire.frames import ChunkTags
from fedrdma_fate.wire.sealed import RECORD_OVERHEAD

TAGS_FRACTION = 16
"""One byte of tags is kept for so many of the slot: those of chunks of 384 bytes and more. Others come again."""


MOST_RUNS = 16384
"""Of one grant: chunks are sealed in the order in which they go, so that a second brings one or two."""


class ToldTags:
    """Of one grant.

    Attributes:
        introduction: of the attempt that they are of; empty: none were told.
    """

    def __init__(self, slot_bytes: int) -> None:
        """
        Args:
            slot_bytes: length of the slot, which bounds them.
        """
        self.introduction = b""
        self._most_bytes = slot_bytes // TAGS_FRACTION
        self._bytes = 0
        self._runs: dict[int, bytes] = {}
        self._unnoted: dict[int, bytes] = {}

    @property
    def total_bytes(self) -> int:
        """Of counters and tags."""
        return self._bytes

    def add(self, told: ChunkTags) -> bool:
        """Take some more; False: they are of another attempt, or too many, and were not."""
        run = told.tags[: len(told.tags) - len(told.tags) % RECORD_OVERHEAD]
        before = self._runs.get(told.first, b"")
        is_other = bool(self.introduction) and self.introduction != told.introduction
        is_too_long = self._bytes + len(run) - len(before) > self._most_bytes
        if is_other or not run or is_too_long or (not before and len(self._runs) >= MOST_RUNS):
            return False
        self.introduction = told.introduction
        if run != before:
            self._runs[told.first] = self._unnoted[told.first] = run
            self._bytes += len(run) - len(before)
        return True

    def take_unnoted(self) -> tuple[tuple[int, bytes], ...]:
        """Runs that were not taken before, to be written down."""
        runs, self._unnoted = tuple(self._unnoted.items()), {}
        return runs

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Number of each record, and its counter and tag; one that was told twice comes twice."""
        for first, run in self._runs.items():
            for at in range(0, len(run), RECORD_OVERHEAD):
                yield first + at // RECORD_OVERHEAD, run[at : at + RECORD_OVERHEAD]


class Opened(NamedTuple):
    """A slot that was opened.

    Attributes:
        slot: with what is open there.
        pieces: which bytes that are, each with a digest.
    """

    slot: KeptSlot
    pieces: tuple[Piece, ...]


def open_told(kept: KeptSlot, told: ToldTags) -> Opened:
    """The same slot, in which is opened what has come whole. What has not, and what no tag is known of, is not held.

    Takes 0.1 s for each GiB or two; on whichever thread, as long as nobody else writes there.
    """
    nothing = Opened(dataclasses.replace(kept, held=Held(), sealed=None), ())
    offer = kept.offer
    if kept.sealed is None or not told.introduction:
        return nothing
    try:
        plan = plan_of_offer(offer, kept.slot.length, with_table)
        opener = kept.sealed.of_slot(offer.grant, told.introduction, offer.transfer, offer_digest(offer))
    except (TransferError, SealBrokenError):
        return nothing
    layout, records = SlotLayout(plan, offer.mode), record_count(plan)
    right: dict[int, Chunk] = {}
    for number, tag in told:
        if number < records and number not in right:
            chunk = record_at(plan, number)
            if opens(opener, kept.slot, layout, chunk, tag, kept.adopted):
                right[number] = chunk
    ranges = longest(merged((chunk.offset, chunk.offset + chunk.length) for chunk in right.values() if chunk.length))
    pieces = ((at, min(at + PIECE_BYTES, end)) for start, end in ranges for at in range(start, end, PIECE_BYTES))
    view = kept.slot.view[layout.payload_at :]
    digested = tuple((start, end, block_digest(view[start:end])) for start, end in pieces)
    return Opened(dataclasses.replace(kept, held=Held(ranges, tagged=True), sealed=None), digested)
