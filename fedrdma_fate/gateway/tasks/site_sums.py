"""Sums that other sites have asked for: messages to them are kept back, added, and their sum is sent as one.

Whatever goes wrong, each message that was kept back is still what it was, and goes alone. What is told to be in the sum
at the site that it is for is delivered, which ends it here as if it had gone alone.

Who was asked for a sum once is likely asked for one of the same messages in the next round, under another tag; and who
was told ahead, in the first one. So what comes for it before that is kept back, too, and added; it is sent as a sum
when it was asked for.

Those who may ask are the site that the messages are for and the *parent* of this one, to which the sum goes then. Sums
of sites that name this one as their parent are added to it (`core/sum_tree.py`).
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from fedrdma_fate.aggregate.worker_pool import WorkerPool
from fedrdma_fate.core.sum_tree import Asked, is_below, plan
from fedrdma_fate.engine.payload import Outgoing
from fedrdma_fate.gateway.context import GatewayContext
from fedrdma_fate.gateway.peers.sending import Sending
from fedrdma_fate.gateway.tasks.site_addition import AdditionProgress, Likely, SiteAddition
from fedrdma_fate.wire.frames import MOST_PARTIES, MOST_SUM_ORDERS, MessageKey, Party, SumOrder
from fedrdma_fate.wire.site_sum import NEXT_TAG, key_of_order

logger = logging.getLogger(__name__)

_ID_BITS = 48
"""Of the number of the first sum at a worker, far from those of the gateway's own sums."""

_Round = tuple[str, str, Party]
"""Session, name and destination of messages that are summed round by round."""


class SiteSums:
    """Belongs to the event loop's thread."""

    def __init__(self, context: GatewayContext, workers: WorkerPool, peers: Mapping[str, Sending]) -> None:
        """
        Args:
            context: the gateway's.
            workers: those of its sums.
            peers: what sends to the other sites, by their names.
        """
        self._context = context
        self._workers = workers
        self._peers = peers
        # by who has asked
        self._sums: dict[str, dict[int, SiteAddition]] = {site: {} for site in peers}
        # by whom messages are for: what was asked for last of each, and what is kept back to be asked for, by its tag
        self._asked: dict[str, OrderedDict[_Round, SumOrder]] = {site: OrderedDict() for site in peers}
        self._expected: dict[str, dict[tuple[_Round, str], SiteAddition]] = {site: {} for site in peers}
        # by who has asked: numbers of orders ahead that stand, and are known
        self._ahead: dict[str, set[int]] = {site: set() for site in peers}
        self._ids = itertools.count((1 << _ID_BITS) + secrets.randbits(_ID_BITS))

    def on_orders(self, site: str, orders: Sequence[SumOrder]) -> int:
        """See `SiteSumTalk`."""
        with self._context.sum_orders.together():
            return self._stand(site, orders)

    def _stand(self, site: str, orders: Sequence[SumOrder]) -> int:
        sums = self._sums[site]
        changed = sum(not self._is_known(site, order) for order in orders)
        standing = {order.number: order for order in self._allowed(site, orders)}
        ahead = {number: standing.pop(number) for number, order in [*standing.items()] if order.tag == NEXT_TAG}
        for number, order in ahead.items():
            if number not in self._ahead[site]:
                self._remember(order)
                for asked in self._below(order):
                    # one party alone has no sum
                    if asked.is_sum:
                        below = msgspec.structs.replace(order, number=0, sources=asked.sources)
                        self._context.sum_orders.place_ahead(asked.site, below, _owner(site, number))
        over = self._ahead[site] - set(ahead)
        for number in over:
            self._context.sum_orders.gone(_owner(site, number))
        self._ahead[site] = set(ahead)
        ended = [number for number in sums if number not in standing]
        for number in ended:
            sums.pop(number).end()
        for number, order in standing.items():
            if number in sums:
                changed += sums[number].narrow(order.sources)
                continue
            key = key_of_order(order)
            if key is None:
                continue
            self._remember(order)
            sums[number] = self._begin(site, order, key)
            sums[number].tell_if_idle()
        return changed + len(over) + len(ended)

    def _is_known(self, site: str, order: SumOrder) -> bool:
        """Whether it stands already: of what else it says now only counts whose updates are waited for no more."""
        return order.number in (self._ahead[site] if order.tag == NEXT_TAG else self._sums[site])

    def _begin(self, site: str, order: SumOrder, key: MessageKey) -> SiteAddition:
        below = self._below(order)
        if below:
            self._context.sum_orders.asked(order.session, order.name, order.destination)
        known = self._expected[self._site_of(order)].pop((_round_of(order), order.tag), None)
        if known is not None and known.confirm(order, key, self._peers[site], below):
            return known
        return self._new(site, order, key, below)

    def _new(
        self, site: str, order: SumOrder, key: MessageKey, below: Sequence[Asked[Party]], likely: Likely | None = None
    ) -> SiteAddition:
        keeps, sends, number = self._peers[self._site_of(order)], self._peers[site], next(self._ids)
        return SiteAddition(self._context, self._workers, keeps, sends, order, key, number, below, likely)

    def _site_of(self, order: SumOrder) -> str:
        """Whom the messages are for."""
        return self._context.routes.find(order.destination) or ""

    def _below(self, order: SumOrder) -> list[Asked[Party]]:
        """What is to be asked for of the sites below this one, so that the sum is of all that is ordered."""
        context = self._context
        of_site: defaultdict[str, list[Party]] = defaultdict(list)
        for source in order.sources:
            if not context.routes.is_local(source):
                of_site[context.routes.find(source) or ""].append(source)
        if not of_site:
            return []
        here, places = context.config.site, context.sum_orders.places
        below = {site: its for site, its in of_site.items() if is_below(here, site, places)}
        return plan(here, below, places, is_root=False)[: context.config.aggregate.fan_in]

    def _remember(self, order: SumOrder) -> None:
        asked = self._asked[self._site_of(order)]
        known = asked.get(_round_of(order))
        if known is not None and known.parties == order.parties:
            # who came too early to be asked for is likely in time for the next one
            sources = dict.fromkeys([*known.sources, *order.sources])
            if len(sources) <= MOST_PARTIES:
                order = msgspec.structs.replace(order, sources=tuple(sources))
        asked[_round_of(order)] = order
        asked.move_to_end(_round_of(order))
        while len(asked) > MOST_SUM_ORDERS:
            asked.popitem(last=False)

    def _expects(self, site: str, outgoing: Outgoing) -> bool:
        """Whether its sum is likely to be asked for: then it is kept back until it is."""
        key, expected = outgoing.key, self._expected[site]
        round_ = key.session, key.name, key.destination
        last = self._asked[site].get(round_)
        if last is None or last.tag == key.tag or (round_, key.tag) in expected or len(expected) >= MOST_SUM_ORDERS:
            return False
        order = msgspec.structs.replace(last, tag=key.tag)
        sum_key = key_of_order(order)
        if sum_key is None:
            return False

        def unasked() -> None:
            # it asks no more, or so late that nobody should wait for it
            expected.pop((round_, key.tag), None)
            self._asked[site].pop(round_, None)

        each = self._new(site, order, sum_key, self._below(order), Likely(key.source, unasked))
        if not each.takes(outgoing):
            return False
        expected[round_, key.tag] = each
        return True

    def _allowed(self, site: str, orders: Sequence[SumOrder]) -> Sequence[SumOrder]:
        """Those of messages from parties of this site, and of those below it, to one of that site, or that a parent
        may ask for; none where they are too many.

        The others are ignored: a task there that asks for what cannot be takes nothing from those beside it.
        """
        if not self._context.config.aggregate.site_sums:
            return ()
        right = [order for order in orders if self._is_known(site, order) or self._can_be(site, order)]
        is_too_much = sum(len(order.sources) for order in orders) > MOST_PARTIES
        if is_too_much or len(right) < len(orders):
            message = "ignored orders of %s for sums: of parties that are not both sites', named twice, or too many"
            self._context.complaints.add(logger, "orders for sums", site, message, site)
        return () if is_too_much else right

    def _can_be(self, site: str, order: SumOrder) -> bool:
        routes, aggregate = self._context.routes, self._context.config.aggregate
        to = self._site_of(order)
        if to not in self._peers or site not in (to, aggregate.parent):
            return False
        if not len(set(order.sources)) == len(order.sources) <= order.parties:
            return False
        own = sum(map(routes.is_local, order.sources))
        # what others are to send to it is asked for of those that say that they are below, if they are here
        others = {routes.find(source) for source in order.sources} - {self._context.config.site}
        if others and not (aggregate.fan_in and others <= set(self._peers) - {to}):
            return False
        return own == len(order.sources) or bool(self._below(order))

    def keeps_back(self, site: str, outgoing: Outgoing) -> bool:
        """See `SiteSumTalk`."""
        return any(each.takes(outgoing) for each in self._all()) or self._expects(site, outgoing)

    def _all(self) -> list[SiteAddition]:
        """All for which something may be kept back."""
        asked = [each for sums in self._sums.values() for each in sums.values()]
        return asked + [each for sums in self._expected.values() for each in sums.values()]

    def on_whole(self, site: str, outgoing: Outgoing) -> None:  # noqa: ARG002
        """See `SiteSumTalk`."""
        for each in self._all():
            each.on_whole(outgoing)

    def lost(self, site: str) -> None:
        """See `SiteSumTalk`."""
        sums = self._sums[site]
        with self._context.sum_orders.together():
            for number in [number for number, each in sums.items() if each.is_passed_on]:
                sums.pop(number).end()
            for each in self._all():
                each.lost(site)

    @property
    def askers(self) -> tuple[str, ...]:
        """Sites that ask for sums, themselves or by a parent; any thread may ask."""
        return tuple(site for site, asked in self._asked.items() if asked)

    def standing(self, site: str) -> int:
        """See `SiteSumTalk`."""
        return len(self._sums[site])

    def progress(self) -> list[AdditionProgress]:
        """How far each has come that was asked for; any thread may ask."""
        return [each.progress(site) for site, sums in self._sums.items() for each in tuple(sums.values())]

    def on_sum_failed(self, site: str, transfer: int) -> None:
        """See `SiteSumTalk`."""
        for each in self._sums[site].values():
            each.on_sum_failed(transfer)


def _owner(site: str, number: int) -> str:
    """In whose name something is ordered ahead of those below: of this order. Tasks have ids without blanks."""
    return f"order {number} of {site}"


def _round_of(order: SumOrder) -> _Round:
    return order.session, order.name, order.destination
