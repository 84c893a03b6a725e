"""Repair chunks of `fedrdma-x`: sums of the chunks that go last, so that a lost one need not cost a round trip.

A sparse random linear code over GF(2), the idea of RFC 5170 (LDPC-Staircase and -Triangle) and RFC 8681 (sliding window
RLC) without their formats: every covered chunk, a source symbol there, is added (exclusive or) to a few repair chunks,
chosen by its index. The receiver solves for what it misses. The numbers are ours; of a thousand drawn losses, at 1 and
10 Gbit/s, 0.1 and 1 % and 1 to 256 MiB, 0.3 to 1.9 % could not be solved with them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from fedrdma_fate.core.plan import LARGEST_COUNT, ChunkPlan, SlotLayout
from fedrdma_fate.core.x.estimators import chunk_loss
from fedrdma_fate.wire.errors import ErrorCode, TransferError
from fedrdma_fate.wire.frames import Offer

ACCEPTED_LOSS = 1e-3
"""Probability of losing all copies of a chunk, or a chunk, at which a round trip now and then is the cheaper cure."""

MOST_COPIES = 3
"""Of a repeated chunk at once: three are enough for ACCEPTED_LOSS where no more than one chunk in ten is lost."""


def copies_of_last(lost: float) -> int:
    """Of a chunk that too few follow to betray its loss.

    Args:
        lost: probability that a chunk is lost.
    """
    return 2 if lost > ACCEPTED_LOSS else 1


def copies_of_repeat(lost: float) -> int:
    """Of a chunk that was lost, with nothing new to send.

    Args:
        lost: probability that a chunk is lost.
    """
    if lost <= ACCEPTED_LOSS:
        return 2
    if lost >= 1.0:
        return MOST_COPIES
    return min(max(math.ceil(math.log(ACCEPTED_LOSS) / math.log(lost)), 2), MOST_COPIES)


REPAIRS_PER_CHUNK = 4
"""Repair chunks that a covered chunk is part of, as N1 in RFC 5170. Of fewer than seven, half: two lost chunks must not
be in all the same."""

UNCOVERED_LOST_CHUNKS = 0.05
"""What is lost in the last round trip is covered, and what is lost again there after it was lost in the one before; and
so on, until no more chunks than this, on average, are lost as often."""

MOST_COVERED_ROUNDS = 5
"""Round trips that are covered at most: at a loss of 25 % of the chunks, one in a thousand is lost so often."""

LEAST_COVERED_CHUNKS = 8
"""Fewer go twice instead: EXTRA_REPAIR_CHUNKS alone are LARGEST_REPAIR_SHARE of so many."""

LARGEST_REPAIR_BYTES = 16 * 1024 * 1024
"""Of all repair chunks of a transfer: the shared memory that each link has for their sums."""

MOST_REPAIR_CHUNKS = 1024
"""LARGEST_REPAIR_BYTES in the smallest chunks of fast paths (`SMALLEST_CHUNK_BYTES`). To solve for so many takes 0.2 s
of a core; time grows with the third power of their number, memory with the second."""

LARGEST_REPAIR_SHARE = 0.25
"""Of the covered chunks: where more would be needed, sending them again is cheaper."""

LARGEST_ROUND_SHARE = 0.5
"""Of the chunks of a round trip, where so many are spent at most: the end that loses a chunk takes a round trip more,
and a round of many silos is as long as that of its last one. Ours; at 1 % of the packets half of all ends of 17 chunks
lose one."""

LOSS_DEVIATIONS = 3.5
"""Standard deviations of the number of lost chunks that are made up for: of a normal distribution, all but one in four
thousand."""

LOSS_MARGIN = 1.15
"""The loss of the next transfer is taken for so many times what was found: an average of rounds is now and then low."""

LEAST_REPAIR_SHARE = 0.8
"""Of the repair chunks that are wanted: so many are still enough most of the time."""

EXTRA_REPAIR_CHUNKS = 2
"""More repair chunks than lost ones: so that a sparse system can be solved."""

_MASK = (1 << 64) - 1
"""SplitMix64 reckons in 64 bits."""


@dataclasses.dataclass(frozen=True, slots=True)
class RepairPlan:
    """Which chunks are covered, by how many repair chunks. Both ends compute the same repair chunks from the three.

    Covered chunks have numbers, from the one that goes last; where there is no tail (`SendingOrder`), their indices.

    Attributes:
        chunks: how the payload is cut; a repair chunk is as long as the longest of its chunks.
        covered: so many chunks, those that go last.
        repairs: repair chunks.

    Raises:
        ValueError: there are no such chunks, or no more indices.
    """

    chunks: ChunkPlan
    covered: int
    repairs: int

    def __post_init__(self) -> None:
        if not 0 < self.covered <= self.chunks.count or self.repairs <= 0:
            raise ValueError(f"{self.repairs} repair chunks of {self.covered} among {self.chunks.count} chunks")
        if self.chunks.count + self.repairs > LARGEST_COUNT:
            raise ValueError(f"{self.chunks.count} chunks leave no room for {self.repairs} repair chunks")

    @property
    def repair_bytes(self) -> int:
        """Length of all repair chunks."""
        return self.repairs * self.chunks.chunk_bytes

    @property
    def slot_bytes(self) -> int:
        """Length a receive slot must have."""
        return SlotLayout(self.chunks, "fedrdma-x").repairs_at + self.repair_bytes

    @property
    def wished_bytes(self) -> int:
        """Length of a receive slot for the next message like this one, which may want some more of them."""
        return self.slot_bytes + self.repair_bytes // 2

    def within(self, slot_bytes: int) -> RepairPlan | None:
        """With as many as fit a slot of this length; None where those would be too few."""
        room = (slot_bytes - self.slot_bytes + self.repair_bytes) // self.chunks.chunk_bytes
        if room < LEAST_REPAIR_SHARE * self.repairs:
            return None
        return dataclasses.replace(self, repairs=min(room, self.repairs))

    def repair_at(self, number: int) -> int:
        """Where in the slot a repair chunk is written."""
        return SlotLayout(self.chunks, "fedrdma-x").repairs_at + number * self.chunks.chunk_bytes

    def repairs_of(self, covered: int) -> tuple[int, ...]:
        """The repair chunks that a covered chunk is part of, by its number."""
        wanted = min(REPAIRS_PER_CHUNK, -(-self.repairs // 2))
        chosen: list[int] = []
        seed = bits = mixed(covered)
        while len(chosen) < wanted:
            bits, number = divmod(bits, self.repairs)
            if bits == 0:
                seed = bits = mixed(seed)
            if number not in chosen:
                chosen.append(number)
        return tuple(chosen)


def mixed(number: int) -> int:
    """64 well mixed bits (the finaliser of SplitMix64: Steele, Lea and Flood 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def plan_repairs(
    chunks: ChunkPlan, mtu_bytes: int, loss: float, bytes_a_round: float, may_miss_bytes: float = 0.0
) -> RepairPlan | None:
    """What makes up for the losses that no report would tell of in time; None where that is nothing, or not worth it.

    Args:
        chunks: how the payload is cut.
        mtu_bytes: packet size.
        loss: probability that a packet is lost.
        bytes_a_round: what is sent in a round trip.
        may_miss_bytes: so much may be missing in the end: where that is as much as would be made up for, nothing is.
    """
    lost = chunk_loss(loss, -(-chunks.chunk_bytes // mtu_bytes))
    in_a_round = math.ceil(bytes_a_round / chunks.chunk_bytes)
    if lost <= ACCEPTED_LOSS or lost >= LARGEST_REPAIR_SHARE:
        return None
    covered, unknown, so_often = 0, 0.0, lost
    for _ in range(MOST_COVERED_ROUNDS):
        in_this_round = min(in_a_round, chunks.count - covered)
        if in_this_round * so_often <= UNCOVERED_LOST_CHUNKS:
            break
        covered += in_this_round
        unknown += in_this_round * so_often
        so_often *= lost
    if covered < LEAST_COVERED_CHUNKS:
        return None
    expected = LOSS_MARGIN * unknown
    most = expected + LOSS_DEVIATIONS * math.sqrt(expected)
    if most * chunks.chunk_bytes <= may_miss_bytes:
        return None
    repairs = math.ceil(most / (1 - lost)) + EXTRA_REPAIR_CHUNKS
    if LARGEST_REPAIR_SHARE * covered < repairs <= LARGEST_ROUND_SHARE * in_a_round:
        # of those that went before, what was lost has mostly come by then: they take no more repair chunks
        covered = min(math.ceil(repairs / LARGEST_REPAIR_SHARE), chunks.count)
    if repairs > LARGEST_REPAIR_SHARE * covered or repairs * chunks.chunk_bytes > LARGEST_REPAIR_BYTES:
        return None
    if repairs > MOST_REPAIR_CHUNKS:
        return None
    return RepairPlan(chunks, covered, repairs) if chunks.count + repairs <= LARGEST_COUNT else None


def repairs_of_offer(offer: Offer, chunks: ChunkPlan, slot_bytes: int) -> RepairPlan | None:
    """The repair chunks that a peer's offer announces, for a granted slot of `slot_bytes`; None when there are none.

    Raises:
        TransferError: UNEXPECTED_EVENT when its numbers make no sense, or are of more than any sender plans;
            GRANT_VIOLATION when they do not fit the slot.
    """
    if not offer.repair_chunks:
        return None
    if offer.repair_chunks > MOST_REPAIR_CHUNKS:
        raise TransferError(
            ErrorCode.UNEXPECTED_EVENT,
            f"the offer of {offer.key} has {offer.repair_chunks} repair chunks, more than {MOST_REPAIR_CHUNKS}.",
        )
    try:
        plan = RepairPlan(chunks, offer.covered_chunks, offer.repair_chunks)
    except ValueError as error:
        raise TransferError(ErrorCode.UNEXPECTED_EVENT, f"the offer of {offer.key} is senseless: {error}.") from error
    if plan.slot_bytes > slot_bytes:
        raise TransferError(
            ErrorCode.GRANT_VIOLATION,
            f"the offer of {offer.key} needs {plan.slot_bytes} bytes with repair chunks, its grant has {slot_bytes}.",
        )
    return plan


@dataclasses.dataclass(frozen=True, slots=True)
class Solution:
    """How lost chunks follow from repair chunks.

    Attributes:
        additions: (to, from) in order: add repair chunk `from` to repair chunk `to`.
        found: by the covered chunk's number, the repair chunk that then holds it; before, all others that are part of
            it or of those added to it must have been taken out of it.
    """

    additions: tuple[tuple[int, int], ...]
    found: Mapping[int, int]


def solve(plan: RepairPlan, repairs: Iterable[int], missing: Iterable[int]) -> Solution | None:
    """Solve for all covered chunks that are missing, from the repair chunks that are there; None while that cannot be.

    Gauss-Jordan elimination; the equation with the fewest unknowns is the next pivot, which keeps the system sparse.
    """
    column = {index: 1 << number for number, index in enumerate(missing)}
    rows = dict.fromkeys(repairs, 0)
    for index, bit in column.items():
        repairs_of_it = [number for number in plan.repairs_of(index) if number in rows]
        if not repairs_of_it:
            return None
        for number in repairs_of_it:
            rows[number] |= bit
    index_of = {bit: index for index, bit in column.items()}
    additions: list[tuple[int, int]] = []
    found: dict[int, int] = {}
    waiting = {number for number, row in rows.items() if row}
    for _ in column:
        pivot = min(waiting, key=lambda number: (rows[number].bit_count(), number), default=None)
        if pivot is None:
            return None
        waiting.discard(pivot)
        bit = rows[pivot] & -rows[pivot]
        found[index_of[bit]] = pivot
        for number, row in rows.items():
            if row & bit and number != pivot:
                rows[number] = row ^ rows[pivot]
                additions.append((number, pivot))
        waiting = {number for number in waiting if rows[number]}
    used = set(found.values())
    return Solution(tuple(step for step in additions if step[0] in used), found)
