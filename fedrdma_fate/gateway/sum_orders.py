"""What other sites were asked to sum: orders that stand, told as a whole whenever one is placed or withdrawn."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from fedrdma_fate.core.sum_tree import LEAST_PARTS, SumPlace
from fedrdma_fate.wire.frames import (
    MOST_PARTIES,
    MOST_SUM_ORDERS,
    MessageKey,
    Party,
    SumOrder,
    SumOrders,
    encode_frame,
)
from fedrdma_fate.wire.site_sum import NEXT_TAG, key_of_order

_NUMBER_BITS = 48
"""Of the number of the first order: those of an earlier run are others."""

MOST_ORDER_BYTES = 512 * 1024
"""Of all that stand with a site, as one frame tells them: names of so many parties as may be, of a hundred bytes each.
They are told each time that one comes or goes, and a frame of more than 4 MiB would end the control channel."""


class _Placed(NamedTuple):
    """An order that stands: with which site, and how long it is in a frame."""

    site: str
    order: SumOrder
    total_bytes: int


class OrderedSite(Protocol):
    """A peer that can be asked for sums."""

    @property
    def takes_sum_orders(self) -> bool:
        """Whether it is connected, knows orders, and sends updates, instead of lending them."""
        ...

    @property
    def why_no_sums(self) -> str:
        """Why it cannot be asked for sums, for people; empty where it can."""
        ...

    @property
    def sum_place(self) -> SumPlace:
        """Where it says that its sums go, and how many of others it adds to one."""
        ...

    def tell_sum_orders(self, orders: SumOrders) -> None:
        """Tell it all that stand."""
        ...

    def note_summed(self, transfers: Sequence[int]) -> None:
        """These messages of it are in a sum: as if they had been delivered."""
        ...


class StandingSumOrders:
    """Those of all sums of a gateway. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._sites: dict[str, OrderedSite] = {}
        self._orders: dict[int, _Placed] = {}
        # orders ahead: whose task has placed each
        self._ahead: dict[int, str] = {}
        # by site, replaced as a whole: threads of links ask
        self._awaited: dict[str, frozenset[MessageKey]] = {}
        # inside of `together`: sites that have something to be told; None: outside
        self._untold: dict[str, None] | None = None
        self._numbers = itertools.count(secrets.randbits(_NUMBER_BITS))

    def register(self, name: str, site: OrderedSite) -> None:
        """There is such a peer."""
        self._sites[name] = site

    @property
    def places(self) -> dict[str, SumPlace]:
        """What those sites say of their place that can be asked for a sum."""
        return {name: site.sum_place for name, site in self._sites.items() if site.takes_sum_orders}

    def places_of(self, names: Iterable[str]) -> dict[str, SumPlace]:
        """The same of these, and where one cannot be asked now, that it has no parent."""
        return {**{name: SumPlace() for name in names if name in self._sites}, **self.places}

    def why_none_of(self, name: str) -> str:
        """Why this site cannot be asked for a sum, for people; empty where it can, or is no peer."""
        site = self._sites.get(name)
        return "" if site is None else site.why_no_sums

    def awaits(self, name: str, key: MessageKey) -> bool:
        """Whether this is the message of a sum that the site was asked for; any thread may ask."""
        return key in self._awaited.get(name, ())

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is placed and withdrawn inside is told at the end, once to each site.

        One frame of a peer may lead to very many orders of ours: told one by one, each time with all others that stand,
        they would hold up the event loop, and be a hundred times as long as that frame.
        """
        if self._untold is not None:
            yield
            return
        untold: dict[str, None] = {}
        self._untold = untold
        try:
            yield
        finally:
            self._untold = None
            for name in untold:
                self._note_awaited(name)
                self.tell(name)

    def place(self, name: str, order: SumOrder) -> int | None:
        """Ask a site for a sum; the number of the order, which is not that of `order`. None where it has too many."""
        if not self._has_room(name, order):
            # those ahead are the ones that one can do without
            for number in [number for number in self._ahead if self._orders[number].site == name]:
                self._drop(number)
            if not self._has_room(name, order):
                return None
        number = self._add(name, order)
        self.tell(name)
        return number

    def _has_room(self, name: str, order: SumOrder) -> bool:
        standing = [each for each in self._orders.values() if each.site == name]
        sources = sum(len(each.order.sources) for each in standing) + len(order.sources)
        total_bytes = sum(each.total_bytes for each in standing) + _bytes_of(order)
        return len(standing) < MOST_SUM_ORDERS and sources <= MOST_PARTIES and total_bytes <= MOST_ORDER_BYTES

    def _add(self, name: str, order: SumOrder) -> int:
        number = next(self._numbers)
        placed = SumOrder(number, order.session, order.name, order.tag, order.destination, order.sources, order.parties)
        self._orders[number] = _Placed(name, placed, _bytes_of(order))
        self._note_awaited(name)
        return number

    def _note_awaited(self, name: str) -> None:
        if self._untold is not None:
            return
        keys = (key_of_order(order) for order in self._of(name) if order.tag != NEXT_TAG)
        self._awaited[name] = frozenset(key for key in keys if key is not None)

    def _drop(self, number: int) -> str:
        self._ahead.pop(number, None)
        name = self._orders.pop(number).site
        self._note_awaited(name)
        return name

    def place_ahead(self, name: str, order: SumOrder, owner: str) -> None:
        """Tell a site what it will be asked for, be it connected now or later, until that is asked for.

        Args:
            name: of the site.
            order: with NEXT_TAG; its number does not count.
            owner: client id of the task that will ask.
        """
        if name not in self._sites or not self._has_room(name, order):
            return
        self._ahead[self._add(name, order)] = owner
        self.tell(name)

    def asked(self, session: str, name: str, destination: Party) -> None:
        """Such sums are asked for now: of them nothing stands ahead any more."""
        of_it = session, name, destination
        orders = {number: self._orders[number].order for number in self._ahead}
        self._end_ahead([n for n, each in orders.items() if (each.session, each.name, each.destination) == of_it])

    def gone(self, owner: str) -> None:
        """A task is gone, and will ask for nothing."""
        self._end_ahead([number for number, by in self._ahead.items() if by == owner])

    def _end_ahead(self, numbers: Sequence[int]) -> None:
        for name in {self._drop(number) for number in numbers}:
            self.tell(name)

    def withdraw(self, number: int) -> None:
        """It is not asked for any more: what the site has kept back for it comes alone. May be repeated."""
        if number in self._orders:
            self.tell(self._drop(number))

    def narrow(self, number: int, sources: Collection[Party]) -> None:
        """Of these nothing is waited for any more: what the order is for can go without them.

        The first source stays, for the sum is known by it. Where that is all, there is no sum, and the order is over.
        May be repeated, also of an order that does not stand.
        """
        placed = self._orders.get(number)
        if placed is None:
            return
        first, *others = placed.order.sources
        left = (first, *(source for source in others if source not in sources))
        if len(left) == len(placed.order.sources):
            return
        if len(left) < LEAST_PARTS:
            self.withdraw(number)
            return
        order = msgspec.structs.replace(placed.order, sources=left)
        self._orders[number] = _Placed(placed.site, order, _bytes_of(order))
        self.tell(placed.site)

    def merged(self, number: int | None, transfers: Mapping[str, Sequence[int]]) -> None:
        """The sum that was ordered is in, and with it these messages, by their sites: each is told so of its own."""
        for name, its in transfers.items():
            if (site := self._sites.get(name)) is not None:
                site.note_summed(its)
        if number is not None:
            self.withdraw(number)

    def tell(self, name: str) -> None:
        """Tell a site all that stand; after each new control channel, too."""
        if self._untold is not None:
            self._untold[name] = None
            return
        site = self._sites[name]
        if site.takes_sum_orders:
            site.tell_sum_orders(SumOrders(tuple(self._of(name))))

    def _of(self, name: str) -> list[SumOrder]:
        return [each.order for each in self._orders.values() if each.site == name]


def _bytes_of(order: SumOrder) -> int:
    return len(encode_frame(SumOrders((order,))))
