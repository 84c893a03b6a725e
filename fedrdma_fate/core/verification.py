"""What the receiver knows of its chunks' digests, where the bytes may change while a digest is being computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedrdma_fate.core.actions import Action, ComputeDigest
from fedrdma_fate.core.digest import DigestTable
from fedrdma_fate.core.plan import Chunk, ChunkPlan


class ChunkVerification:
    """What is known of the chunks' digests, and which are being computed.

    The driver answers each ComputeDigest once, in any order and however late. An answer computed from bytes that have
    been forgotten since is dropped, and asked for anew where it is still wanted: at most one is computed per chunk.
    """

    def __init__(self, plan: ChunkPlan) -> None:
        self._known = DigestTable(plan.count)
        self._computing: set[int] = set()
        self._outdated: set[int] = set()
        self._requested_again: dict[int, Chunk] = {}

    @property
    def complete(self) -> bool:
        """Whether every chunk's digest is known."""
        return self._known.complete

    def get(self, index: int) -> int | None:
        """The digest of a chunk, None when it is not known."""
        return self._known.get(index)

    def tagged(self) -> set[int]:
        """Chunks that a tag vouches for."""
        return self._known.tagged()

    def in_order(self) -> Sequence[int]:
        """Every chunk's digest; only when `complete`."""
        return self._known.in_order()

    def request(self, chunk: Chunk) -> list[Action]:
        """Have the digest of a chunk computed, unless it is known or being computed."""
        if chunk.index in self._known:
            return []
        if chunk.index in self._computing:
            if chunk.index in self._outdated:
                self._requested_again[chunk.index] = chunk
            return []
        self._computing.add(chunk.index)
        return [ComputeDigest(chunk)]

    def on_digest(self, index: int, value: int) -> list[Action]:
        """Take a computed digest in; asks again where the bytes have changed meanwhile. Unasked answers are ignored."""
        if index not in self._computing:
            return []
        self._computing.discard(index)
        if index not in self._outdated:
            self._known[index] = value
            return []
        self._outdated.discard(index)
        chunk = self._requested_again.pop(index, None)
        return [] if chunk is None else self.request(chunk)

    def set(self, index: int, value: int) -> None:
        """Take in a digest of the bytes as they are now, which nobody was asked for."""
        self._known[index] = value
        self._requested_again.pop(index, None)

    def invalidate(self, indices: Iterable[int]) -> None:
        """The bytes of these chunks have changed, or will."""
        for index in indices:
            self._known.discard(index)
            self._requested_again.pop(index, None)
            if index in self._computing:
                self._outdated.add(index)
