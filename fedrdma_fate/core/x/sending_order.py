"""In which order the chunks of a `fedrdma-x` transfer go for the first time; both ends reckon the same."""

from __future__ import annotations

import dataclasses

from fedrdma_fate.core.plan import Chunk, ChunkPlan


@dataclasses.dataclass(frozen=True, slots=True)
class SendingOrder:
    """Chunks by their position in the order of sending: from the last to the first, a tail behind them, then a trailer.

    Attributes:
        plan: how the payload is cut.
        tail: indices of the chunks of the payload that go behind all others of it; a range of step 1.
    """

    plan: ChunkPlan
    tail: range = range(0)

    def position(self, index: int) -> int:
        """When the chunk goes; of an index that is none of the plan's, one that is none of the order's."""
        before = self.plan.count - 1 - index
        tail = self.tail
        if index < self.plan.trailer_count or index >= tail.stop:
            return before
        if index < tail.start:
            return before - len(tail)
        return before + tail.start - self.plan.trailer_count

    def index(self, position: int) -> int:
        """Of the chunk at a position; of one that is none of the order's, an index that is none of the plan's."""
        count, tail, trailers = self.plan.count, self.tail, self.plan.trailer_count
        in_turn = count - 1 - position
        if position >= count - trailers or in_turn >= tail.stop:
            return in_turn
        tail_at = count - trailers - len(tail)
        return in_turn - len(tail) if position < tail_at else tail.stop - 1 - (position - tail_at)

    def chunk(self, position: int) -> Chunk:
        """The chunk at a position.

        Raises:
            IndexError: there is no such position.
        """
        return self.plan.chunk(self.index(position))
