"""The length of datagrams while a link is used, step by step: time and answers are the test's."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.transport.udp.path_mtu import (
    CONFIRMATION_SECONDS,
    LEAST_MISSED_DATAGRAMS,
    LEAST_MISSED_PINGS,
    MOST_PINGS,
    MOST_PROBES,
    PROBE_SECONDS,
    RAISE_SECONDS,
    LongSent,
    Padding,
    PathMtu,
    State,
)

LENGTHS = [8972, 1472, 1464, 1422, 1392, 1352, 1252]
FULL, BASE = 1472, 1252
PING = 14


class Path:
    """A sender and its path, which carries datagrams of `most` bytes and loses some of them."""

    def __init__(self, length: int = FULL, most: int = FULL, loss: float = 0.0) -> None:
        self.mtu = PathMtu(length, BASE, LENGTHS, 0.0)
        self.most = most
        self.loss = loss
        self.now = 0.0
        self.number = 0
        self.padded = 0
        self._chance = random.Random(3)

    def carries(self, length: int) -> bool:
        return length <= self.most and self._chance.random() >= self.loss

    def ping(self, full: int = 0, seconds: float = 0.3, length: int = 0) -> None:
        """Some datagrams, of full length or this, then a ping with what goes ahead of it, and its answer at once."""
        self.now += seconds
        self.number += 1
        lengths = [length or self.mtu.length] * full
        sent = LongSent(full, lengths[0]) if full else LongSent()
        padding = self.mtu.on_ping(self.number, sent, self.now)
        lengths += [padding.length] * padding.datagrams
        self.padded += padding.datagrams * padding.length
        longest = max([length for length in lengths if self.carries(length)], default=PING)
        if self.carries(PING) and self.carries(PING):
            self.mtu.on_pong(self.number, longest, self.now)

    def pings(self, count: int, full: int = 0, seconds: float = 0.3, length: int = 0) -> None:
        for _ in range(count):
            self.ping(full, seconds, length)


def test_data_that_comes_through_proves_the_path_and_nothing_is_sent_besides() -> None:
    path = Path()
    path.pings(1000, full=100)
    assert (path.mtu.length, path.mtu.state, path.padded) == (FULL, State.SEARCH_COMPLETE, 0)


def test_without_data_of_full_length_a_datagram_of_it_goes_now_and_then() -> None:
    path = Path()
    path.pings(100, seconds=1.0)
    assert path.padded == 100 / CONFIRMATION_SECONDS * FULL
    assert (path.mtu.length, path.mtu.state) == (FULL, State.SEARCH_COMPLETE)


def test_a_path_that_becomes_shorter_is_found_by_some_pings_and_the_length_that_passes_is_looked_for() -> None:
    path = Path()
    path.pings(5, full=100)
    path.most = 1430
    path.pings(LEAST_MISSED_PINGS - 1, full=100)
    assert path.mtu.length == FULL, "it may be chance"
    path.ping(full=100)
    assert (path.mtu.length, path.mtu.state) == (BASE, State.BASE)
    path.ping(full=100)
    assert (path.mtu.length, path.mtu.state) == (BASE, State.SEARCHING), "the data has proved it"
    path.pings(3, full=100)
    assert path.mtu.length == 1422, "1352, 1392 and 1422 passed"
    path.pings(MOST_PROBES - 1, full=100)
    assert path.mtu.state is State.SEARCHING
    path.ping(full=100)
    assert (path.mtu.length, path.mtu.state) == (1422, State.SEARCH_COMPLETE)


def test_without_data_it_is_found_as_well_by_padding_ahead_of_pings() -> None:
    path = Path(most=BASE)
    path.ping(seconds=CONFIRMATION_SECONDS)
    assert path.mtu.wants_ping(path.now)
    path.pings(LEAST_MISSED_PINGS)
    assert (path.mtu.length, path.mtu.state) == (BASE, State.BASE)
    assert path.mtu.wants_ping(path.now)
    path.ping()
    assert path.mtu.state is State.SEARCHING


def test_datagrams_that_do_not_fill_the_path_show_a_black_hole_as_well_and_prove_no_more_than_they_are() -> None:
    path = Path(length=8972, most=9000)
    path.pings(20, full=100, length=5000)
    assert (path.mtu.length, path.padded) == (8972, 0)
    path.pings(20, full=100, length=5000)
    assert (path.mtu.length, path.padded) == (8972, 8972), "which padding proves now and then"
    path.most = 1430
    path.pings(LEAST_MISSED_PINGS, full=100, length=5000)
    assert path.mtu.length == BASE


def test_few_datagrams_that_are_missing_are_no_black_hole_before_more_were_sent() -> None:
    mtu = PathMtu(FULL, BASE, LENGTHS, 0.0)
    for number in range(LEAST_MISSED_DATAGRAMS):
        # all under way at once, before anything is in doubt
        mtu.on_ping(number, LongSent(1, FULL), 0.0)
    for number in range(LEAST_MISSED_DATAGRAMS):
        assert mtu.length == FULL
        mtu.on_pong(number, PING, 0.0)
    assert mtu.length == BASE


def test_one_that_came_after_all_ends_the_doubt() -> None:
    path = Path()
    path.most = BASE
    path.pings(LEAST_MISSED_PINGS - 1, full=100)
    path.most = FULL
    path.ping(full=100)
    path.most = BASE
    path.pings(LEAST_MISSED_PINGS - 1, full=100)
    assert path.mtu.length == FULL


def test_a_longer_path_is_found_when_it_is_looked_for_again() -> None:
    path = Path(most=1430)
    path.pings(30, full=100)
    assert (path.mtu.length, path.mtu.state) == (1422, State.SEARCH_COMPLETE)
    path.most = 9000
    assert not path.mtu.wants_search(path.now + RAISE_SECONDS - 10)
    path.now += RAISE_SECONDS
    assert path.mtu.wants_search(path.now)
    path.mtu.search(LENGTHS, path.now)
    path.pings(10, full=10)
    assert (path.mtu.length, path.mtu.state) == (8972, State.SEARCH_COMPLETE)
    assert not path.mtu.wants_search(path.now)


def test_lengths_that_the_route_takes_no_more_are_not_looked_for() -> None:
    path = Path(length=1352, most=9000)
    path.mtu.search([1422, 1352, 1252], RAISE_SECONDS)
    path.pings(10, full=10)
    assert (path.mtu.length, path.mtu.state) == (1422, State.SEARCH_COMPLETE)


def test_where_not_even_the_shortest_passes_it_is_an_error() -> None:
    path = Path(most=500)
    path.pings(LEAST_MISSED_PINGS, full=100)
    assert path.mtu.state is State.BASE
    path.pings(LEAST_MISSED_PINGS, full=100)
    assert path.mtu.state is State.ERROR
    path.most = FULL
    path.pings(10, full=100)
    assert path.mtu.state is State.ERROR, "the link is given up"


@pytest.mark.parametrize("full", [0, 3, 100])
def test_losses_are_no_black_hole(full: int) -> None:
    path = Path(loss=0.2)
    path.pings(20_000, full=full)
    assert (path.mtu.length, path.mtu.state) == (FULL, State.SEARCH_COMPLETE)


def test_among_losses_a_shorter_path_is_found_and_what_passes_there() -> None:
    path = Path(loss=0.2, most=1430)
    path.pings(100, full=20)
    assert (path.mtu.length, path.mtu.state) == (1422, State.SEARCH_COMPLETE)


def test_silence_says_nothing_of_lengths() -> None:
    path = Path(loss=1.0)
    path.pings(1000, full=100)
    assert (path.mtu.length, path.mtu.state) == (FULL, State.SEARCH_COMPLETE)
    assert len(path.mtu._pings) <= MOST_PINGS


def test_one_probe_at_a_time_is_under_way_and_is_sent_again_when_its_ping_is_not_answered() -> None:
    mtu = PathMtu(1352, BASE, LENGTHS, 0.0)
    mtu.search(LENGTHS, 0.0)
    assert mtu.wants_ping(0.0)
    assert mtu.on_ping(1, LongSent(), 0.0) == Padding(1, 1392)
    assert not mtu.wants_ping(0.5)
    assert mtu.on_ping(2, LongSent(), 0.5) == Padding(0, 0)
    assert mtu.wants_ping(PROBE_SECONDS)
    assert mtu.on_ping(3, LongSent(), PROBE_SECONDS) == Padding(1, 1392)
    mtu.on_pong(1, 1392, PROBE_SECONDS)
    assert mtu.length == 1392
    mtu.on_pong(3, PING, PROBE_SECONDS)
    assert mtu.on_ping(4, LongSent(), PROBE_SECONDS) == Padding(1, 1422), "what is known already is not asked again"


@pytest.mark.parametrize("number", [0, 2, 1 << 31])
def test_answers_to_what_was_not_asked_change_nothing(number: int) -> None:
    mtu = PathMtu(1352, BASE, LENGTHS, 0.0)
    mtu.search(LENGTHS, 0.0)
    mtu.on_ping(1, LongSent(100, 1352), 0.0)
    for _ in range(20):
        mtu.on_pong(number, 65507, 0.0)
        mtu.on_pong(number, 0, 0.0)
    assert (mtu.length, mtu.state) == (1352, State.SEARCHING)


def test_a_longer_one_than_was_sent_proves_no_more_than_what_was_sent() -> None:
    mtu = PathMtu(1352, BASE, LENGTHS, 0.0)
    mtu.search(LENGTHS, 0.0)
    mtu.on_ping(1, LongSent(), 0.0)
    mtu.on_pong(1, 65507, 0.0)
    assert mtu.length == 1392


def test_what_anybody_can_say_makes_it_look_and_shortens_nothing() -> None:
    path = Path()
    path.mtu.doubt()
    assert path.mtu.wants_ping(path.now)
    path.ping()
    assert (path.mtu.length, path.mtu.state) == (FULL, State.SEARCH_COMPLETE)
    assert not path.mtu.wants_ping(path.now)


def test_what_this_hosts_device_refuses_is_shortened_at_once() -> None:
    path = Path()
    assert path.mtu.refuse()
    assert (path.mtu.length, path.mtu.state) == (BASE, State.BASE)
    assert not path.mtu.refuse(), "nothing is shorter"
