"""Sums of sites that one sum has asked for: of which parties, and under which key each comes."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

from fedrdma_fate.core.fold import Order
from fedrdma_fate.core.sum_tree import LEAST_PARTS, SumPlace, is_below, plan
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.journal_records import Pulled
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.adding import CannotAddError, locate, read_site_sum
from fedrdma_fate.wire.frames import MessageKey, Party, SumOrder
from fedrdma_fate.wire.site_sum import NEXT_TAG, SiteSum, site_sum_key

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Ordered:
    """One order.

    Attributes:
        site: which.
        number: of the order; None: an earlier run has asked for it, and it is here.
        sites: whose parties may be in it; None: an earlier run has seen to that.
        below: of each site below that one, whose updates are to be in it, while they are waited for.
    """

    site: str
    number: int | None
    sites: frozenset[str] | None
    below: dict[str, tuple[Party, ...]] = dataclasses.field(default_factory=dict)


def order_ahead(context: GatewayContext, keys: Sequence[MessageKey], owner: str) -> None:
    """Tell each site with two or more of these parties that the sum of theirs will be asked for.

    Args:
        context: the gateway's.
        keys: messages of the sum, in the order of their ranks; their tag does not count.
        owner: client id of the task that will ask.
    """
    aggregate = context.config.aggregate
    if not (aggregate.sums and aggregate.site_sums) or Order(aggregate.order) is not Order.EXACT:
        return
    of_site: defaultdict[str, list[Party]] = defaultdict(list)
    for key in keys:
        of_site[context.routes.find(key.source) or ""].append(key.source)
    first = keys[0]
    places = context.sum_orders.places_of(of_site)
    for asked in plan(context.config.site, of_site, places, is_root=True):
        if asked.is_sum:
            order = SumOrder(0, first.session, first.name, NEXT_TAG, first.destination, asked.sources, len(keys))
            context.sum_orders.place_ahead(asked.site, order, owner)


class OrderedSums:
    """Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, keys: Sequence[MessageKey]) -> None:
        """
        Args:
            context: the gateway's.
            keys: messages of the sum, in the order of their ranks.
        """
        self._context = context
        self._keys = keys
        self._number_of: dict[Party, int] = {key.source: number for number, key in enumerate(keys)}
        self._orders: dict[MessageKey, _Ordered] = {}
        # replaced as a whole: threads ask
        self._asked: tuple[tuple[str, int, int], ...] = ()

    @property
    def asked(self) -> tuple[tuple[str, int, int], ...]:
        """Each sum that was asked for: of which site, of how many sites, of how many parties; any thread may ask."""
        return self._asked

    @property
    def awaited(self) -> tuple[MessageKey, ...]:
        """Sums that may still come."""
        return tuple(self._orders)

    @property
    def count(self) -> int:
        """How many may still come; any thread may ask."""
        return len(self._orders)

    def place(self, awaited: Sequence[int], here: MessageKey | None) -> None:
        """Ask each site that can for the sum of what is awaited of it, and is not here.

        Args:
            awaited: parties, by their numbers.
            here: the sum that an earlier run was just adding.
        """
        if here is not None:
            message = self._context.mailbox.find(here)
            self._orders[here] = _Ordered(self.site_of(here.source) if message is None else message.origin, None, None)
        if not self._context.config.aggregate.site_sums:
            return
        first = self._keys[0]
        self._context.sum_orders.asked(first.session, first.name, first.destination)
        orders, mailbox = self._context.sum_orders, self._context.mailbox
        of_site: defaultdict[str, list[Party]] = defaultdict(list)
        places = orders.places
        for party in awaited:
            key = self._keys[party]
            # an order that stood in an earlier run was of all that were awaited then, so it had another first one
            known = self._sum_key(key.source)
            if known is not None and known not in self._orders and (message := mailbox.find(known)) is not None:
                self._orders[known] = _Ordered(message.origin, None, self._sites_below(message.origin, places))
            if not mailbox.has(key):
                of_site[self.site_of(key.source)].append(key.source)
        for site, sources in of_site.items():
            if len(sources) >= LEAST_PARTS and (why := orders.why_none_of(site)):
                told = "the updates of %s of %s's parties come one by one, without a sum of that site: %s"
                self._context.complaints.add(
                    logger, "site without sums", site, told, len(sources), site, why, level=logging.INFO
                )
        for asked in plan(self._context.config.site, of_site, places, is_root=True):
            if not asked.is_sum:
                continue
            sum_key = self._sum_key(asked.sources[0])
            if sum_key is None or sum_key in self._orders or mailbox.sessions.was_pulled(sum_key):
                continue
            order = SumOrder(0, first.session, first.name, first.tag, first.destination, asked.sources, len(self._keys))
            if (number := orders.place(asked.site, order)) is not None:
                below: defaultdict[str, list[Party]] = defaultdict(list)
                for source in asked.sources:
                    below[self.site_of(source)].append(source)
                below.pop(asked.site, None)
                its = {site: tuple(sources) for site, sources in below.items()}
                self._orders[sum_key] = _Ordered(asked.site, number, frozenset(asked.sites), its)
                self._asked += ((asked.site, len(asked.sites), len(asked.sources)),)

    def look(self, awaited: Sequence[int]) -> None:
        """Where all of a site have come alone, whoever was to add their sum waits for it no longer.

        A site may have itself waited for, by a parent that it only says it has; with this it cannot hold up others
        while its own updates are here.

        Args:
            awaited: parties that are not in, and not here, by their numbers.
        """
        orders = [order for order in self._orders.values() if order.number is not None and order.below]
        if not orders:
            return
        mailbox = self._context.mailbox
        missing = {key.source for key in map(self._keys.__getitem__, awaited) if not mailbox.has(key)}
        for order in orders:
            for site, sources in tuple(order.below.items()):
                if missing.isdisjoint(sources):
                    del order.below[site]
                    assert order.number is not None
                    self._context.sum_orders.narrow(order.number, sources)

    def check(self, key: MessageKey, message: Message) -> SiteSum:
        """What a sum says that came.

        Raises:
            CannotAddError: it is none, or not of parties of this site that belong to the sum.
        """
        if message.small_body() is not None:
            raise CannotAddError("it is no sum of a site: it is small")
        _, descriptor, offset = locate(message)
        try:
            site_sum, _ = read_site_sum(message, descriptor, offset)
        finally:
            os.close(descriptor)
        site, sites = self._orders[key].site, self._orders[key].sites
        if site_sum.parties != len(self._keys):
            raise CannotAddError(f"it is for a sum of {site_sum.parties} parties, this one has {len(self._keys)}")
        for part in site_sum.parts:
            is_of_it = sites is None or self.site_of(part.party) in sites
            if part.party not in self._number_of or not is_of_it:
                raise CannotAddError(f"it names {part.party}, which is no party of {site}'s in this sum")
        if message.origin != site:
            raise CannotAddError(f"it is of {message.origin or 'this site'}, not of {site}")
        return site_sum

    def parties_of(self, site_sum: SiteSum) -> tuple[int, ...]:
        """Whose updates are in it, by their numbers."""
        return tuple(self._number_of[part.party] for part in site_sum.parts)

    def parties_named(self, site_sum: SiteSum) -> tuple[int, ...]:
        """The same of one that was not checked.

        Raises:
            CannotAddError: it names others.
        """
        numbers = tuple(self._number_of.get(part.party, -1) for part in site_sum.parts)
        if -1 in numbers:
            raise CannotAddError("it names a party that is not in this sum")
        return numbers

    def merged(self, key: MessageKey, transfers: Mapping[str, Sequence[int]]) -> None:
        """A sum is in, and by it these messages, by their sites."""
        self._context.sum_orders.merged(self._orders.pop(key).number, transfers)

    def withdraw(self, key: MessageKey) -> None:
        """It is not asked for any more."""
        if (order := self._orders.pop(key, None)) is not None and order.number is not None:
            self._context.sum_orders.withdraw(order.number)

    def close(self) -> None:
        """None is. May be repeated."""
        for key in list(self._orders):
            self.withdraw(key)
            if not self._context.leaves_to_next:
                # one that comes all the same is dropped
                self._context.journal.write(Pulled(key))
                self._context.mailbox.sessions.note_pull(key, is_recorded=False)
                self._context.mailbox.discard(key)

    def _sum_key(self, source: Party) -> MessageKey | None:
        first = self._keys[0]
        return site_sum_key(first.session, first.name, first.tag, source, first.destination)

    def _sites_below(self, site: str, places: Mapping[str, SumPlace]) -> frozenset[str]:
        """It and those whose sums it may have added, as far as they are connected."""
        return frozenset((site, *(each for each in places if is_below(site, each, places))))

    def site_of(self, party: Party) -> str:
        """By which a party is served; empty: by none."""
        return self._context.routes.find(party) or ""
