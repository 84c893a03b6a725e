"""How a payload that is sealed before it is written is cut: with a table of tags as the trailer of its plan.

Each chunk of the payload is one record: a counter, the bytes as sealed, and a tag. The bytes go to their place.
Counters and tags go into the table, in the order of the chunks; it is sent last (`wire/sealed.py`).
"""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.plan import LARGEST_COUNT, ChunkPlan, SlotLayout
from fedrdma_fate.core.x.chunking import LEAST_CHUNK_BYTES
from fedrdma_fate.wire.frames import Mode
from fedrdma_fate.wire.sealed import RECORD_OVERHEAD, table_bytes

_LARGEST_PAYLOAD_COUNT = LARGEST_COUNT // 2
"""Chunks of a sealed payload, so that those of its table have indices, too; they are no more than these."""


def with_table(plan: ChunkPlan) -> ChunkPlan:
    """The plan with its table; an empty payload has one record, of nothing.

    Raises:
        ValueError: there would be more chunks than can be counted.
    """
    payload_count = plan.count - plan.trailer_count
    return dataclasses.replace(plan, trailer_bytes=table_bytes(max(1, payload_count)))


def without_table(plan: ChunkPlan) -> ChunkPlan:
    """The plan as it was."""
    return dataclasses.replace(plan, trailer_bytes=0)


def sealable(plan: ChunkPlan, largest_bytes: int) -> ChunkPlan:
    """The plan, without a table, in chunks that can be sealed: none longer than this, and not too many."""
    least = max(RECORD_OVERHEAD, -(-plan.total_bytes // _LARGEST_PAYLOAD_COUNT))
    chunk_bytes = max(min(plan.chunk_bytes, largest_bytes), least)
    return ChunkPlan(plan.total_bytes, chunk_bytes, min(plan.enable_bytes, chunk_bytes))


def sealed_slot_bytes(plan: ChunkPlan, mode: Mode, *, recut: bool) -> int:
    """Length that a receive slot must have.

    Args:
        plan: a sealable one.
        mode: transfer mode.
        recut: whether it may still be cut into smaller chunks, down to LEAST_CHUNK_BYTES.
    """
    smallest = without_table(plan)
    if recut:
        chunk_bytes = max(min(plan.chunk_bytes, LEAST_CHUNK_BYTES), plan.fewest_bytes)
        enable_bytes = min(plan.enable_bytes, chunk_bytes)
        smallest = dataclasses.replace(smallest, chunk_bytes=chunk_bytes, enable_bytes=enable_bytes)
    return SlotLayout(with_table(sealable(smallest, smallest.chunk_bytes)), mode).slot_bytes
