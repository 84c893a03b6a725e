"""Chunk size and Link-Enable from what is known of the link (paper, section 4.3 and Table 2)."""

from __future__ import annotations

import dataclasses
from typing import Literal

from fedrdma_fate.core.plan import (
    DEFAULT_CHUNK_BYTES,
    GRPC_CHUNK_BYTES,
    LARGEST_CHUNK_BYTES,
    LARGEST_COUNT,
    ChunkPlan,
)
from fedrdma_fate.wire.frames import Mode

LinkEnable = Literal["auto", "always", "never"]

STREAM_CHUNK_BYTES = 16 * 1024 * 1024
"""Each chunk is waited for, and what keeps chunks of RDMA writes small (Table 2) does not concern a stream."""

LINK_ENABLE_FROM_BPS = 4e9
"""Table 2: from 4 Gbit/s on, a cold link loses large first chunks."""

LINK_ENABLE_FROM_BYTES = 2 * 1024 * 1024
"""Section 4.3: chunks of about 2 MB and more are at risk."""

SMALL_LAST_CHUNK_BYTES = 64 * 1024
"""A last chunk up to this size serves as the Link-Enable chunk by itself and saves its round trip."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkTraits:
    """What is known of a link; None where nothing was measured.

    Attributes:
        rate_bps: bottleneck rate, bits a second.
        mtu_bytes: path MTU, bytes.
        is_stream: it is a byte stream, which loses no large message and sends none again.
    """

    rate_bps: float | None = None
    mtu_bytes: int = 4096
    is_stream: bool = False


def choose_chunk_bytes(mode: Mode, configured: int | None, total_bytes: int, link: LinkTraits) -> int:
    """The base chunk size s: the configured one, else Table 2's best for the link's rate (4 MiB when unknown).

    Never more than one RDMA write can carry, nor so little that the payload has more than LARGEST_COUNT chunks.
    """
    fewest_bytes = -(-total_bytes // (LARGEST_COUNT - 1))
    return max(1, fewest_bytes, min(_wished_chunk_bytes(mode, configured, total_bytes, link), LARGEST_CHUNK_BYTES))


def plan_transfer(
    mode: Mode, total_bytes: int, configured_chunk: int | None, policy: LinkEnable, link: LinkTraits
) -> ChunkPlan:
    """The chunk plan for a payload, Link-Enable included."""
    chunk_bytes = choose_chunk_bytes(mode, configured_chunk, total_bytes, link)
    plain = ChunkPlan(total_bytes, chunk_bytes)
    # the first bytes of fedrdma-x measure the path anyway
    if mode in ("grpc", "fedrdma-x") or not _wants_link_enable(policy, plain, link):
        return plain
    last = plain.chunk(plain.count - 1)
    if plain.count > 1 and last.length <= SMALL_LAST_CHUNK_BYTES:
        # the same cut, with the last chunk named as the one that goes first
        return ChunkPlan(total_bytes, chunk_bytes, last.length)
    return ChunkPlan(total_bytes, chunk_bytes, link.mtu_bytes)


def _wished_chunk_bytes(mode: Mode, configured: int | None, total_bytes: int, link: LinkTraits) -> int:
    if mode == "grpc":
        return GRPC_CHUNK_BYTES
    if configured is not None:
        return configured
    if mode != "fedrdma-x" and link.rate_bps is not None and link.rate_bps < LINK_ENABLE_FROM_BPS:
        return total_bytes
    if mode == "fedrdma-e" and link.is_stream:
        return STREAM_CHUNK_BYTES
    return DEFAULT_CHUNK_BYTES


def _wants_link_enable(policy: LinkEnable, plan: ChunkPlan, link: LinkTraits) -> bool:
    largest = min(plan.total_bytes, plan.chunk_bytes)
    if policy == "never" or largest <= link.mtu_bytes:
        return False
    if policy == "always":
        return True
    fast = link.rate_bps is None or link.rate_bps >= LINK_ENABLE_FROM_BPS
    return fast and largest >= LINK_ENABLE_FROM_BYTES
