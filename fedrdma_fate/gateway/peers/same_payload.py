"""Messages of a peer that have one payload: one transfer brings it, and all of them are served from its slot."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.frames import MessageKey, SamePayload

_Name = TypeVar("_Name", int, MessageKey)

SAME_PAYLOAD = "same-payload"
"""How a message goes, and comes, whose bytes another one's transfer brings, to the same site."""

MOST_HERE = 256
"""Transfers of a peer whose payload is remembered: what has the same is pushed right behind it."""

MOST_WAITING = 8192
"""Messages of a peer that wait for another's payload, as many as it may have announced."""


class SamePayloads:
    """Those of one peer. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._here: OrderedDict[int, Message] = OrderedDict()
        self._waiting: dict[int, SamePayload] = {}
        self._of: dict[int, dict[int, None]] = {}
        self._of_message: dict[MessageKey, dict[int, None]] = {}

    def __len__(self) -> int:
        """Messages that wait for another's payload."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether another one that waits would be one too many."""
        return len(self._waiting) >= MOST_WAITING

    def came(self, message: Message) -> None:
        """A message is here, or was when an earlier run ended."""
        self._here[message.transfer] = message
        self._here.move_to_end(message.transfer)
        while len(self._here) > MOST_HERE:
            self._here.popitem(last=False)

    def find(self, frame: SamePayload) -> Message | None:
        """The message whose payload it has, where that is still in its slot."""
        message = self._here.get(frame.same_as)
        if message is None or message.lease is None or message.total_bytes != frame.total_bytes:
            return None
        return message

    def wait(self, frame: SamePayload) -> None:
        """It waits for that to come; what was said of it before is over."""
        self.drop(frame.transfer)
        self._waiting[frame.transfer] = frame
        self._of.setdefault(frame.same_as, {})[frame.transfer] = None
        self._of_message.setdefault(frame.key, {})[frame.transfer] = None

    def take(self, transfer: int) -> list[SamePayload]:
        """What waits for this transfer, and waits no more."""
        frames = [self._waiting[each] for each in self._of.get(transfer, ())]
        for frame in frames:
            self.drop(frame.transfer)
        return frames

    def drop(self, transfer: int) -> None:
        """This message waits no more, if it did."""
        if (frame := self._waiting.pop(transfer, None)) is not None:
            _discard(self._of, frame.same_as, transfer)
            _discard(self._of_message, frame.key, transfer)

    def drop_message(self, key: MessageKey) -> None:
        """The same, by its key."""
        for transfer in list(self._of_message.get(key, ())):
            self.drop(transfer)

    def drop_all(self) -> list[SamePayload]:
        """Nothing waits any more; what did."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        self._of.clear()
        self._of_message.clear()
        return waiting


def _discard(of: dict[_Name, dict[int, None]], name: _Name, transfer: int) -> None:
    del of[name][transfer]
    if not of[name]:
        del of[name]
