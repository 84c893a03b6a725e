"""How far a payload lies in its slot, told while it comes: it can be copied, or added, before all of it is there."""

from __future__ import annotations

from fedrdma_fate.core.actions import Action, SendFrame, WipeChunk
from fedrdma_fate.core.state_machines import ReceivingMachine
from fedrdma_fate.engine.events import PayloadLanded
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.frames import Offer, ResendChunks

LEAST_BYTES = 16 * 1024 * 1024
"""Of a payload of which it is told: a shorter one is added in some 3 ms when all of it has come."""

STEP_BYTES = 8 * 1024 * 1024
"""From one time to the next: what is left to be added when the last byte has come is no more than that, 1 to 2 ms. To
tell of it takes a tenth of that."""


class Landing:
    """Of one transfer on one data path. What is told holds, unless `withdraw` says that it does no more."""

    def __init__(self, offer: Offer, slot: Slot, receiver: ReceivingMachine) -> None:
        """
        Args:
            offer: what announced it.
            slot: where it comes.
            receiver: its state machine.
        """
        self._offer = offer
        self._slot = slot
        self._receiver = receiver
        self._told_bytes = 0
        self._is_over = False

    def look(self) -> PayloadLanded | None:
        """Withdraw what was told, if any of it was written over: by the same bytes, unless somebody lies."""
        return self.withdraw() if self._receiver.landed_again else None

    def advance(self) -> PayloadLanded | None:
        """What there is to tell, when enough has come."""
        if self._is_over:
            return None
        start, end = self._receiver.landed
        if end - start < self._told_bytes + STEP_BYTES:
            return None
        self._told_bytes = end - start
        return self._event(start, end)

    def withdraw(self) -> PayloadLanded | None:
        """Bytes that were told to lie there may change: nothing more is told, and none of them are counted on."""
        told, self._told_bytes, self._is_over = self._told_bytes, 0, True
        return self._event(0, 0) if told else None

    def _event(self, start: int, end: int) -> PayloadLanded:
        return PayloadLanded(self._offer, self._slot, self._receiver.layout.payload_at, start, end)


def may_change_payload(action: Action) -> bool:
    """Whether what lies in the slot of a payload may be written over after this."""
    return isinstance(action, WipeChunk) or (isinstance(action, SendFrame) and isinstance(action.frame, ResendChunks))
