"""How many requests of one user are begun in one turn of the event loop: then others have theirs."""

from __future__ import annotations

import asyncio
from collections import deque

TURN_REQUESTS = 32
"""Of one user. Of a peer's frames there are more (TURN_FRAMES): they are for tasks of all users. Ours: at 0.1 ms each,
some milliseconds."""


class Turns:
    """First come, first served. Belongs to the event loop's thread."""

    def __init__(self, most: int = TURN_REQUESTS) -> None:
        """
        Args:
            most: requests in one turn.
        """
        self._most = most
        self._left = most
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._is_counting = False

    async def take(self, share: int = 1) -> None:
        """Wait until one may be begun.

        Args:
            share: as how many it counts; one that counts as more than are left is begun all the same.
        """
        if not self._waiting and self._left > 0:
            self._left -= share
            self._count()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, share))
        # whoever goes away meanwhile is passed over
        await turn

    def _count(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_counting, self._left = False, self._most
        while self._waiting and self._left > 0:
            turn, share = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._left -= share
        if self._left < self._most:
            self._count()
