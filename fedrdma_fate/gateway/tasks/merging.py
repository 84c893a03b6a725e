"""Sums of sites, on their way into a sum: each is in it with all of its parties, or its parties come alone."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from fedrdma_fate.aggregate.jobs import Add, JobAnswer, Unfit
from fedrdma_fate.aggregate.worker import WorkerLostError
from fedrdma_fate.core.fold import Fold
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import EndedTogether, Pulled, SumMerged, SumMerging
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.adding import CannotAddError, locate, note_added, read_site_sum
from fedrdma_fate.gateway.tasks.last_addition import LastAddition
from fedrdma_fate.gateway.tasks.ordered_sums import OrderedSums
from fedrdma_fate.gateway.tasks.sum_slot import SumSlot
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import MessageKey
from fedrdma_fate.wire.site_sum import Part, SiteSum

logger = logging.getLogger(__name__)


class Merging:
    """Those of one sum. Belongs to the event loop's thread."""

    def __init__(
        self,
        context: GatewayContext,
        keys: Sequence[MessageKey],
        fold: Fold,
        slot: SumSlot,
        ordered: OrderedSums,
        last: LastAddition,
    ) -> None:
        """
        Args:
            context: the gateway's.
            keys: messages of the sum, in the order of their ranks.
            fold: who is in it.
            slot: where it is added up.
            ordered: what was asked for.
            last: what is added of one while it comes.
        """
        self._context = context
        self._keys = keys
        self._fold = fold
        self._slot = slot
        self._ordered = ordered
        self._last = last
        self._here: dict[int, tuple[Message, SiteSum]] = {}

    async def came(
        self, key: MessageKey, message: Message, take_back: Callable[[Sequence[int]], Awaitable[None]]
    ) -> bool:
        """The sum of a site is here: where each of its parties is still awaited, it is next; else they come alone.

        Args:
            key: of the message that it is.
            message: it.
            take_back: ends that the messages of these parties are waited for: what comes of them stays in the mailbox,
                until this is in or is not.

        Returns:
            Whether it is next.

        Raises:
            GatewayError: SUM_LOST where some of it is in the sum, and it is of no use.
        """
        try:
            site_sum = self._ordered.check(key, message)
            parties = self._ordered.parties_of(site_sum)
            if not set(parties) <= set(self._fold.awaited):
                raise CannotAddError("a party in it is in the sum, or here, already")
        except CannotAddError as error:
            self._refuse(key, message, error)
            return False
        await take_back(parties)
        self._fold.arrived_together(parties)
        self._here[parties[0]] = message, site_sum
        return True

    def take_all(self) -> list[Message]:
        """Those that are here and not in the sum; they belong to the caller now."""
        messages = [message for message, _ in self._here.values()]
        self._here.clear()
        return messages

    async def merge_next(self, first: int) -> Sequence[MessageKey]:
        """Add the sum that is next, by the number of its first party; whose messages are in by that.

        Raises:
            GatewayError: SUM_LOST.
        """
        message, site_sum = self._here.pop(first)
        key, parties, journal = message.key, self._fold.together(first), self._context.journal
        try:
            await self._merge(message, site_sum, len(parties))
        except CannotAddError as error:
            self._fold.refused_together()
            self._refuse(key, message, error)
            return ()
        except BaseException:
            # the next run goes on, or nobody does
            self._context.mailbox.return_(message)
            raise
        parts = list(zip(parties, site_sum.parts, strict=True))
        # those of a site one after the other
        of_site: dict[str, list[tuple[int, Part]]] = {}
        for party, part in parts:
            of_site.setdefault(self._ordered.site_of(part.party), []).append((party, part))
        parts = list(itertools.chain.from_iterable(of_site.values()))
        weights = {party: part.weight for party, part in parts}
        all_transfers = tuple(part.transfer for _, part in parts)
        transfers = {site: tuple(part.transfer for _, part in its) for site, its in of_site.items()}
        sites = () if set(of_site) == {message.origin} else tuple((site, len(its)) for site, its in of_site.items())
        keys = [self._keys[party] for party in parties]
        self._fold.added_together(weights)
        for each in keys:
            self._context.trace.get(each, message.total_bytes)
        with journal.together():
            journal.write(
                *self._slot.moved(),
                *(Pulled(each) for each in (key, *keys)),
                SumMerged(self._slot.number, tuple(weights.items()), message.origin, all_transfers, sites),
                *(EndedTogether(site, its) for site, its in transfers.items()),
            )
            message.note_gone()
        self._slot.leave_former()
        message.discard()
        for each in keys:
            self._context.mailbox.sessions.note_pull(each, is_recorded=False)
            self._context.mailbox.discard(each)
        self._ordered.merged(key, transfers)
        return keys

    async def _merge(self, message: Message, site_sum: SiteSum, parties: int) -> None:
        """Add it.

        Raises:
            CannotAddError: it is not in the sum, which is as before.
        """
        place, descriptor, offset = locate(message)
        try:
            _, first = read_site_sum(message, descriptor, offset)
            if self._fold.additions and site_sum.shapes != self._slot.shapes:
                raise CannotAddError("its arrays have other shapes than those that are in the sum")
            if objection := self._fold.objection(site_sum.parts[0].weight):
                raise CannotAddError(objection)
            slot = await self._slot.make_room(site_sum.shapes)
            started = time.monotonic()
            answer: JobAnswer | None = await self._last.complete(message, descriptor, offset + first, site_sum)
            if answer is None:
                opened = await self._slot.map()
                number = self._fold.additions + 1
                self._context.journal.write(SumMerging(self._slot.number, message.key))
                job = Add(self._slot.number, number, offset + first, place != "spilled", parties)
                try:
                    answer = await self._slot.do(job, opened, descriptor)
                except WorkerLostError as error:
                    self._slot.leave_if_closed()
                    raise CannotAddError(str(error)) from error
        finally:
            os.close(descriptor)
        if isinstance(answer, Unfit):
            raise CannotAddError(answer.reason)
        note_added(self._context, self._slot.order_name, slot.total_bytes, message, answer, started)

    def _refuse(self, key: MessageKey, message: Message, error: CannotAddError) -> None:
        """It is of no use, and its parties come alone.

        Raises:
            GatewayError: SUM_LOST where some of it is in the sum.
        """
        number = self._fold.additions + 1
        if self._slot.is_half_in(number):
            if number > 1:
                self._context.mailbox.return_(message)
                raise self._half_lost(error) from error
            # nothing else is in: whoever comes first begins anew
            self._slot.begin_anew()
        self._context.journal.write(SumMerging(self._slot.number, None))
        logger.warning("the sum of a site, %s, is not used: %s", key, error)
        self._context.journal.write(Pulled(key))
        message.discard()
        self._ordered.withdraw(key)

    def _half_lost(self, error: CannotAddError) -> GatewayError:
        key = self._keys[0]
        return GatewayError(
            ErrorCode.SUM_LOST,
            f"the sum of {key.name}/{key.tag} in {key.session} cannot go on: some of a site's sum is in it, and "
            f"the rest cannot be added: {error}.",
            "See in the log why; run the job again, with aggregate.site_sums: false if need be.",
        )
