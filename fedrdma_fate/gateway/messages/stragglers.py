"""Waits for the last message of a round as long as its task says, once all others are here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from fedrdma_fate.gateway.messages.tolerances import MOST_TOLERANCES, Tolerances
from fedrdma_fate.wire.frames import MessageKey


class Stragglers:
    """One wait for each message, however often a task says that it will get it. Belongs to the event loop's thread."""

    def __init__(self, tolerances: Tolerances, on_late: Callable[[MessageKey], object]) -> None:
        """
        Args:
            tolerances: whose `on_last` this is, and which are told what is late.
            on_late: called then with a message, where it has not come.
        """
        self._tolerances = tolerances
        self._on_late = on_late
        self._waits: OrderedDict[MessageKey, asyncio.TimerHandle] = OrderedDict()
        tolerances.on_last = self.wait

    def __len__(self) -> int:
        return len(self._waits)

    def wait(self, key: MessageKey, seconds: float) -> None:
        """All others of its round are here: it is late after so long. What was to be waited for it before is not."""
        if (before := self._waits.pop(key, None)) is not None:
            before.cancel()
        self._waits[key] = asyncio.get_running_loop().call_later(seconds, self._over, key)
        while len(self._waits) > MOST_TOLERANCES:
            _, oldest = self._waits.popitem(last=False)
            oldest.cancel()

    def _over(self, key: MessageKey) -> None:
        del self._waits[key]
        if self._tolerances.note_late(key):
            self._on_late(key)
