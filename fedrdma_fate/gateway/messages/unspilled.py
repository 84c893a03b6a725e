"""Small messages for which there is neither receive memory nor room on disk: they stay in the heap, and are counted."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.frames import MessageKey

MOST_BYTES = 16 * 1024 * 1024
"""Beyond, small messages that nobody waits for are refused: as much as may be on its way to a disk that is slow."""

RECOUNT_SECONDS = 0.05
"""Between two looks at which are still wanted, where another would be refused: a flood is not to cause one for each."""

_OVERHEAD_BYTES = 1024
"""What a message takes in the heap besides its payload, so that empty ones have a bound as well."""


class Unspilled:
    """Belongs to the event loop's thread.

    Attributes:
        total_bytes: in the heap.
    """

    def __init__(self) -> None:
        self._messages: dict[MessageKey, tuple[Message, str]] = {}
        self.total_bytes = 0
        self._recounted_at = -math.inf

    @property
    def is_full(self) -> bool:
        """Whether no more of them are to stay."""
        return self.total_bytes > MOST_BYTES

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: Message, owner: str) -> None:
        """One stays here, to be leased memory under the name of `owner` when there is some; may be repeated."""
        if message.key not in self._messages:
            self.total_bytes += _heap_bytes(message)
        self._messages[message.key] = message, owner

    def recount(self, wanted: Callable[[Message], bool], now: float) -> None:
        """Count those no more that are no longer wanted, unless that was done just now."""
        if now - self._recounted_at >= RECOUNT_SECONDS:
            self._recounted_at = now
            self.total_bytes = sum(_heap_bytes(message) for message, _ in self._messages.values() if wanted(message))

    def keep_those(self, wanted: Callable[[Message], bool]) -> list[tuple[Message, str]]:
        """Those that are still wanted, the longest here first, with their owners; the others are forgotten."""
        self._messages = {key: kept for key, kept in self._messages.items() if wanted(kept[0])}
        self.total_bytes = sum(_heap_bytes(message) for message, _ in self._messages.values())
        return list(self._messages.values())


def _heap_bytes(message: Message) -> int:
    return message.total_bytes + _OVERHEAD_BYTES
