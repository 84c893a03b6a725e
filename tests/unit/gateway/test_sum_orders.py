"""Orders that stand with a site, and those that were placed ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedrdma_fate.gateway.peers.control_connection import MOST_FRAME_BYTES
from fedrdma_fate.gateway.sum_orders import MOST_ORDER_BYTES, StandingSumOrders
from fedrdma_fate.wire.frames import MOST_PARTIES, MOST_SUM_ORDERS, Party, SumOrder, SumOrders, encode_frame
from fedrdma_fate.wire.site_sum import NEXT_TAG, key_of_order

ARBITER = Party("arbiter", "1")
HOSTS = tuple(Party("host", str(number)) for number in range(MOST_PARTIES))


class Peer:
    """A site that may be connected, and what it was told last."""

    def __init__(self, *, connected: bool = True) -> None:
        self.takes_sum_orders = connected
        self.told: list[SumOrders] = []

    def tell_sum_orders(self, orders: SumOrders) -> None:
        self.told.append(orders)

    def note_summed(self, transfers: Sequence[int]) -> None:
        raise AssertionError(transfers)

    @property
    def tags(self) -> list[str]:
        return [order.tag for order in self.told[-1].orders]


def order(tag: str, name: str = "m", session: str = "s", parties: int = 2) -> SumOrder:
    return SumOrder(0, session, name, tag, ARBITER, HOSTS[:parties], max(2, parties))


def test_what_is_placed_ahead_is_told_until_it_is_asked_for() -> None:
    orders, peer, other = StandingSumOrders(), Peer(), Peer()
    orders.register("b", peer)
    orders.register("c", other)
    orders.place_ahead("b", order(NEXT_TAG), "task")
    orders.place_ahead("b", order(NEXT_TAG, name="other"), "task")
    orders.place_ahead("c", order(NEXT_TAG), "task")
    assert peer.tags == [NEXT_TAG, NEXT_TAG]
    assert len({each.number for each in peer.told[-1].orders}) == 2

    orders.asked("s", "m", ARBITER)

    assert [each.name for each in peer.told[-1].orders] == ["other"]
    assert other.tags == []
    orders.asked("s", "m", ARBITER)
    orders.asked("another", "other", ARBITER)
    assert len(peer.told) == 3
    orders.gone("nobody")
    assert len(peer.told) == 3
    orders.gone("task")
    assert peer.tags == []


def test_a_site_is_told_ahead_when_it_connects_and_a_stranger_never() -> None:
    orders, peer = StandingSumOrders(), Peer(connected=False)
    orders.register("b", peer)
    orders.place_ahead("b", order(NEXT_TAG), "task")
    orders.place_ahead("this site", order(NEXT_TAG), "task")
    assert peer.told == []
    peer.takes_sum_orders = True
    orders.tell("b")
    assert peer.tags == [NEXT_TAG]


def test_an_order_that_is_narrowed_is_told_with_fewer_and_the_sum_is_still_known_by_its_first() -> None:
    orders, peer = StandingSumOrders(), Peer()
    orders.register("b", peer)
    number = orders.place("b", order("t", parties=5))
    assert number is not None
    (before,) = peer.told[-1].orders
    orders.narrow(number, HOSTS[:2])
    (after,) = peer.told[-1].orders
    assert (after.number, after.sources) == (number, (HOSTS[0], *HOSTS[2:5]))
    assert key_of_order(after) == key_of_order(before)
    told = len(peer.told)
    orders.narrow(number, HOSTS[:2])
    orders.narrow(number + 1, HOSTS[2:4])
    assert len(peer.told) == told
    key = key_of_order(after)
    assert key is not None
    assert orders.awaits("b", key)
    # of one alone there is no sum, and no frame says so
    orders.narrow(number, HOSTS[:5])
    assert peer.told[-1].orders == ()
    assert not orders.awaits("b", key)


@pytest.mark.parametrize("parties", [2, MOST_PARTIES // 2])
def test_what_is_placed_ahead_makes_room_for_what_is_asked_for(parties: int) -> None:
    orders, peer = StandingSumOrders(), Peer()
    orders.register("b", peer)
    for number in range(2 * MOST_SUM_ORDERS):
        orders.place_ahead("b", order(NEXT_TAG, name=f"m{number}", parties=parties), "task")
    room = min(MOST_SUM_ORDERS, MOST_PARTIES // parties)
    assert len(peer.told[-1].orders) == room

    placed = [orders.place("b", order(f"t{number}", parties=parties)) for number in range(room + 1)]

    assert None not in placed[:-1]
    assert placed[-1] is None
    assert peer.tags == [f"t{number}" for number in range(room)]


def test_orders_of_parties_with_long_names_are_no_longer_than_a_control_channel_carries() -> None:
    orders, peer = StandingSumOrders(), Peer()
    orders.register("b", peer)

    def long(number: int) -> SumOrder:
        parties = tuple(Party("\U0001d11e" * 250 + f"{number:03}.{each:02}", "1") for each in range(64))
        return SumOrder(0, "s", f"m{number}", NEXT_TAG, ARBITER, parties, len(parties))

    for number in range(MOST_SUM_ORDERS):
        orders.place_ahead("b", long(number), "task")
    assert peer.tags
    assert orders.place("b", order("t")) is not None
    while orders.place("b", long(0)) is not None:
        pass

    assert peer.tags[0] == "t"
    assert max(len(encode_frame(each)) for each in peer.told) <= MOST_ORDER_BYTES < MOST_FRAME_BYTES


def test_the_sum_that_a_site_was_asked_for_is_awaited_of_it_alone_until_that_is_over() -> None:
    orders, peer, other = StandingSumOrders(), Peer(), Peer()
    orders.register("b", peer)
    orders.register("c", other)
    key = key_of_order(order("t"))
    ahead = key_of_order(order(NEXT_TAG))
    assert key is not None
    assert ahead is not None
    orders.place_ahead("b", order(NEXT_TAG), "task")
    number = orders.place("b", order("t"))

    assert number is not None
    assert orders.awaits("b", key)
    assert not orders.awaits("b", ahead)
    assert not orders.awaits("c", key)
    assert not orders.awaits("nobody", key)
    orders.withdraw(number)
    orders.withdraw(number)
    assert not orders.awaits("b", key)
    assert len(peer.told) == 3


def test_what_is_placed_and_withdrawn_together_is_told_once_to_each_site_and_awaited_then() -> None:
    orders, peer, other = StandingSumOrders(), Peer(), Peer()
    orders.register("b", peer)
    orders.register("c", other)
    with orders.together():
        numbers = [orders.place("b", order(f"t{each}")) for each in range(MOST_SUM_ORDERS)]
        with orders.together():
            orders.place("c", order("t"))
            assert None not in numbers
            orders.withdraw(numbers[0] or 0)
        assert (peer.told, other.told) == ([], [])

    assert (len(peer.told), len(other.told)) == (1, 1)
    assert peer.tags == [f"t{each}" for each in range(1, MOST_SUM_ORDERS)]
    gone, stands = key_of_order(order("t0")), key_of_order(order("t1"))
    assert gone is not None
    assert stands is not None
    assert orders.awaits("b", stands)
    assert not orders.awaits("b", gone)
