"""Sums that this site adds to one of its own: it asks those below it for theirs, and takes each as it comes.

What was asked of them stands until the sum that they are in is over: it is who asked for that one who says that their
parties' messages are in. Where one does not come, its order is withdrawn, and its parties go alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection

import msgspec

from fedrdma_fate.core.sum_tree import LEAST_PARTS, Asked
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.adding import CannotAddError, read_site_sum
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party, SumOrder
from fedrdma_fate.wire.site_sum import SiteSum, key_of_order

logger = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class _Child:
    """One order.

    Attributes:
        site: whose.
        number: of the order.
        key: in which message its sum comes.
        sources: whose updates may be in it.
        levels: of sites that it passes; 0: it is not waited for any more.
        take: waits for it; None: it is here, or does not come.
    """

    site: str
    number: int
    key: MessageKey
    sources: frozenset[Party]
    levels: int
    take: asyncio.Task[Message] | None


class ChildSums:
    """Those of one sum. Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, changed: Callable[[], object]) -> None:
        """
        Args:
            context: the gateway's.
            changed: called when one is here, or does not come.
        """
        self._context = context
        self._changed = changed
        self._children: dict[MessageKey, _Child] = {}
        self._here: list[Message] = []

    def ask(self, order: SumOrder, asked: Collection[Asked[Party]]) -> None:
        """Ask for these, as parts of what is ordered."""
        orders, mailbox = self._context.sum_orders, self._context.mailbox
        for each in asked:
            below = msgspec.structs.replace(order, number=0, sources=each.sources)
            key = key_of_order(below)
            if not each.is_sum or key is None or mailbox.is_awaited(key):
                continue
            # before it is told: what comes of it is kept for who waits alone
            take = asyncio.create_task(mailbox.take(key, None, lambda _message: None))
            number = orders.place(each.site, below)
            if number is None:
                take.cancel()
                continue
            self._children[key] = _Child(each.site, number, key, frozenset(each.sources), each.levels, take)
            take.add_done_callback(functools.partial(self._came, self._children[key]))

    def _came(self, child: _Child, take: asyncio.Task[Message]) -> None:
        key = child.key
        if take.cancelled():
            # it may have come just then, and been put back
            self._context.mailbox.discard(key)
            return
        error, is_late, child.take = take.exception(), child.take is None, None
        if is_late:
            if error is None:
                take.result().discard()
            return
        if error is None:
            self._here.append(take.result())
        else:
            reason = error.message if isinstance(error, FedRDMAError) else str(error)
            logger.info("the sum of a site, %s, is added to none here: %s", key, reason)
            # whatever it keeps back for it goes alone: nobody else would say so before all is over
            self._context.sum_orders.withdraw(child.number)
        self._changed()

    @property
    def count(self) -> int:
        """How many were asked for; any thread may ask."""
        return len(self._children)

    @property
    def levels(self) -> int:
        """Of sites below: each waits for those below it. Who is not waited for any more does not count."""
        return max((child.levels for child in tuple(self._children.values())), default=0)

    @property
    def sites(self) -> tuple[str, ...]:
        """Whose sums may still come."""
        children = tuple(self._children.values())
        return tuple(child.site for child in children if child.take is not None)

    @property
    def is_one_here(self) -> bool:
        """Whether one has come."""
        return bool(self._here)

    def pop(self) -> Message:
        """The first one that is here; it belongs to the caller now."""
        return self._here.pop(0)

    def read(self, message: Message, descriptor: int, offset: int, parties: int) -> tuple[SiteSum, int]:
        """What its footer says, and where in the payload the first plane begins.

        Raises:
            CannotAddError: it is not what was asked for.
        """
        child = self._children[message.key]
        site_sum, first = read_site_sum(message, descriptor, offset)
        if site_sum.parties != parties:
            raise CannotAddError(f"it is for a sum of {site_sum.parties} parties, this one has {parties}")
        if message.origin != child.site:
            raise CannotAddError(f"it is of {message.origin or 'this site'}, not of {child.site}")
        if strangers := {part.party for part in site_sum.parts} - child.sources:
            raise CannotAddError(f"it names {min(map(str, strangers))}, which was not asked for")
        return site_sum, first

    def refuse(self, key: MessageKey) -> None:
        """It cannot be added: its parties go alone."""
        self._context.sum_orders.withdraw(self._children[key].number)

    def narrow(self, sources: Collection[Party]) -> bool:
        """Only these are still waited for: where less than a sum is left of one, it is not; whether there was any."""
        with self._context.sum_orders.together():
            waited = [child for child in self._children.values() if child.take is not None]
            gone = [child for child in waited if len(child.sources.intersection(sources)) < LEAST_PARTS]
            for child in waited:
                if child in gone:
                    self._withdraw(child)
                else:
                    self._context.sum_orders.narrow(child.number, child.sources.difference(sources))
        return bool(gone)

    def lost(self, site: str) -> bool:
        """A site is not connected any more: what has not come of it does not; whether there was anything."""
        gone = [child for child in self._children.values() if child.site == site and child.take is not None]
        for child in gone:
            self._withdraw(child)
        return bool(gone)

    def close_to_late(self) -> None:
        """Wait for nothing more: who is late goes alone. May be repeated."""
        for child in self._children.values():
            if child.take is not None:
                self._withdraw(child)

    def _withdraw(self, child: _Child) -> None:
        take, child.take = child.take, None
        child.levels = 0
        if take is not None:
            take.cancel()
        # what is on its way is dropped when it comes, for nobody waits for it
        self._context.sum_orders.withdraw(child.number)

    def end(self) -> None:
        """The sum that they are in is over, or will not be. May be repeated."""
        self.close_to_late()
        for child in self._children.values():
            self._context.sum_orders.withdraw(child.number)
        while self._here:
            self.pop().discard()
