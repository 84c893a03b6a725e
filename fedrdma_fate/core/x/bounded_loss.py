"""Which chunks of a `fedrdma-x` transfer may be missing in the end, how many of them, and whether what came is right.

UniFL, section 3.1, with the bound that its section 5.1 leaves open: docs/bounded-loss.md.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterable, Sequence

from fedrdma_fate.core.digest import DigestTable, payload_digest
from fedrdma_fate.core.held import Ranges, merged
from fedrdma_fate.core.plan import ChunkPlan
from fedrdma_fate.core.x.repair_code import mixed
from fedrdma_fate.wire.frames import DIGESTS_OF_A_RUN

ELEMENT_ALIGNMENT_BYTES = 64
"""Arrays begin at multiples of this (`fate/layout.py`), and no element is longer: in chunks cut so, none is cut."""

QUIET_SPACINGS = 4
"""Times the mean time between two chunks that nothing new has come for: what was sent is there, or lost. One more than
the chunks by which a loss is told (kPacketThreshold, RFC 9002, section 6.1.1). Ours."""

LEAST_QUIET_SECONDS = 0.001
"""But so long at least: a link's thread that waits for its turn does not look for that long. Ours."""

LOOK_SECONDS = 0.002
"""Between two looks at whether what is missing fits: the interval of reports. Ours."""

MOST_LOOK_SECONDS = 0.064
"""As long as nothing more comes, that is doubled up to this: so late at most it is seen that the receiver's task lets
something be missing after all, and a thousand transfers whose sender is gone cost nothing. Ours."""

MOST_CHECK_SECONDS = 60.0
"""Where what is missing fits, all digests are added up. Each time that they do not make the header's, the next time is
twice as far away, up to this: digests that are late cost no more than they are late themselves, and who sends wrong
ones again and again does not keep a processor busy. Ours."""

MOST_BOUNDED_CHUNKS = 1 << 16
"""Of a transfer of which some may be missing: its ranges fit a reply to a task. Of 16 KiB each they make 1 GiB."""

TAIL_DIVISOR = 4
"""The tail, which goes behind all else, is this part of the chunks that may be missing. No more than a fifth of them
may be (`MOST_LOSS_SHARE`), so what has to be whole lies in front of all that is not waited for. And it is no longer, so
that a payload that is still being written, from its end to its start, is waited for as seldom as can be. Ours."""

_DIGEST_BYTES = 8
"""Of an xxh3-64."""

SpendHoles = Callable[[int, int, Ranges], bool]
"""Whether this may be missing of a payload besides what is of others: bytes of it that have to be whole, its length in
bytes, and where it is missing. True: it is spent."""


class LossBound:
    """Which chunks of a plan may be missing: those that lie behind what has to be whole, and not in a trailer.

    Attributes:
        plan: how the payload is cut.
        share: how much of what may be missing may be so at once; the sender's task says.
        whole_bytes: length of what has to be whole, from the start of the payload.
        first_index: the first chunk that may be missing, and with it all behind.
    """

    def __init__(self, plan: ChunkPlan, share: float, whole_bytes: int) -> None:
        """
        Raises:
            ValueError: these are no bounds of this plan, or a chunk would cut an element.
        """
        if not 0 <= whole_bytes <= plan.total_bytes:
            raise ValueError(f"{whole_bytes} of {plan.total_bytes} bytes have to be whole")
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share} may be missing")
        if not may_bound(plan):
            raise ValueError(f"{plan.count} chunks of {plan.chunk_bytes} bytes may be missing")
        self.plan = plan
        self.share = share
        self.whole_bytes = whole_bytes
        self.first_index = min(plan.count, plan.trailer_count + -(-whole_bytes // plan.chunk_bytes))

    @property
    def count(self) -> int:
        """How many chunks there are that may be missing."""
        return self.plan.count - self.first_index

    def tail(self, number: int) -> range:
        """The chunks that go behind all others: with another number, others.

        What is lost of them is what is missing most: there is the least time for it to be sent again.
        """
        length = self.count // TAIL_DIVISOR
        if not length:
            return range(0)
        start = self.first_index + mixed(number) % (self.count - length + 1)
        return range(start, start + length)

    def tail_from(self, start: int) -> range:
        """The tail that begins with this chunk.

        Raises:
            ValueError: there is none that does.
        """
        length = self.count // TAIL_DIVISOR
        if not length or not self.first_index <= start <= self.plan.count - length:
            raise ValueError(f"no tail of {length} chunks begins at chunk {start}")
        return range(start, start + length)

    def allows(self, indices: Iterable[int], share: float) -> bool:
        """Whether these may all be missing, where the receiver's task lets no more than `share` be."""
        budget = min(share, self.share) * (self.plan.total_bytes - self.whole_bytes)
        missing = 0
        for index in indices:
            missing += self.plan.chunk(index).length
            if index < self.first_index or missing > budget:
                return False
        return True

    def has_room_for(self, missing_bytes: int, share: float) -> bool:
        """Whether so much may be missing, wherever it is, and the receiver's task lets no more than `share` be."""
        return missing_bytes <= min(share, self.share) * (self.plan.total_bytes - self.whole_bytes)

    def ranges(self, indices: Iterable[int]) -> Ranges:
        """Where these chunks lie."""
        chunks = (self.plan.chunk(index) for index in indices)
        return merged((chunk.offset, chunk.offset + chunk.length) for chunk in chunks)


def may_bound(plan: ChunkPlan) -> bool:
    """Whether chunks of this plan may be missing at all: they cut no element, and are not too many."""
    return (
        plan.chunk_bytes % ELEMENT_ALIGNMENT_BYTES == 0 and plan.count <= MOST_BOUNDED_CHUNKS and not plan.enable_bytes
    )


class ToldDigests:
    """The digests that the sender has told. What it says of what is missing is believed of none alone."""

    def __init__(self, bound: LossBound) -> None:
        self._bound = bound
        self._told = DigestTable(bound.plan.count)
        self._is_wrong = False

    def on_run(self, first: int, packed: bytes) -> None:
        """The digests of chunks from `first` on; what is of no chunk is ignored."""
        self._is_wrong = False
        digests = _unpacked(packed)
        for index, digest in enumerate(digests, first):
            if index < self._bound.plan.count:
                self._told[index] = digest

    def agrees(self, index: int, ours: int | None) -> bool:
        """Whether this is the digest that the sender has told of a chunk."""
        return ours is not None and self._told.get(index) == ours

    def forget(self) -> None:
        """What has come is forgotten, and with it that it made no sense."""
        self._is_wrong = False

    def damaged(self, missing: set[int], known: Sequence[int | None], payload: int) -> list[int] | None:
        """Chunks that are there and have another digest than the sender told.

        Args:
            missing: those that are not there.
            known: digests of what is, by index.
            payload: the header's digest, which speaks for all of them.

        Returns:
            None where it cannot be said what is right: a digest is not known yet, or they do not make the header's.
        """
        if self._is_wrong or any(index not in self._told for index in missing):
            return None
        digests, damaged = [], []
        for index, ours in enumerate(known):
            told = self._told.get(index)
            if index not in missing and ours is None:
                return None
            if index not in missing and told is not None and told != ours:
                damaged.append(index)
            digests.append(ours if told is None else told)
        if payload_digest([digest for digest in digests if digest is not None]) == payload:
            return damaged
        # a million digests are not to be added up again at each look
        self._is_wrong = True
        return None


RUNS = 32
"""That digests are told in, where that makes them no longer than DIGESTS_OF_A_RUN: of the one in the middle of which a
sender falls silent it is not known what came of it, and that is to be less than what may be missing."""


class DigestTelling:
    """The sender's side: tells the digests of all chunks, a run of them at a time, when all of it are known."""

    def __init__(self, plan: ChunkPlan) -> None:
        self._first = plan.trailer_count
        self._count = plan.count
        self._length = min(DIGESTS_OF_A_RUN, max(1, (self._count - self._first) // RUNS))
        self._left: dict[int, int] = {}
        for number in range(-(-(self._count - self._first) // self._length)):
            self._left[number] = len(self._run(number))
        self._ready: list[int] = []

    def on_digest(self, index: int) -> None:
        """A digest is known that was not."""
        if index < self._first:
            return
        number = (index - self._first) // self._length
        self._left[number] -= 1
        if not self._left[number]:
            self._ready.append(number)

    def again(self) -> None:
        """The data path was renewed: what was told may be lost."""
        self._ready = [number for number, left in self._left.items() if not left]

    def take(self) -> list[range]:
        """Runs of chunks whose digests are to be told now."""
        ready, self._ready = self._ready, []
        return [self._run(number) for number in ready]

    def _run(self, number: int) -> range:
        first = self._first + number * self._length
        return range(first, min(first + self._length, self._count))


def _unpacked(raw: bytes) -> Sequence[int]:
    values = array.array("Q", raw[: len(raw) // _DIGEST_BYTES * _DIGEST_BYTES])
    if sys.byteorder == "big":
        values.byteswap()
    return values
