"""The header of a `fedrdma-x` transfer: goes once the digests of all chunks are known."""

from __future__ import annotations

from fedrdma_fate.core.actions import Action, ComputeDigest
from fedrdma_fate.core.digest import DigestTable, payload_digest
from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.wire.header import ChunkHeader, HeaderKind


class Heading:
    """Gathers the digests, and says when the header is due.

    Attributes:
        is_out: whether the header has gone.
    """

    def __init__(self, transfer: int, plan: ChunkPlan) -> None:
        self.is_out = False
        self._transfer = transfer
        self._plan = plan
        self._digests = DigestTable(plan.count)
        self._asked: set[int] = set()

    def ask(self, chunk: Chunk) -> list[Action]:
        """A chunk goes out: its digest is wanted, if it is not known."""
        if chunk.index in self._digests or chunk.index in self._asked:
            return []
        self._asked.add(chunk.index)
        return [ComputeDigest(chunk)]

    def on_digest(self, index: int, value: int) -> None:
        """The answer; what was not asked for is ignored."""
        if index in self._asked:
            self._asked.discard(index)
            self._digests[index] = value

    def pause(self) -> None:
        """The data path is gone, and the header with it."""
        self._asked.clear()
        self.is_out = False

    def take(self) -> ChunkHeader | None:
        """The header, once, when it can go."""
        if self.is_out or not self._digests.complete:
            return None
        self.is_out = True
        digest = payload_digest(self._digests.in_order())
        total = self._plan.total_bytes
        return ChunkHeader(HeaderKind.PAYLOAD, self._transfer, total, 0, total, digest, 0, self._plan.count)
