"""Which chunk of a `fedrdma-x` transfer goes next: lost ones before new ones, new ones as far as they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.plan import Chunk
from fedrdma_fate.core.x.arrival_map import ArrivalMap
from fedrdma_fate.core.x.sending_order import SendingOrder


class SendQueue:
    """Positions in the order of sending.

    Attributes:
        written_from: the payload is being written, from its end to its start, and lies there from here on.
    """

    def __init__(self, order: SendingOrder, written_from: int) -> None:
        self.written_from = written_from
        self._order = order
        self._count = order.plan.count
        self._next = 0
        self._retransmissions: deque[int] = deque()

    @property
    def sent(self) -> int:
        """Every position below this one has been sent at least once, or had arrived before."""
        return self._next

    @property
    def retransmissions(self) -> int:
        """Of chunks that wait to go again; some may have arrived meanwhile."""
        return len(self._retransmissions)

    @property
    def all_sent(self) -> bool:
        """Whether every chunk has been sent at least once."""
        return self._next == self._count

    @property
    def is_application_limited(self) -> bool:
        """Whether there is nothing to send before more of the payload is written (see RFC 9002, section 7.8)."""
        if not self.written_from or self._retransmissions or self.all_sent:
            return False
        return self.chunk(self._next).offset < self.written_from

    def chunk(self, position: int) -> Chunk:
        """The chunk at a position.

        Raises:
            IndexError: there is no such position.
        """
        return self._order.chunk(position)

    def head(self, arrivals: ArrivalMap) -> int | None:
        """What goes next, None when nothing may; what has arrived is passed over."""
        while self._retransmissions and self._retransmissions[0] in arrivals:
            self._retransmissions.popleft()
        if self._retransmissions:
            return self._retransmissions[0]
        count = self._count
        while self._next < count and self._next in arrivals:
            self._next += 1
        return None if self._next == count or self.is_application_limited else self._next

    def take(self) -> bool:
        """The head goes out; whether it had been sent before."""
        if self._retransmissions:
            self._retransmissions.popleft()
            return True
        self._next += 1
        return False

    def retransmit(self, positions: Iterable[int]) -> None:
        """These are lost."""
        self._retransmissions.extend(positions)

    def retransmit_only(self, positions: Iterable[int]) -> None:
        """These are lost, and nothing that was taken for lost before."""
        self._retransmissions = deque(positions)

    def retransmit_all(self) -> None:
        """Nothing that was sent counts any more."""
        self._retransmissions = deque(range(self._next))
