"""Which chunk of a `fedrdma-x` transfer goes next: lost ones before new ones, new ones as far as they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.plan import Chunk, ChunkPlan
from fedrdma_fate.core.x.arrival_map import ArrivalMap


class SendQueue:
    """Positions in the order of sending: position 0 is the last chunk.

    Attributes:
        written_from: the payload is being written, from its end to its start, and lies there from here on.
    """

    def __init__(self, plan: ChunkPlan, written_from: int) -> None:
        self.written_from = written_from
        self._plan = plan
        self._next = 0
        self._again: deque[int] = deque()

    @property
    def all_out(self) -> bool:
        """Whether every chunk has been sent at least once."""
        return self._next == self._plan.count

    @property
    def is_starved(self) -> bool:
        """Whether there is nothing to send before more of the payload is written."""
        if not self.written_from or self._again or self.all_out:
            return False
        return self.chunk(self._next).offset < self.written_from

    def chunk(self, position: int) -> Chunk:
        """The chunk at a position."""
        return self._plan.chunk(self._plan.count - 1 - position)

    def head(self, arrivals: ArrivalMap) -> int | None:
        """What goes next, None when nothing may; what has arrived is passed over."""
        while self._again and self._again[0] in arrivals:
            self._again.popleft()
        if self._again:
            return self._again[0]
        count = self._plan.count
        while self._next < count and self._next in arrivals:
            self._next += 1
        return None if self._next == count or self.is_starved else self._next

    def take(self) -> bool:
        """The head goes out; whether it had been sent before."""
        if self._again:
            self._again.popleft()
            return True
        self._next += 1
        return False

    def send_again(self, positions: Iterable[int]) -> None:
        """These are lost."""
        self._again.extend(positions)

    def send_all_again(self) -> None:
        """Nothing that was sent counts any more."""
        self._again = deque(range(self._next))
