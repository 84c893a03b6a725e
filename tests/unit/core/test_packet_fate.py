"""Long messages that fail though short ones pass are told from loss, from silence, and from a path that is well."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fedrdma_fate.core.packet_fate import (
    ANSWER_SECONDS,
    INTERVAL_SECONDS,
    MOMENTS,
    MOST_PACKETS,
    Fate,
    PacketTest,
    least_chance,
)

Way = Callable[[int], bool]
"""Whether a message of so many packets comes through, one way."""


def outcome(way: Way, packets: int) -> Fate:
    """What a test finds on such a path, both ways alike."""
    test, now = PacketTest(1, 10.0), 10.0
    while (fate := test.fate(now, packets)) is None:
        for number, is_long in test.on_time(now):
            if way(packets if is_long else 1) and way(1):
                test.on_answer(number)
        now = test.due
    return fate


def losing(chance: random.Random, share: float) -> Way:
    """Each packet is lost by itself."""
    return lambda packets: all(chance.random() >= share for _ in range(packets))


def losing_in_bursts(chance: random.Random, share: float, length: float) -> Way:
    """Gilbert-Elliott: so many packets in a row, on average."""
    bad = False

    def way(packets: int) -> bool:
        nonlocal bad
        came = True
        for _ in range(packets):
            ends, begins = 1 / length, share / (1 - share) / length
            bad = chance.random() >= ends if bad else chance.random() < begins
            came &= not bad
        return came

    return way


def overtaking(chance: random.Random, share: float = 0.0) -> Way:
    """Packets of a message come in any order, and are lost besides."""

    def way(packets: int) -> bool:
        order = [chance.random() for _ in range(packets)]
        return order == sorted(order) and all(chance.random() >= share for _ in range(packets))

    return way


@pytest.mark.parametrize("packets", [2, 4, 5, 8])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.03, 0.05, 0.1, 0.2, 0.4])
def test_a_path_that_only_loses_is_never_taken_for_one_that_fails(share: float, packets: int) -> None:
    chance = random.Random(f"{share} {packets}")
    found = [outcome(losing(chance, share), packets) for _ in range(300)]
    assert set(found) == {Fate.PASSES}


@pytest.mark.parametrize("length", [2, 10, 30])
@pytest.mark.parametrize("share", [0.005, 0.05, 0.2])
def test_nor_is_one_that_loses_in_bursts(share: float, length: float) -> None:
    chance = random.Random(f"{share} {length}")
    assert Fate.LONG_ONES_FAIL not in {outcome(losing_in_bursts(chance, share, length), 8) for _ in range(300)}


@pytest.mark.parametrize("packets", [5, 8])
@pytest.mark.parametrize("room", range(MOST_PACKETS * 2 + 1))
def test_a_busy_host_that_takes_in_only_so_many_packets_at_a_time_speaks_for_no_fault(packets: int, room: int) -> None:
    test, now = PacketTest(1, 10.0), 10.0
    while (fate := test.fate(now, packets)) is None:
        left = room
        for number, is_long in test.on_time(now):
            wanted = packets if is_long else 1
            if wanted <= left:
                test.on_answer(number)
            left = max(left - wanted, 0)
        now = test.due
    assert fate is (Fate.PASSES if room else Fate.SILENT)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.8])
def test_nor_does_one_that_is_away_at_some_moments_or_cannot_send_at_others(kept: float) -> None:
    chance = random.Random(f"busy {kept}")
    for _ in range(200):
        test, now = PacketTest(1, 10.0), 10.0
        while (fate := test.fate(now, 8)) is None:
            goes, comes = chance.random() < kept, chance.random() < kept
            for number, is_long in test.on_time(now):
                if is_long and not goes:
                    test.on_unsent(number)
                elif comes:
                    test.on_answer(number)
            now = test.due
        assert fate is not Fate.LONG_ONES_FAIL


def test_what_could_not_be_sent_is_not_lost() -> None:
    test, now = PacketTest(1, 10.0), 10.0
    while (fate := test.fate(now, 8)) is None:
        for number, _ in test.on_time(now):
            test.on_unsent(number)
        now = test.due
    assert fate is Fate.SILENT


@pytest.mark.parametrize("packets", [5, 8])
@pytest.mark.parametrize("share", [0.0, 0.001])
def test_where_packets_overtake_each_other_it_is_found_out(share: float, packets: int) -> None:
    chance = random.Random(f"overtaking {share} {packets}")
    found = [outcome(overtaking(chance, share), packets) for _ in range(100)]
    assert found.count(Fate.LONG_ONES_FAIL) >= 95


def test_where_nothing_comes_the_path_is_silent_and_not_at_fault() -> None:
    assert outcome(lambda _: False, 8) is Fate.SILENT


def test_messages_of_one_packet_cannot_fail_as_long_ones() -> None:
    assert outcome(lambda packets: packets == 1, 1) is Fate.PASSES
    assert outcome(lambda packets: packets == 1, 8) is Fate.LONG_ONES_FAIL


def test_a_test_is_over_within_one_and_a_half_seconds() -> None:
    test, now = PacketTest(1, 0.0), 0.0
    while test.fate(now, 8) is None:
        test.on_time(now)
        now = test.due
    assert now == pytest.approx((MOMENTS - 1) * INTERVAL_SECONDS + ANSWER_SECONDS)
    assert now < 1.5


def test_answers_to_what_was_not_asked_or_twice_count_for_nothing() -> None:
    test, now = PacketTest(100, 0.0), 0.0
    while test.fate(now, 8) is None:
        for number, _ in test.on_time(now):
            for made_up in (number - 1000, number + 1000, -number):
                test.on_answer(made_up)
        now = test.due
    assert test.fate(now, 8) is Fate.SILENT
    assert test.next_number == 100 + MOMENTS * (MOST_PACKETS + 1)


def test_the_least_chance_is_below_what_was_seen_and_no_less_than_nothing() -> None:
    assert least_chance(0, 48) == 0.0
    assert least_chance(48, 48) == pytest.approx(1 - 3 / 48)
    assert 0.5 < least_chance(36, 48) < 0.75
