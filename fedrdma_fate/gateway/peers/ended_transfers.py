"""Transfers of a peer that have ended here: one that is told of again is answered as before, and not taken twice."""

from __future__ import annotations

from collections import OrderedDict

from fedrdma_fate.core.recent_numbers import RecentNumbers
from fedrdma_fate.gateway.journal.state import REMEMBERED_TRANSFERS
from fedrdma_fate.wire.frames import Delivered, Refused


class EndedTransfers:
    """The last `REMEMBERED_TRANSFERS` that were delivered, and as many that were refused."""

    def __init__(self) -> None:
        self._delivered = RecentNumbers(REMEMBERED_TRANSFERS)
        self._refused: OrderedDict[int, Refused] = OrderedDict()

    def __len__(self) -> int:
        return len(self._delivered) + len(self._refused)

    def __contains__(self, transfer: int) -> bool:
        return transfer in self._refused or transfer in self._delivered

    def add(self, end: Delivered | Refused) -> None:
        """How one has ended; it takes the place of what was said of it before."""
        if isinstance(end, Delivered):
            self._refused.pop(end.transfer, None)
            self._delivered.add(end.transfer)
            return
        self._delivered.discard(end.transfer)
        self._refused[end.transfer] = end
        while len(self._refused) > REMEMBERED_TRANSFERS:
            self._refused.popitem(last=False)

    def answer(self, transfer: int) -> Delivered | Refused:
        """What its sender is told again, where it is `in` these."""
        return self._refused.get(transfer) or Delivered(transfer)
