"""What has come of a transfer, told from time to time, so that it can be written down: another run may go on there.

Told is where the bytes lie and, where nothing else will look at them in the end, what their digest is. So what is told
may be out of date, or wrong: whoever goes on there finds that out, and asks for those bytes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from fedrdma_fate.core.digest import block_digest
from fedrdma_fate.core.held import PIECE_BYTES, Piece, Ranges, merged, without
from fedrdma_fate.core.state_machines import ReceivingMachine
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.frames import Offer

NOTE_SECONDS = 1.0
"""Between two looks: what is sent again after a restart is what came in the last one."""

NOTE_SECONDS_FOR_A_CHUNK = 1e-4
"""So much longer for each chunk of a payload: to find out which have come takes about a microsecond for each, and is to
take no more than one percent of the time."""

DIGEST_SECONDS = 0.005
"""Between two pieces that are digested: one takes some 0.1 ms, so that is two percent of the thread's time at most, and
keeps up with 200 MiB a second. Of what comes sealed and faster, the rest comes again."""

MOST_PIECES = 16384
"""Of one transfer; more are not told, and come again. In pieces of full length they are 16 GiB."""


class ArrivalNotes:
    """Of one transfer, in its slot."""

    def __init__(self, offer: Offer, slot: Slot, receiver: ReceivingMachine, now: float, *, tagged: bool) -> None:
        """
        Args:
            offer: what announced it.
            slot: where it comes.
            receiver: its state machine.
            now: seconds.
            tagged: a tag has vouched for what is told to have come.
        """
        self.offer = offer
        self.slot = slot
        self.tagged = tagged
        # elsewhere one digest speaks for the whole payload, and is looked at when all of it is there
        self.digested = tagged or offer.mode == "fedrdma"
        self._receiver = receiver
        self._every = max(NOTE_SECONDS, NOTE_SECONDS_FOR_A_CHUNK * receiver.plan.count)
        self._due = self._look_at = now + self._every
        self._told: Ranges = ()
        self._pieces = 0
        self._is_first = True
        self._waiting: deque[tuple[int, int]] = deque()
        self._fresh: list[Piece] = []

    @property
    def payload_at(self) -> int:
        """Where in the slot the payload starts."""
        return self._receiver.layout.payload_at

    def timer(self) -> float:
        """When to call `on_timer`."""
        return self._due

    def on_timer(self, now: float) -> tuple[Piece, ...] | None:
        """Pieces that were not told before; None: there is nothing to tell. The first time, none is worth telling."""
        if now < self._due:
            return None
        if not self._waiting and not self._fresh:
            self._look()
        if self._waiting and self.digested:
            start, end = self._waiting.popleft()
            part = self.slot.part(self.payload_at + start, end - start)
            self._fresh.append((start, end, block_digest(part.view)))
            if self._waiting and now < self._look_at + self._every:
                self._due = now + DIGEST_SECONDS
                return None
        self._due = self._look_at = now + self._every
        return self._tell()

    def _look(self) -> None:
        new = without(self._receiver.held.ranges, self._told)
        pieces = ((at, min(at + PIECE_BYTES, end)) for start, end in new for at in range(start, end, PIECE_BYTES))
        room = MOST_PIECES - self._pieces
        if self.digested:
            self._waiting.extend(piece for _, piece in zip(range(room), pieces, strict=False))
        else:
            self._fresh = [(start, end, 0) for start, end in new[: max(0, room)]]

    def _tell(self) -> tuple[Piece, ...] | None:
        # what is not there any more may have been wiped before it was digested
        there = self._receiver.held.ranges if self.digested else ()
        told = tuple(piece for piece in self._fresh if not self.digested or _lies_in(piece, there))
        self._fresh.clear()
        self._waiting.clear()
        is_first, self._is_first = self._is_first, False
        if not told and not is_first:
            return None
        self._pieces += len(told)
        self._told = merged([*self._told, *((start, end) for start, end, _ in told)])
        return told


def _lies_in(piece: Piece, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(start <= piece[0] and piece[1] <= end for start, end in ranges)
