"""What a peer's orders for sums lead to, and what is kept back for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.wire.frames import SumOrder


class SiteSumTalk(Protocol):
    """Belongs to the event loop's thread."""

    def on_orders(self, site: str, orders: Sequence[SumOrder]) -> int:
        """All orders of this site that stand; how many of them are new, or over."""
        ...

    def keeps_back(self, site: str, outgoing: Outgoing) -> bool:
        """Whether a message to this site is to go in a sum: then it is kept back."""
        ...

    def on_whole(self, site: str, outgoing: Outgoing) -> None:
        """A message that is kept back lies whole in its slot now."""
        ...

    def lost(self, site: str) -> None:
        """It is not connected any more: what goes by it to others goes to these itself."""
        ...

    def standing(self, site: str) -> int:
        """How many orders of this site stand."""
        ...

    def on_sum_failed(self, site: str, transfer: int) -> None:
        """A sum did not get to the site."""
        ...
