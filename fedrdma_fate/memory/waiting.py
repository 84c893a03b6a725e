"""Who waits for room in a pool, and who is next: first come first served, or in turns between those who share it.

In turns (round robin, as in RFC 970, section 5, for packets of several hosts): each of N sharers has a share, 1/N of
the pool, that it may hold while others wait. Who asks for more than that is served where nobody waits within its share.
A small part of each share is reserved: it stays free, or with its sharer, whatever the others ask for; who holds
nothing gets it in one piece.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

RESERVED_PART = 8
"""Of each share, one part in so many is reserved: enough for LoRA updates and small payloads, and the largest payload
may still take 7/8 of the pool."""

Granted = TypeVar("Granted")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Request(Generic[Granted]):
    """A request that waits for room: of `length` bytes, by `owner`."""

    length: int
    owner: str
    future: asyncio.Future[Granted]


class Shares:
    """What the sharers of a pool may hold.

    Attributes:
        share: bytes that each may hold while others wait.
        reserved: bytes of it that nobody else gets.
        most: bytes that one may hold at most.
    """

    def __init__(self, length: int, sharers: Iterable[str], page: int) -> None:
        """
        Args:
            length: of the pool, in bytes.
            sharers: owners.
            page: shares are multiples of so many bytes.
        """
        self._sharers = frozenset(sharers)
        count = max(1, len(self._sharers))
        self.share = max(page, length // count // page * page)
        self.reserved = self.share // RESERVED_PART // page * page if count > 1 else 0
        self.most = length - (count - 1) * self.reserved

    def reserved_for_others(self, owner: str, held: Mapping[str, int]) -> int:
        """Bytes that must stay free when `owner` gets something: what others do not hold of their reserves."""
        return sum(self._lacks(other, held) for other in self._sharers if other != owner)

    def kept_in_one_piece(self, length: int, owner: str, held: Mapping[str, int]) -> int:
        """Bytes of it that must stay free in one piece when `owner` gets so many.

        Between slots of others what is free is of little use. Who asks for no more than its own reserve leaves a piece
        to those alone who hold less of theirs: nobody is kept from it by what another has broken up.
        """
        own = self._lacks(owner, held) if owner in self._sharers else 0
        least = own if length <= own else 0
        others = (self._lacks(other, held) for other in self._sharers if other != owner)
        return sum(lacking for lacking in others if lacking > least)

    def _lacks(self, sharer: str, held: Mapping[str, int]) -> int:
        """Bytes that it does not hold of what is reserved for it."""
        return max(0, self.reserved - held.get(sharer, 0))


class Waiting(Generic[Granted]):
    """The requests that wait. Belongs to one thread."""

    def __init__(self, shares: Shares | None) -> None:
        """
        Args:
            shares: of those who take turns; None: first come first served.
        """
        self._shares = shares
        # without shares, all requests stand in one queue
        self._queues: OrderedDict[str, deque[Request[Granted]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def all(self) -> list[Request[Granted]]:
        """Every request that waits."""
        return [request for queue in self._queues.values() for request in queue]

    def of(self, owner: str) -> bool:
        """Whether a sharer waits, be it for itself alone."""
        return self._shares is not None and owner in self._queues

    def add(self, request: Request[Granted]) -> None:
        """Somebody waits."""
        self._queues.setdefault(self._queue_of(request), deque()).append(request)

    def remove(self, request: Request[Granted]) -> None:
        """It waits no longer, and was not served."""
        key = self._queue_of(request)
        self._queues[key].remove(request)
        if not self._queues[key]:
            del self._queues[key]

    def served(self, request: Request[Granted]) -> None:
        """It was: the others have their turn before its owner has the next."""
        self.remove(request)
        key = self._queue_of(request)
        if key in self._queues:
            self._queues.move_to_end(key)

    def next(self, held: Mapping[str, int]) -> list[Request[Granted]]:
        """The requests one of which is to be served next, the first that there is room for.

        While these wait, no other is served, not even one that would fit: small requests would otherwise keep a large
        one out for ever. Who holds so much that it can have no more waits for itself, and keeps nobody waiting.
        """
        if not self._queues:
            # which is so nearly always, and this is asked several times for each slot
            return []
        shares = self._shares
        heads = [queue[0] for queue in self._queues.values()]
        if shares is None:
            return heads
        possible = [head for head in heads if held.get(head.owner, 0) + head.length <= shares.most]
        within = [head for head in possible if held.get(head.owner, 0) + head.length <= shares.share]
        return within or possible[:1]

    def wanted(self, held: Mapping[str, int]) -> tuple[int, str | None]:
        """Bytes that are to be made free, 0 for none, and by whom alone: None for everybody."""
        first = next(iter(self.next(held)), None)
        if first is not None:
            return first.length, None
        # all who wait hold too much: only what they hold themselves helps them
        head = next((queue[0] for queue in self._queues.values()), None)
        return (0, None) if head is None else (head.length, head.owner)

    def _queue_of(self, request: Request[Granted]) -> str:
        return "" if self._shares is None else request.owner
