"""The header of a `fedrdma-x` transfer: goes once the digests of all chunks are known."""

from __future__ import annotations

from collections.abc import Sequence

from fedrdma_fate.core.actions import Action, ComputeDigest
from fedrdma_fate.core.digest import DigestTable, payload_digest
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind


class HeaderSender:
    """Gathers the digests, and says when the header is due: the one header of paper, section 3.2.

    Attributes:
        is_sent: whether the header has gone; set it to False to have it sent again.
    """

    def __init__(self, transfer: int, plan: ChunkPlan) -> None:
        self.is_sent = False
        self._transfer = transfer
        self._plan = plan
        self._digests = DigestTable(plan.count)
        self._requested: set[int] = set()

    def on_chunk_sent(self, chunk: Chunk) -> list[Action]:
        """A chunk goes out: its digest is wanted, if it is neither known nor being computed."""
        if chunk.index in self._digests or chunk.index in self._requested:
            return []
        self._requested.add(chunk.index)
        return [ComputeDigest(chunk)]

    def on_digest(self, index: int, value: int) -> bool:
        """The answer to ComputeDigest; what was not asked for is ignored. Whether it was not known before."""
        if index not in self._requested:
            return False
        self._requested.discard(index)
        is_new = index not in self._digests
        self._digests[index] = value
        return is_new

    def digests_of(self, run: range) -> tuple[int, ...]:
        """Of these chunks.

        Raises:
            KeyError: one is not known.
        """
        return tuple(self._digests[index] for index in run)

    def pause(self) -> None:
        """The data path is gone, and the header with it."""
        self._requested.clear()
        self.is_sent = False

    def digests(self) -> Sequence[int] | None:
        """Those of all chunks, in index order; None while one is not known."""
        return self._digests.in_order() if self._digests.complete else None

    def take(self) -> ChunkHeader | None:
        """The header, once, when it can go."""
        if self.is_sent or not self._digests.complete:
            return None
        self.is_sent = True
        digest = payload_digest(self._digests.in_order())
        total = self._plan.total_bytes
        return ChunkHeader(HeaderKind.PAYLOAD, self._transfer, total, 0, total, digest, 0, self._plan.count)
