"""The addition by which a sum is whole: it is made while its update comes, and nothing is left after the last byte.

Only in order `exact`, and when all others are in. What the sum is with the update is written to another slot, the
total, finished, block by block, as bytes of the update are told to lie in their slot (`engine/landing.py`). The sum
itself does not change. So whatever happens to the update before it is whole and delivered, or to the worker, or to the
gateway, nothing has to be taken out again: the total is dropped, and the update is added as any other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Sequence

from fedrdma_fate import memory_files
from fedrdma_fate.aggregate.jobs import Done, Unfit
from fedrdma_fate.core.fold import Fold, Order
from fedrdma_fate.core.last_update import LastUpdate, Piece
from fedrdma_fate.engine.events import PayloadLanded
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.adding import CannotAddError, site_sum_at, summand_at
from fedrdma_fate.gateway.tasks.ordered_sums import OrderedSums
from fedrdma_fate.gateway.tasks.sum_slot import SumSlot
from fedrdma_fate.memory.region import region_unusable
from fedrdma_fate.wire.frames import MessageKey, Party
from fedrdma_fate.wire.site_sum import SiteSum
from fedrdma_fate.wire.summand import Summand, planes_bytes

logger = logging.getLogger(__name__)

MOST_PARTIES_MOVED = 256
"""Of the sum of a site that is added so. That each of its messages was pulled is written down together with `SumMoved`,
all or none: of so many with the longest names that is one record (a test counts), of more it might not be."""

_Source = tuple[int, int, int]
"""Where an update comes: start of the slot, transfer, grant."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Coming:
    """An update that is being added while it comes.

    Attributes:
        told: by which that was begun.
        says: its footer.
        first: where in the payload its planes begin.
        parties: of the sum of a site, how many; else 0.
    """

    told: PayloadLanded
    says: Summand | SiteSum
    first: int
    parties: int


class LastAddition:
    """That of one sum. Belongs to the event loop's thread."""

    def __init__(
        self, context: GatewayContext, keys: Sequence[MessageKey], fold: Fold, slot: SumSlot, ordered: OrderedSums
    ) -> None:
        """
        Args:
            context: the gateway's.
            keys: messages of the sum, in the order of their ranks.
            fold: who is in it.
            slot: where it is added up.
            ordered: which sums of sites may come.
        """
        self._context = context
        self._keys = keys
        self._fold = fold
        self._slot = slot
        self._ordered = ordered
        self._update = LastUpdate()
        self._coming: _Coming | None = None
        self._given_up = False
        self._adding: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Somebody is in, or is not: where nobody but the last is awaited, and it comes, begin."""
        fold = self._fold
        left = len(self._keys) - len(fold.parties_in)
        if fold.order is not Order.EXACT or not fold.additions or fold.reason or left != len(fold.awaited):
            return
        keys = [self._keys[fold.awaited[0]]] if left == 1 else []
        if left:
            self._context.coming_updates.listen(self, (*keys, *self._ordered.awaited))

    def landed(self, told: PayloadLanded) -> None:
        """See `Listener`."""
        if self._given_up or told.end != told.offer.total_bytes:
            # from the start to the end: what shapes it has says its footer, which comes last
            return
        try:
            if self._coming is None or _source(self._coming.told) != _source(told):
                self._begin(told)
        except CannotAddError as error:
            self._give_up(told.offer.key, str(error))
            return
        self._update.told(_source(told), told.start, told.offer.total_bytes)
        if self._adding is None:
            self._adding = asyncio.create_task(self._add_what_comes())

    def withdrawn(self, told: PayloadLanded) -> None:
        """See `Listener`."""
        self._update.withdrawn(_source(told))

    async def complete(self, message: Message, descriptor: int, offset: int, says: Summand | SiteSum) -> Done | None:
        """An update is whole, and it is its turn: add what is not in the total, where some is, and have the sum there.

        Where it is done, `SumSlot.moved` is to be written down next. Nobody else adds to the sum meanwhile.

        Args:
            message: it.
            descriptor: of the file it lies in.
            offset: where in that its planes begin.
            says: its footer.

        Returns:
            None: it is to be added as any other, and there is no total.

        Raises:
            GatewayError: SUM_LOST.
        """
        self._context.coming_updates.leave(self)
        coming = self._coming
        if coming is None:
            # it is not the last, or nothing was told of it
            return None
        await self._until_idle()
        source = self._update.source
        if self._given_up or source is None or not _is_where_it_came(message, coming, says):
            await self.drop()
            return None
        self._update.told(source, 0, message.total_bytes)
        piece = self._update.begin()
        if piece is None and not self._update.whole:
            # nobody knows how much of a piece is in that was begun and never ended
            await self.drop()
            return None
        span = range(0) if piece is None else self._span(coming, piece)
        try:
            answer = await self._slot.add_last(
                offset, span, descriptor, keep_mapped=True, parties=coming.parties, is_end=True
            )
        except CannotAddError as error:
            logger.info("%s is not added while it comes: %s", message.key, error)
            answer = Unfit(str(error))
        self._update.added()
        if isinstance(answer, Done):
            self._slot.move()
            return answer
        # what is unfit is found to be so again
        await self.drop()
        return None

    @property
    def progress(self) -> tuple[Party, int, int] | None:
        """Whose update is being added while it comes, of the sum of a site the first one's, how many of its bytes are
        in, and how many it has; any thread may ask."""
        coming, (done, total) = self._coming, self._update.done_bytes
        return None if coming is None or self._given_up or not total else (coming.told.offer.key.source, done, total)

    async def drop(self) -> None:
        """There is no total: what comes is added when it is whole. May be repeated."""
        self._context.coming_updates.leave(self)
        self._given_up = True
        await self._until_idle()
        await self._slot.drop_total()

    async def _until_idle(self) -> None:
        if self._adding is not None:
            await asyncio.wait((self._adding,))

    def _begin(self, told: PayloadLanded) -> None:
        """It comes, or comes anew.

        Raises:
            CannotAddError: it is not added while it comes, and why.
        """
        if self._slot.is_half_in(self._fold.additions + 1):
            raise CannotAddError("some of it is in, and goes on there")
        offer, at = told.offer, told.slot.offset + told.payload_at
        try:
            descriptor = memory_files.open_for_reading(told.slot.region.fileno)
        except OSError as error:
            raise CannotAddError(str(region_unusable("the receive region", error))) from error
        try:
            says: Summand | SiteSum
            if offer.key in self._ordered.awaited:
                says, first = site_sum_at(descriptor, at, offer.total_bytes)
                parties = self._ordered.parties_named(says)
            else:
                says, first = summand_at(descriptor, at, offer.total_bytes, offer.kind)
                parties = ()
        finally:
            os.close(descriptor)
        if parties and set(parties) != set(self._fold.awaited):
            raise CannotAddError("it is not the last one")
        if len(parties) > MOST_PARTIES_MOVED:
            raise CannotAddError(f"it is of {len(parties)} parties, {MOST_PARTIES_MOVED} is the limit")
        if says.shapes != self._slot.shapes:
            raise CannotAddError("its arrays have other shapes than those that are in the sum")
        self._slot.make_total()
        self._coming = _Coming(told, says, first, len(parties))

    async def _add_what_comes(self) -> None:
        try:
            while not self._given_up and self._coming is not None and (piece := self._update.begin()) is not None:
                coming = self._coming
                slot, at = coming.told.slot, coming.told.payload_at
                descriptor = memory_files.open_for_reading(slot.region.fileno)
                try:
                    answer = await self._slot.add_last(
                        slot.offset + at + coming.first,
                        self._span(coming, piece),
                        descriptor,
                        keep_mapped=True,
                        parties=coming.parties,
                    )
                finally:
                    os.close(descriptor)
                if isinstance(answer, Unfit):
                    raise CannotAddError(answer.reason)
                self._update.added()
        except Exception as error:
            assert self._coming is not None
            self._give_up(self._coming.told.offer.key, str(error))
        finally:
            self._adding = None

    def _span(self, coming: _Coming, piece: Piece) -> range:
        """Of the planes; behind them lies the footer, before them what a task unpickles."""
        most = planes_bytes(self._slot.shapes)
        return range(min(most, max(0, piece.start - coming.first)), min(most, max(0, piece.end - coming.first)))

    def _give_up(self, key: MessageKey, reason: str) -> None:
        self._given_up = True
        logger.info("%s is not added while it comes: %s", key, reason)


def _source(told: PayloadLanded) -> _Source:
    return told.slot.offset, told.offer.transfer, told.offer.grant


def _is_where_it_came(message: Message, coming: _Coming, says: Summand | SiteSum) -> bool:
    """Whether a message lies in the slot that it came into, and has the footer that it had there."""
    told = coming.told
    if message.lease is None or message.spilled is not None or message.missing:
        return False
    place = message.lease.slot.offset, message.payload_at, message.transfer, message.total_bytes
    return says == coming.says and place == (
        told.slot.offset,
        told.payload_at,
        told.offer.transfer,
        told.offer.total_bytes,
    )
