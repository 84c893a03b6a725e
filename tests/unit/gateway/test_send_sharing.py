"""A gateway shares its own link among its peers: before the first chunk, and as trains to all at once have told."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.core.path_probe import MOST_TRAINS, MOST_UNANSWERED_TRAINS, JointAnswer
from fedrdma_fate.core.shares.joint_probe import (
    ANSWERED_SECONDS,
    KNOWN_SECONDS,
    MOST_REPEATS,
    REPEAT_SECONDS,
    SETTLED_SECONDS,
)
from fedrdma_fate.core.shares.share_sender import Arrivals
from fedrdma_fate.engine.path_memory import KnownPath
from fedrdma_fate.gateway.config.schema import SendConfig
from fedrdma_fate.gateway.link_sharing import ToldShare
from fedrdma_fate.gateway.send_sharing import SendSharing
from fedrdma_fate.wire.datagrams import DATAGRAM_BYTES
from tests.support.twin import run_virtually

RTT = 0.02
LINK = 1e8
PEERS = 4


class Link:
    """As much of a link as is looked at; trains to all come as the site's own link lets them.

    Attributes:
        limits: what it was limited to.
        trains: how long the trains were that it was to send.
        longest: of trains that are answered.
        room: of a train that goes with others, at most.
    """

    longest = 1000
    room = 1000

    def __init__(self, number: int, own: float | None, round_trip: float = RTT, *, known: bool = True) -> None:
        self.known_path = KnownPath(PathState(LINK, round_trip, None), "probed") if known else None
        self.deliveries = self.arrivals = Arrivals()
        self.joint: JointAnswer | None = None
        self.limits: list[float] = []
        self.trains: list[int] = []
        self._place = number
        self.own = own

    def limit(self, rate: float, place: float) -> None:
        assert 0 <= place < 1
        self.limits.append(rate)

    def probe_jointly(self, began: float, count: int) -> None:
        count = min(count, self.room)
        self.trains.append(count)
        self.joint = None
        if self.own is not None and count <= self.longest:
            own = count * DATAGRAM_BYTES / LINK
            before = (self._place * count * DATAGRAM_BYTES) / self.own
            self.joint = JointAnswer(began, RTT + before + own, own, count, count)


class Site:
    """A site with peers that are known, over links of its own link's rate; None: it answers no trains."""

    def __init__(self, own: float | None = LINK, config: SendConfig | None = None, **link: Any) -> None:
        self.told: list[ToldShare] = []
        self.sharing = SendSharing(config or SendConfig(), self.told.append)
        self.links: dict[str, Any] = {str(number): Link(number, own, **link) for number in range(PEERS)}

    def join(self, transport: str = "verbs") -> None:
        for site, link in self.links.items():
            self.sharing.join(site, transport, link, RTT)

    def begin(self, *sites: str, transfer: int = 1) -> None:
        with self.sharing.together(len(sites)):
            for site in sites:
                self.sharing.begun(site, message(transfer), RTT)

    def limits(self) -> list[float]:
        return [link.limits[-1] if link.limits else math.inf for link in self.links.values()]


def message(transfer: int, mode: str = "fedrdma-x") -> Any:
    return SimpleNamespace(transfer=transfer, mode=mode)


async def answered() -> None:
    """Until trains to all have been answered, and longer ones as well."""
    await asyncio.sleep(SETTLED_SECONDS + 2 * ANSWERED_SECONDS + 0.1)


def test_what_one_push_sends_to_all_is_limited_before_it_goes() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        site.begin(*site.links)
        assert site.limits() == pytest.approx([0.98 * LINK / PEERS] * PEERS)
        assert {told.site for told in site.told} == set(site.links)

    run_virtually(scenario())


def test_what_goes_to_one_is_not_limited_from_its_first_byte_on() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        site.sharing.begun("2", message(1), RTT)
        assert site.limits()[2] == math.inf

    run_virtually(scenario())


def test_while_several_are_handed_over_each_has_no_more_than_its_part() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        with site.sharing.together(2):
            site.sharing.begun("0", message(1), RTT)
            assert site.limits()[0] == pytest.approx(0.98 * LINK / PEERS)
            site.sharing.begun("1", message(2), RTT)
        assert site.limits()[:2] == pytest.approx([0.98 * LINK / 2] * 2)

    run_virtually(scenario())


def test_transfers_of_other_modes_have_no_part() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        with site.sharing.together(2):
            site.sharing.begun("0", message(1), RTT)
            site.sharing.begun("1", message(2, "fedrdma-e"), RTT)
        assert site.limits()[0] == math.inf

    run_virtually(scenario())


def test_trains_to_all_at_once_leave_when_nothing_goes_and_tell_what_the_own_link_carries() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.join()
        await asyncio.sleep(SETTLED_SECONDS / 2)
        assert not any(link.trains for link in site.links.values())
        await answered()
        assert [link.trains for link in site.links.values()] == [[16, 64]] * PEERS, "longer ones, for it is faster"
        site.begin(*site.links)
        assert site.limits() == [math.inf] * PEERS
        status: Any = site.sharing.status()
        assert status["bits_per_second"] == pytest.approx(8 * PEERS * LINK)

    run_virtually(scenario())


def test_what_short_trains_have_told_stays_where_longer_ones_are_not_answered() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.links["3"].longest = 16
        site.join()
        await answered()
        assert [link.trains for link in site.links.values()] == [[16, 64]] * PEERS
        site.begin(*site.links)
        assert min(site.limits()) > 0.9 * LINK

    run_virtually(scenario())


def test_where_a_queue_is_known_to_hold_no_more_than_short_ones_no_longer_ones_go() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.links["3"].room = 12
        site.join()
        await answered()
        assert [link.trains for link in site.links.values()] == [[12 if site_ == "3" else 16] for site_ in site.links]
        site.begin(*site.links)
        assert min(site.limits()) > 0.9 * LINK

    run_virtually(scenario())


async def sharing_after_longer_trains(changed: Callable[[JointAnswer], JointAnswer]) -> Site:
    """All send, when their longer trains have told what becomes of them by `changed`."""
    site = Site(own=10 * LINK)
    site.join()
    await asyncio.sleep(SETTLED_SECONDS + 1.5 * ANSWERED_SECONDS)
    for link in site.links.values():
        assert link.joint is not None
        link.joint = changed(link.joint)
    await answered()
    site.begin(*site.links)
    return site


def test_and_where_longer_ones_overrun_a_buffer_and_tell_less() -> None:
    async def scenario() -> None:
        # a third of it came
        site = await sharing_after_longer_trains(lambda train: train._replace(came=train.came // 3))
        assert min(site.limits()) > 0.9 * LINK

    run_virtually(scenario())


def test_where_longer_ones_come_whole_what_they_tell_is_believed_though_it_is_less() -> None:
    async def scenario() -> None:
        site = await sharing_after_longer_trains(lambda train: train._replace(seconds=train.seconds * 100))
        assert min(site.limits()) == pytest.approx(0.98 * LINK / PEERS)

    run_virtually(scenario())


def test_what_short_trains_have_told_stays_where_something_is_sent_before_the_longer_ones() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.join()
        await asyncio.sleep(SETTLED_SECONDS + ANSWERED_SECONDS / 2)
        site.begin("0")
        await asyncio.sleep(ANSWERED_SECONDS)
        assert [link.trains for link in site.links.values()] == [[16]] * PEERS
        site.sharing.ended("0", 1)
        site.begin(*site.links, transfer=2)
        assert min(site.limits()) > 0.9 * LINK

    run_virtually(scenario())


def test_where_the_own_link_is_what_all_ways_lead_over_short_trains_do() -> None:
    async def scenario() -> None:
        site = Site(own=LINK)
        site.join()
        await answered()
        assert [link.trains for link in site.links.values()] == [[16]] * PEERS
        site.begin(*site.links)
        assert site.limits() == pytest.approx([0.98 * LINK / PEERS] * PEERS)

    run_virtually(scenario())


def test_while_something_goes_no_trains_leave_and_later_they_do() -> None:
    async def scenario() -> None:
        site = Site()
        site.join()
        site.begin("0")
        await answered()
        assert not site.links["1"].trains
        site.sharing.ended("0", 1)
        await answered()
        assert site.links["1"].trains

    run_virtually(scenario())


@pytest.mark.parametrize(("silent", "link"), [(3, {"own": None}), (3, {"known": False})])
def test_where_most_peers_do_not_answer_the_link_is_taken_for_as_fast_as_one_way(
    silent: int, link: dict[str, Any]
) -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        for number in range(PEERS - silent, PEERS):
            site.links[str(number)] = Link(number, **{"own": 10 * LINK, **link})
        site.join()
        await asyncio.sleep(KNOWN_SECONDS)
        await answered()
        site.begin(*site.links)
        assert site.limits()[0] == pytest.approx(0.98 * LINK / PEERS)

    run_virtually(scenario())


def test_where_one_of_them_does_not_answer_the_others_trains_tell() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.links["3"] = Link(3, None)
        site.join()
        await answered()
        site.begin(*site.links)
        assert min(site.limits()) > 0.7 * LINK

    run_virtually(scenario())


def test_where_of_one_of_them_nothing_is_known_the_others_trains_tell() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.links["3"] = Link(3, None, known=False)
        site.join()
        await answered()
        assert not any(link.trains for link in site.links.values()), "it may still be answered"
        await asyncio.sleep(KNOWN_SECONDS)
        site.begin(*site.links)
        assert min(site.limits()) > 0.7 * LINK

    run_virtually(scenario())


def test_who_is_known_later_than_the_others_is_waited_for() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        late, site.links["3"].known_path = site.links["3"].known_path, None
        site.join()
        await asyncio.sleep(SETTLED_SECONDS + ANSWERED_SECONDS / 2)
        site.links["3"].known_path = late
        await asyncio.sleep(KNOWN_SECONDS)
        await answered()
        assert [link.trains for link in site.links.values()] == [[16, 64]] * PEERS

    run_virtually(scenario())


def test_who_leaves_while_trains_are_on_their_way_spoils_nothing() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.join()
        await asyncio.sleep(SETTLED_SECONDS + ANSWERED_SECONDS / 2)
        site.sharing.leave("0")
        assert site.limits()[0] == math.inf
        await answered()
        site.begin("1", "2")
        assert min(site.limits()[1:3]) > 0.9 * LINK

    run_virtually(scenario())


# --- once more ---


async def all_repeats() -> None:
    """Until no trains go any more, and longer."""
    await asyncio.sleep(REPEAT_SECONDS * 2**MOST_REPEATS + (MOST_REPEATS + 2) * (SETTLED_SECONDS + ANSWERED_SECONDS))


def test_where_trains_have_not_told_that_the_link_carries_all_some_more_go_and_then_none() -> None:
    async def scenario() -> None:
        site = Site(own=LINK)
        site.join()
        await all_repeats()
        assert [link.trains for link in site.links.values()] == [[16] * (1 + MOST_REPEATS)] * PEERS
        await all_repeats()
        assert [len(link.trains) for link in site.links.values()] == [1 + MOST_REPEATS] * PEERS
        site.begin(*site.links)
        assert site.limits() == pytest.approx([0.98 * LINK / PEERS] * PEERS)

    run_virtually(scenario())


def test_where_they_have_none_go_again() -> None:
    async def scenario() -> None:
        site = Site(own=10 * LINK)
        site.join()
        await all_repeats()
        assert [link.trains for link in site.links.values()] == [[16, 64]] * PEERS

    run_virtually(scenario())


def test_nor_where_what_the_link_carries_was_set_by_hand() -> None:
    async def scenario() -> None:
        site = Site(config=SendConfig(rate=8 * LINK))
        site.join()
        await all_repeats()
        assert max(len(link.trains) for link in site.links.values()) == 1

    run_virtually(scenario())


def test_what_held_the_first_up_is_gone_when_more_go_and_what_is_better_is_believed() -> None:
    async def scenario() -> None:
        site = Site(own=LINK)
        site.join()
        await answered()
        for link in site.links.values():
            link.own = 10 * LINK
        await all_repeats()
        assert [link.trains for link in site.links.values()] == [[16, 16, 64]] * PEERS
        site.begin(*site.links)
        assert min(site.limits()) > 0.9 * LINK

    run_virtually(scenario())


def test_what_was_told_stays_when_later_ones_tell_less_or_nothing() -> None:
    async def scenario() -> None:
        site = Site(own=2 * LINK)
        site.join()
        await answered()
        for link in site.links.values():
            link.own = LINK / 10
        await asyncio.sleep(3 * REPEAT_SECONDS)
        for link in site.links.values():
            link.own = None
        await all_repeats()
        site.begin(*site.links)
        assert min(site.limits()) == pytest.approx(0.98 * 2 * LINK / PEERS, rel=0.1)

    run_virtually(scenario())


@pytest.mark.parametrize("direction", ["sent", "come"])
def test_none_goes_again_while_something_is_sent_or_comes_and_later_they_do(direction: str) -> None:
    async def scenario() -> None:
        site = Site(own=LINK)
        site.join()
        await answered()
        if direction == "sent":
            site.begin("0")
        for number in range(20):
            if direction == "come":
                site.links["1"].arrivals = Arrivals(1000 * (number + 1))
            await asyncio.sleep(SETTLED_SECONDS / 2)
        assert [link.trains for link in site.links.values()] == [[16]] * PEERS
        if direction == "sent":
            site.sharing.ended("0", 1)
        await asyncio.sleep(2 * SETTLED_SECONDS)
        assert site.links["1"].trains == [16, 16]

    run_virtually(scenario())


def test_all_trains_of_a_gateway_are_no_more_than_a_peer_answers() -> None:
    assert MOST_UNANSWERED_TRAINS + 2 + 2 * MOST_REPEATS <= MOST_TRAINS


def test_over_udp_a_short_path_takes_no_part_whenever_it_is_known_to_be_one() -> None:
    async def scenario() -> None:
        short, late = Site(round_trip=0.0001), Site(known=False)
        for site in (short, late):
            site.join("udp")
        assert not short.sharing.status()["senders"]
        for link in late.links.values():
            link.known_path = KnownPath(PathState(LINK, 0.0001, None), "probed")
        await asyncio.sleep(2.0)
        assert not late.sharing.status()["senders"]
        over_verbs = Site(round_trip=0.0001)
        over_verbs.join("verbs")
        assert over_verbs.sharing.status()["senders"]

    run_virtually(scenario())


def test_what_is_off_limits_nobody_and_what_was_set_by_hand_counts() -> None:
    async def scenario() -> None:
        off, by_hand = Site(config=SendConfig(share="off")), Site(config=SendConfig(rate=8 * LINK / 2))
        for site in (off, by_hand):
            site.join()
            site.begin(*site.links)
        assert off.limits() == [math.inf] * PEERS
        assert by_hand.limits() == pytest.approx([0.98 * LINK / 2 / PEERS] * PEERS)
        await answered()
        assert not any(link.trains for link in off.links.values())

    run_virtually(scenario())
