"""How far messages lie in their slots while they come, for whoever can use them before they are whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedrdma_fate.engine.events import PayloadLanded
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.frames import MessageKey


class Listener(Protocol):
    """Whoever can."""

    def landed(self, told: PayloadLanded) -> None:
        """So much lies there."""
        ...

    def withdrawn(self, told: PayloadLanded) -> None:
        """What was told last of this slot does not count any more."""
        ...


class ComingUpdates:
    """Those of all peers. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        # by where their slots start: there are no more than were granted
        self._told: dict[int, PayloadLanded] = {}
        self._listeners: dict[MessageKey, Listener] = {}

    def listen(self, listener: Listener, keys: Iterable[MessageKey]) -> None:
        """Tell of these messages, and of what has come of them already; of each there is one who listens."""
        for key in keys:
            if self._listeners.setdefault(key, listener) is not listener:
                continue
            for told in [told for told in self._told.values() if told.offer.key == key]:
                listener.landed(told)

    def leave(self, listener: Listener) -> None:
        """Tell this one nothing more."""
        for key in [key for key, each in self._listeners.items() if each is listener]:
            del self._listeners[key]

    def landed(self, told: PayloadLanded) -> None:
        """What a link tells."""
        if not told.end:
            self.gone(told.slot)
            return
        self._told[told.slot.offset] = told
        if (listener := self._listeners.get(told.offer.key)) is not None:
            listener.landed(told)

    def came(self, slot: Slot) -> None:
        """What comes into a slot is whole: the message is to be had."""
        self._told.pop(slot.offset, None)

    def gone(self, slot: Slot) -> None:
        """What comes into a slot does not come to its end there, or not as it was told."""
        told = self._told.pop(slot.offset, None)
        if told is not None and (listener := self._listeners.get(told.offer.key)) is not None:
            listener.withdrawn(told)
