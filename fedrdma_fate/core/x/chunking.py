"""`fedrdma-x`: how large a chunk is, and how the immediate value names it."""

from __future__ import annotations

import math

from fedrdma_fate.core.plan import LARGEST_COUNT

SMALLEST_CHUNK_BYTES = 16 * 1024
LARGEST_X_CHUNK_BYTES = 4 * 1024 * 1024

FIRST_CHUNK_BYTES = SMALLEST_CHUNK_BYTES
"""On a path nothing is known of: right for 1 % loss, and merely busier than needed without loss."""

FIRST_RELIABLE_CHUNK_BYTES = 64 * 1024
"""The same over queue pairs that lose nothing, and have only so many chunks under way."""

CHUNK_SECONDS = 5e-6
"""What posting and completing one write costs the two ends, as time in which the link could have carried bytes."""

LEAST_LOSS = 1e-3
"""Loss may appear at any time: no path is trusted to lose less than this per packet."""

UNKNOWN_LOSS = 0.01
"""A path whose loss is not known may lose so much."""

INDEX_BITS = 20
TAGS = 1 << (32 - INDEX_BITS)
_INDICES = 1 << INDEX_BITS
assert _INDICES >= LARGEST_COUNT


def best_chunk_bytes(rate: float, loss: float | None, mtu_bytes: int, total_bytes: int) -> int:
    """The chunk size that wastes least on a lossy datagram path, a power of two.

    Of a UC message nothing counts when one packet is lost. A chunk of c bytes therefore costs, as shares of the link,
    `c / mtu * loss` in repeated chunks (for small loss) and `rate * CHUNK_SECONDS / c` in work per chunk. The sum is
    least where both are equal: `c = sqrt(rate * CHUNK_SECONDS * mtu / loss)`.

    Args:
        rate: of the bottleneck, bytes a second.
        loss: probability that a packet is lost; None: UNKNOWN_LOSS.
        mtu_bytes: packet size.
        total_bytes: of the payload; it is never cut into more than LARGEST_COUNT chunks.
    """
    least = UNKNOWN_LOSS if loss is None else max(loss, LEAST_LOSS)
    ideal = math.sqrt(max(rate, 1.0) * CHUNK_SECONDS * mtu_bytes / least)
    bounded = min(max(ideal, SMALLEST_CHUNK_BYTES), LARGEST_X_CHUNK_BYTES)
    exponent = math.log2(bounded)
    # lost chunks cost more than the estimate has it, for the last of them cost a round trip: down, where there are any
    power = round(exponent) if least <= LEAST_LOSS else int(exponent)
    return max(1 << power, -(-total_bytes // LARGEST_COUNT))


def filling_chunk_bytes(rate: float, round_trip: float, most_chunks: int | None) -> int:
    """The least chunk, a power of two, of which so many under way are twice the bandwidth-delay product.

    Args:
        rate: of the bottleneck, bytes a second.
        round_trip: seconds.
        most_chunks: under way at once; None: any number.
    """
    if most_chunks is None:
        return SMALLEST_CHUNK_BYTES
    needed = 2 * rate * round_trip / most_chunks
    bounded = min(max(needed, SMALLEST_CHUNK_BYTES), LARGEST_X_CHUNK_BYTES)
    return 1 << math.ceil(math.log2(bounded))


def immediate_of(tag: int, index: int) -> int:
    """The immediate value of a chunk: 12 bits of tag, 20 bits of chunk index.

    Raises:
        ValueError: one of the two does not fit.
    """
    if not 0 <= tag < TAGS or not 0 <= index < _INDICES:
        raise ValueError(f"tag {tag} and chunk {index} do not fit an immediate value")
    return tag << INDEX_BITS | index


def chunk_of_immediate(immediate: int) -> tuple[int, int]:
    """(tag, chunk index) of an immediate value of 32 bits."""
    return immediate >> INDEX_BITS, immediate & (_INDICES - 1)
