"""Connections whose peer is not known: bounded in number and rate, and fair between addresses."""

from __future__ import annotations

import functools

from fedrdma_fate.gateway.peers.newcomers import BURST, MOST_ADDRESSES, MOST_NEWCOMERS, PER_SECOND, Newcomer, Newcomers


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def admit(newcomers: Newcomers, host: str, dropped: list[str] | None = None) -> Newcomer | None:
    return newcomers.admit(host, functools.partial((dropped if dropped is not None else []).append, host))


def test_from_one_address_only_so_many_may_come_at_once_and_later_more() -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    came = [admit(newcomers, "10.0.0.1") for _ in range(BURST + 10)]
    assert sum(newcomer is not None for newcomer in came) == BURST
    assert admit(newcomers, "10.0.0.2") is not None
    clock.now += 1.0
    assert sum(admit(newcomers, "10.0.0.1") is not None for _ in range(BURST)) == PER_SECOND


def test_where_all_places_are_taken_who_has_most_of_them_loses_the_oldest() -> None:
    clock = Clock()
    newcomers = Newcomers(clock)
    dropped: list[str] = []
    honest = admit(newcomers, "10.0.0.2", dropped)
    for _ in range(BURST):
        admit(newcomers, "10.0.0.1", dropped)
    for _ in range(20):
        clock.now += 10.0
        admit(newcomers, "10.0.0.1", dropped)
    assert len(newcomers) == MOST_NEWCOMERS
    assert set(dropped) == {"10.0.0.1"}
    assert honest in newcomers._present


def test_who_is_known_or_gone_makes_room_at_once() -> None:
    newcomers = Newcomers(Clock())
    dropped: list[str] = []
    for number in range(MOST_NEWCOMERS * 3):
        newcomer = admit(newcomers, f"10.0.1.{number}", dropped)
        assert newcomer is not None
        newcomers.leave(newcomer)
        newcomers.leave(newcomer)
    assert len(newcomers) == 0
    assert dropped == []


def test_a_host_that_has_a_network_of_ipv6_counts_as_one_and_so_does_a_written_way_of_ipv4() -> None:
    newcomers = Newcomers(Clock())
    assert sum(admit(newcomers, f"2001:db8::{number:x}") is not None for number in range(200)) == BURST
    assert admit(newcomers, "2001:db8:0:1::1") is not None
    assert sum(admit(newcomers, "::ffff:10.0.0.1") is not None for _ in range(BURST)) == BURST
    assert admit(newcomers, "10.0.0.1") is None


def test_the_addresses_that_are_remembered_have_a_bound() -> None:
    newcomers = Newcomers(Clock())
    for number in range(MOST_ADDRESSES * 2):
        newcomer = admit(newcomers, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert newcomer is not None
        newcomers.leave(newcomer)
    assert len(newcomers._buckets) == MOST_ADDRESSES
