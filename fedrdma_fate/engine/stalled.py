"""Sealed transfers that wait for room in the ring: one after the other, so that a large chunk gets its turn, too."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.actions import (
    Action,
    AddToRepairs,
    ComputeDigest,
    Failed,
    Finished,
    PostChunk,
    WriteChunk,
    WriteHeader,
)
from fedrdma_fate.engine.outgoing_transfer import OutgoingTransfer


class StalledTransfers:
    """What transfers of a link wanted done that needs room, in the order in which they began to wait.

    What needs no room passes by: above all what is sent again, without which no room may become free.
    """

    def __init__(self) -> None:
        self._waiting: deque[OutgoingTransfer] = deque()

    def admit(self, active: OutgoingTransfer, actions: Iterable[Action]) -> deque[Action]:
        """What of these can be done now; the rest waits behind what waits already."""
        if not active.stalled:
            return deque(actions)
        now: deque[Action] = deque()
        for action in actions:
            if isinstance(action, Finished | Failed):
                self.forget(active)
            waits = isinstance(action, WriteHeader) or not _is_sealed(active, action)
            (active.stalled if active.stalled and waits else now).append(action)
        return now

    def may_go(self, active: OutgoingTransfer, action: Action) -> bool:
        """Whether it can be done: what it reads is sealed, perhaps just now."""
        if active.sealed is None or _is_sealed(active, action):
            return True
        assert isinstance(action, WriteChunk | PostChunk | AddToRepairs | ComputeDigest)
        others_first = self._waiting and self._waiting[0] is not active
        return not others_first and active.sealed.seal(action.chunk)

    def add(self, active: OutgoingTransfer, actions: Iterable[Action]) -> None:
        """It waits, where it waited before or behind all others."""
        active.stalled.extend(actions)
        if active not in self._waiting:
            self._waiting.append(active)

    def next(self) -> OutgoingTransfer | None:
        """Whose turn it is, if there is room for what it wants."""
        while self._waiting:
            active = self._waiting[0]
            if not active.stalled:
                self._waiting.popleft()
            elif self.may_go(active, active.stalled[0]):
                return active
            else:
                return None
        return None

    def take(self, active: OutgoingTransfer) -> list[Action]:
        """What it wanted done."""
        actions = list(active.stalled)
        active.stalled.clear()
        return actions

    def forget(self, active: OutgoingTransfer) -> None:
        """It wants nothing any more."""
        active.stalled.clear()
        if active in self._waiting:
            self._waiting.remove(active)

    def clear(self) -> None:
        """Nobody does."""
        self._waiting.clear()


def _is_sealed(active: OutgoingTransfer, action: Action) -> bool:
    """Whether it needs no room: it reads nothing, or what was sealed."""
    match action:
        case WriteChunk(chunk=chunk) | PostChunk(chunk=chunk) | AddToRepairs(chunk=chunk) | ComputeDigest(chunk=chunk):
            return active.sealed is None or active.sealed.was_sealed(chunk)
    return True
