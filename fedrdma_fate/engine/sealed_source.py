"""A payload as it goes out sealed: each chunk is sealed once in an attempt, and kept until the peer has it.

Copies that are sent again are then the same bytes, wherever they land and however late, and repair chunks are sums of
them. The slot of the payload stays as it is: it goes to several peers, under several keys.

What the peer holds from an earlier attempt is not sent, and has a tag like all else: it lies where somebody may write.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from fedrdma_fate.core.digest import TAGGED, DigestTable, chunk_digest
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.engine.payload import Payload
from fedrdma_fate.engine.sealing_ring import SealingRing
from fedrdma_fate.ports import Slot
from fedrdma_fate.security.sealing import AttemptSealer
from fedrdma_fate.wire.frames import TAGS_OF_A_RUN
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, RECORD_OVERHEAD, TAG_BYTES

_PLACE = struct.Struct("<IQQ")

VOUCHED_BYTES = 16 * 1024 * 1024
"""Of what the peer holds, looked at besides each chunk that is sealed: a few milliseconds, for other transfers of the
link pace by its thread. So it is done long before the end, and soon told."""


class TagRun(NamedTuple):
    """Counters and tags of consecutive records.

    Attributes:
        first: the first of them, counted from the start of the payload.
        tags: RECORD_OVERHEAD bytes each.
    """

    first: int
    tags: bytes


def place_of(chunk: Chunk) -> bytes:
    """What is authenticated with a chunk: its index, where it starts in the payload, and its length."""
    return _PLACE.pack(chunk.index, chunk.offset, chunk.length)


def record_count(plan: ChunkPlan) -> int:
    """Each chunk of the payload is a record; an empty one has a record of nothing."""
    return max(1, plan.count - plan.trailer_count)


def record_at(plan: ChunkPlan, number: int) -> Chunk:
    """One of them, counted from the start of the payload."""
    return plan.chunk(plan.trailer_count + number) if plan.total_bytes else Chunk(plan.trailer_count, 0, 0)


def table_place(plan: ChunkPlan, chunk: Chunk) -> int:
    """Where in the table of tags that of a chunk lies."""
    return INTRODUCTION_BYTES + (chunk.index - plan.trailer_count) * RECORD_OVERHEAD


@dataclasses.dataclass(slots=True)
class _Kept:
    """A chunk as sealed.

    Attributes:
        room: where it lies, with its tag behind it.
        posted: how many writes read it just now.
        arrived: whether the peer has it.
    """

    room: Slot
    posted: int = 0
    arrived: bool = False


class SealedSource:
    """What one attempt of a transfer sends. Belongs to its link's thread."""

    def __init__(
        self, payload: Payload, plan: ChunkPlan, sealer: AttemptSealer, ring: SealingRing, held: Iterable[Chunk] = ()
    ) -> None:
        """
        Args:
            payload: the plain bytes.
            plan: how they are cut, with the table of tags.
            sealer: of this attempt.
            ring: where chunks lie as sealed.
            held: chunks that the peer has from an earlier attempt, and that are not sent.
        """
        self._payload = payload
        self._plan = plan
        self._sealer = sealer
        self._ring = ring
        self._kept: dict[int, _Kept] = {}
        self._digests = DigestTable(plan.count)
        self._to_vouch = deque(held)
        for chunk in self._to_vouch:
            self._digests[chunk.index] = TAGGED
        self._left = plan.count - plan.trailer_count - len(self._to_vouch)
        self._untold: set[int] = set()
        self._table = bytearray(plan.trailer_bytes)
        self._table[:INTRODUCTION_BYTES] = sealer.introduction
        if not plan.total_bytes:
            empty = record_at(plan, 0)
            self._note_tag(empty, sealer.seal_apart(place_of(empty), memoryview(b""), memoryview(bytearray(TAG_BYTES))))

    def was_sealed(self, chunk: Chunk) -> bool:
        """Whether it was sealed in this attempt, and so never will be again; or is not to be, for the peer has it."""
        return chunk.index in self._digests

    def is_kept(self, chunk: Chunk) -> bool:
        """Whether it can be posted."""
        return chunk.index in self._kept

    def keeps_all(self, indices: Iterable[int]) -> bool:
        """Whether all of these can be posted again."""
        return all(index in self._kept for index in indices)

    def seal(self, chunk: Chunk) -> bool:
        """Seal a chunk that was not; False while the ring has no room.

        Raises:
            RuntimeError: a chunk of the table is asked for before all others, whose tags it has to hold.
        """
        is_table = chunk.index < self._plan.trailer_count
        if is_table and self._left:
            raise RuntimeError(f"{self._left} chunks are not sealed yet")
        self._vouch(math.inf if is_table else VOUCHED_BYTES)
        room = self._ring.take(chunk.length if is_table else chunk.length + TAG_BYTES)
        if room is None:
            return False
        view = room.view
        if is_table:
            at = chunk.offset - self._plan.trailer_at
            view[:] = self._table[at : at + chunk.length]
        else:
            tag = self._sealer.seal_apart(place_of(chunk), self._payload.part(chunk).view, view)
            self._note_tag(chunk, tag)
            self._left -= 1
        self._kept[chunk.index] = _Kept(room)
        self._digests[chunk.index] = chunk_digest(view[: chunk.length])
        return True

    def part(self, chunk: Chunk) -> Slot:
        """The chunk as sealed; one that is kept."""
        return self._kept[chunk.index].room.part(0, chunk.length)

    def take_untold(self) -> list[TagRun]:
        """Tags that were not taken before, for the peer to open by them what it has when the data path is gone."""
        runs: list[TagRun] = []
        numbers = sorted(self._untold)
        self._untold.clear()
        start = 0
        for end in range(1, len(numbers) + 1):
            is_last = end == len(numbers) or numbers[end] != numbers[end - 1] + 1 or end - start == TAGS_OF_A_RUN
            if is_last:
                at = INTRODUCTION_BYTES + numbers[start] * RECORD_OVERHEAD
                length = (end - start) * RECORD_OVERHEAD
                runs.append(TagRun(numbers[start], bytes(self._table[at : at + length])))
                start = end
        return runs

    @property
    def introduction(self) -> bytes:
        """Of the attempt."""
        return self._sealer.introduction

    def vouch_for_all(self) -> None:
        """Look at all that the peer holds: nothing more will be sealed."""
        self._vouch(math.inf)

    def digest(self, chunk: Chunk) -> int:
        """Of the chunk as sealed; one that was, or is not to be."""
        return self._digests[chunk.index]

    def on_posted(self, chunk: Chunk) -> None:
        """The transport reads it."""
        self._kept[chunk.index].posted += 1

    def on_done(self, chunk: Chunk) -> None:
        """A write of it has completed."""
        kept = self._kept.get(chunk.index)
        if kept is not None:
            kept.posted -= 1
            self._release(chunk.index, kept)

    def on_arrived(self, chunk: Chunk) -> None:
        """The peer has it."""
        kept = self._kept.get(chunk.index)
        if kept is not None:
            kept.arrived = True
            self._release(chunk.index, kept)

    def close(self) -> None:
        """Nothing is sent again: what the transport does not read any more is free, and the rest when it does not."""
        for index, kept in list(self._kept.items()):
            kept.arrived = True
            self._release(index, kept)

    def _release(self, index: int, kept: _Kept) -> None:
        if kept.arrived and not kept.posted:
            del self._kept[index]
            self._ring.give_back(kept.room)

    def _vouch(self, most_bytes: float) -> None:
        while self._to_vouch and most_bytes > 0:
            chunk = self._to_vouch.popleft()
            self._note_tag(chunk, self._sealer.vouch(place_of(chunk), self._payload.part(chunk).view))
            most_bytes -= chunk.length

    def _note_tag(self, chunk: Chunk, tag: bytes) -> None:
        at = table_place(self._plan, chunk)
        self._table[at : at + RECORD_OVERHEAD] = tag
        self._untold.add(chunk.index - self._plan.trailer_count)
