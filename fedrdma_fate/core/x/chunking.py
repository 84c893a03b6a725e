"""`fedrdma-x`: how large a chunk is, and how the immediate value names it."""

from __future__ import annotations

import math

from fedrdma_fate.core.digest import BLOCK_BYTES
from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.plan import LARGEST_COUNT

SMALLEST_CHUNK_BYTES = 16 * 1024
"""On fast paths. Below what one would like for the processor: at a loss of 1 % of the packets, 15 chunks of 64 KiB in
100 are lost."""

SMALLEST_TOLERANT_CHUNK_BYTES = 8 * 1024
"""On fast paths, of a message of which something may be missing, or where many chunks are lost: what is lost is counted
in chunks, and of half as long ones half as much is lost for the same packets."""

MOST_TOLERANT_CHUNKS_PER_SECOND = 20_000
"""But no more of them than this on the way, a quarter of what chunks of 16 KiB are at 10 Gbit/s. Ours; 1.3 Gbit/s. It
is what the way carries that counts, and not a share of it, for its receiver has the chunks of all that share it: at 10
Gbit/s those of 8 KiB would keep three quarters of a core busy, by what one costs (`fedrdma bench cpu`)."""

MOST_LOST_CHUNKS = 0.05
"""Of chunks of 16 KiB, lost with a packet, where the receiver says what may be sent: beyond it is more than of
packets of RDMA's largest MTU at 1 %, and these are cut in half as well, if they are no more a second. Who finds its
rate alone keeps them: of short ones its round trips tell less."""

LEAST_CHUNK_BYTES = 1024
"""On any path: packets of the smallest usual MTU carry as much, and of less, heads and work per chunk would be most."""

MOST_CHUNKS_PER_SECOND = 7500
"""On slow paths: what the two ends can post, complete and report with room to spare on a slow host. Ours."""

SLOW_PATH_RATE = 10e6
"""Bytes a second, 80 Mbit/s: up to this rate chunks may be below SMALLEST_CHUNK_BYTES. Two flows that share 200 Mbit/s
stay with larger ones: of small ones the round trips tell more of the other flow's chunks than of its queue, and they
shared worse. Such links also seldom lose as much as slow ones. Ours."""

LARGEST_X_CHUNK_BYTES = 4 * 1024 * 1024
"""What the paper's modes use: beyond, nothing is saved per chunk, and a lost one costs more."""

FIRST_CHUNK_BYTES = SMALLEST_CHUNK_BYTES
"""On a path nothing is known of: right for 1 % loss, and merely busier than needed without loss."""

FIRST_CHUNK_PACKETS = 4
"""But no more than so many, where nothing of a chunk counts that lost one: of 16 packets one in 36 comes whole where a
fifth is lost, and the size stands for the whole transfer; of four, two in five. With RDMA's MTU of 4096 it is the same.
"""

FIRST_RELIABLE_CHUNK_BYTES = 64 * 1024
"""The same over queue pairs that lose nothing, and have only so many chunks under way."""

CHUNK_SECONDS = 5e-6
"""What posting and completing one write costs the two ends, as time in which the link could have carried bytes. Ours;
`fedrdma bench cpu` measures the ends' part of it."""

BATCH_BYTES = 63 * 1024
"""Of datagrams that one call sends (UDP_SEGMENT): what an IP packet takes, less what heads of short ones take of it."""

SHORT_PATH_CHUNK_SECONDS = 0.0005
"""Of the rate, a chunk on a path too short to be paced: four of them in the 2 ms between two reports."""

WINDOW_CHUNKS = 12
"""A chunk is no longer than this part of the window: a loss is told by three chunks that follow and are whole, and of
four in a window none may be."""

WIDE_WINDOW_BYTES = 2 * 1024 * 1024
"""A window that has become so large is not what a buffer of 0.5 MB leaves of one, and fills any path that is that
short: where it loses anything, few chunks of it are enough to tell. So that one that was 3 MiB is wide still when it
has once been too large."""

WIDE_WINDOW_CHUNKS = 6
"""Of such a window a chunk is no longer than this part: three that tell of a loss, and as many that may be short of a
datagram themselves. What a chunk and its report cost the two hosts' processors is what bounds the rate there."""

LONGEST_SHORT_PATH_CHUNK_BYTES = 512 * 1024
"""But no longer than this: a report goes for each then, and beyond it little is saved by longer ones."""

FIRST_SHORT_PATH_CHUNK_BYTES = 64 * 1024
"""And while no window is known no longer than this, a quarter of the first one: of chunks of 256 KiB a report comes for
each two, when nothing is under way any more."""

LEAST_WHOLE_BLOCKS = 2
"""From so many blocks of the digest on a chunk is whole ones, for who wrote the payload has told their digests: to
compute others takes longer than the rest of a batch of datagrams does."""

LEAST_LOSS = 1e-3
"""Loss may appear at any time: no path is trusted to lose less than this per packet. Ours."""

UNKNOWN_LOSS = 0.01
"""A path whose loss is not known may lose so much: the worst that the mode was measured at."""

INDEX_BITS = 20
"""Of the immediate value's 32 bits, for the chunk index: exactly LARGEST_COUNT."""

TAGS = 1 << (32 - INDEX_BITS)
"""What the other bits tell apart: transfers of one path at a time, by their grant's id."""

_INDICES = 1 << INDEX_BITS
"""Chunk indices that there are."""

assert _INDICES >= LARGEST_COUNT


def best_chunk_bytes(rate: float, loss: float | None, mtu_bytes: int, total_bytes: int) -> int:
    """The chunk size that wastes least on a lossy datagram path: a power of two, or below 16 KiB whole packets.

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
    fewest = -(-total_bytes // LARGEST_COUNT)
    bounded = min(max(ideal, least_chunk_bytes(rate, mtu_bytes)), LARGEST_X_CHUNK_BYTES)
    if bounded < SMALLEST_CHUNK_BYTES:
        # the rest of a packet that is not full would cost its head again
        return max(int(bounded) // mtu_bytes * mtu_bytes, fewest)
    exponent = math.log2(bounded)
    # lost chunks cost more than the estimate has it, for the last of them cost a round trip: down, where there are any
    power = round(exponent) if least <= LEAST_LOSS else int(exponent)
    return max(1 << power, fewest)


def tolerant_chunk_bytes(usual_bytes: int, rate: float) -> int:
    """The chunk where what a lost packet takes with it matters: shorter, where the path is cut as short as any.

    Args:
        usual_bytes: it would have where that does not.
        rate: of the bottleneck, bytes a second.
    """
    shorter = SMALLEST_TOLERANT_CHUNK_BYTES
    if usual_bytes != SMALLEST_CHUNK_BYTES or rate > MOST_TOLERANT_CHUNKS_PER_SECOND * shorter:
        return usual_bytes
    return shorter


def loses_many_chunks(loss: float | None, mtu_bytes: int) -> bool:
    """Whether of chunks as short as usual so many are lost that half as long ones are worth their work.

    Args:
        loss: probability that a packet is lost; None: UNKNOWN_LOSS.
        mtu_bytes: packet size.
    """
    packets = -(-SMALLEST_CHUNK_BYTES // mtu_bytes)
    return 1 - (1 - (UNKNOWN_LOSS if loss is None else loss)) ** packets > MOST_LOST_CHUNKS


def bounded_chunk_rate(rate: float, bound: float) -> float:
    """The rate to cut for where the receiver lets no more through than a bound: one chunk of each sender at once has to
    fit its buffer.

    On a fast path it is no slow one's: packets one by one would be more than the receiver can take in of all together.

    Args:
        rate: of the bottleneck, bytes a second.
        bound: bytes a second; infinite: none.
    """
    least = math.nextafter(SLOW_PATH_RATE, math.inf)
    return rate if rate <= SLOW_PATH_RATE else min(rate, max(bound, least))


def least_chunk_bytes(rate: float, mtu_bytes: int) -> int:
    """The smallest chunk that a path is cut for: one packet where it is slow, SMALLEST_CHUNK_BYTES where it is fast.

    Args:
        rate: of the bottleneck, bytes a second.
        mtu_bytes: packet size.
    """
    if rate > SLOW_PATH_RATE:
        return SMALLEST_CHUNK_BYTES
    wanted = max(rate / MOST_CHUNKS_PER_SECOND, LEAST_CHUNK_BYTES)
    return min(math.ceil(wanted / mtu_bytes) * mtu_bytes, SMALLEST_CHUNK_BYTES)


def first_chunk_bytes(mtu_bytes: int, *, repairs_packets: bool, lost_trains: bool = False) -> int:
    """The chunk size on a lossy datagram path that nothing is known of.

    Args:
        mtu_bytes: packet size.
        repairs_packets: of a chunk that lost packets only these go again.
        lost_trains: of none of the trains that went over it most came. Then it loses many packets.
    """
    if repairs_packets:
        # a datagram comes or is lost as one, however long it is
        return max(FIRST_CHUNK_BYTES, mtu_bytes)
    return min(FIRST_CHUNK_BYTES, (1 if lost_trains else FIRST_CHUNK_PACKETS) * mtu_bytes)


def whole_datagrams(chunk_bytes: int, mtu_bytes: int) -> int:
    """The chunk, shortened to whole datagrams, and where it is longer than a batch of them, to whole batches.

    The rest of a chunk would go as a short datagram, in a call of its own.

    Args:
        chunk_bytes: of the chunk.
        mtu_bytes: of it in each datagram.
    """
    batch_bytes = max(1, BATCH_BYTES // mtu_bytes) * mtu_bytes
    unit = batch_bytes if chunk_bytes >= batch_bytes else mtu_bytes
    return max(chunk_bytes // unit * unit, mtu_bytes)


def short_path_chunk_bytes(usual_bytes: int, rate: float, window_bytes: float) -> int:
    """The chunk on a path too short to be paced: of shorter ones the work for each is most.

    Args:
        usual_bytes: it would have on a longer path.
        rate: of the bottleneck, bytes a second.
        window_bytes: that may be under way, as far as transfers have found it; 0: unknown.
    """
    chunks = WIDE_WINDOW_CHUNKS if window_bytes >= WIDE_WINDOW_BYTES else WINDOW_CHUNKS
    longest = window_bytes / chunks if window_bytes else FIRST_SHORT_PATH_CHUNK_BYTES
    bounded = min(max(longest, SMALLEST_CHUNK_BYTES), LONGEST_SHORT_PATH_CHUNK_BYTES)
    return int(min(max(usual_bytes, rate * SHORT_PATH_CHUNK_SECONDS), bounded))


def whole_blocks(chunk_bytes: int) -> int:
    """The chunk, shortened to whole blocks of the digest; 0 where it is too short for that."""
    blocks = chunk_bytes // BLOCK_BYTES
    return blocks * BLOCK_BYTES if blocks >= LEAST_WHOLE_BLOCKS else 0


def best_queue_pairs(known: PathState | None, most: int) -> int:
    """How many queue pairs to spread chunks over.

    One is enough for a slow path, and of every one that is used a loss is told by the chunks that follow on it: over
    four, four times as late.

    Args:
        known: of the path; None: nothing.
        most: that there are.
    """
    return 1 if known is not None and known.rate <= SLOW_PATH_RATE else most


def filling_chunk_bytes(rate: float, round_trip: float, most_chunks: int | None) -> int:
    """The least chunk, a power of two, of which so many under way are twice the bandwidth-delay product.

    Not below SMALLEST_CHUNK_BYTES where their number is bounded: only data paths that lose nothing have such a bound.

    Args:
        rate: of the bottleneck, bytes a second.
        round_trip: seconds.
        most_chunks: under way at once; None: any number.
    """
    if most_chunks is None:
        return LEAST_CHUNK_BYTES
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
