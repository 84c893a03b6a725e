"""The receive slots that a peer has granted."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.credits import Credits
from fedrdma_fate.wire.frames import Grant


def grant(number: int, length: int) -> Grant:
    return Grant(transport="tcp", grant=number, key=1, address=0, length=length)


@pytest.fixture
def credits() -> Credits:
    standing = Credits()
    for number, length in [(4, 100), (2, 300), (3, 200), (5, 200)]:
        standing.add(grant(number, length))
    return standing


def test_the_smallest_slot_that_fits_is_taken_and_the_oldest_among_equals(credits: Credits) -> None:
    taken = [credits.take(150), credits.take(150), credits.take(150)]
    assert [credit.grant if credit else None for credit in taken] == [3, 5, 2]


def test_a_slot_is_taken_once(credits: Credits) -> None:
    assert credits.take(300) == grant(2, 300)
    assert credits.take(300) is None
    assert len(credits) == 3


def test_a_payload_that_no_slot_holds_takes_none(credits: Credits) -> None:
    assert credits.take(301) is None
    assert len(credits) == 4


def test_what_is_beside_the_ring_is_outgrown_when_it_was_too_small(credits: Credits) -> None:
    assert [credit.grant for credit in credits.take_outgrown()] == [2, 3, 5]
    assert credits.take_outgrown() == []
    assert (len(credits), Credits().take_outgrown()) == (1, [])


def test_an_unused_slot_can_be_recalled_once(credits: Credits) -> None:
    assert credits.recall(3)
    assert not credits.recall(3)
    assert credits.take(200) == grant(5, 200)


def test_a_used_slot_cannot_be_recalled(credits: Credits) -> None:
    credits.take(300)
    assert not credits.recall(2)


def test_a_slot_granted_anew_replaces_the_old_grant(credits: Credits) -> None:
    credits.add(grant(2, 50))
    assert len(credits) == 4
    assert credits.take(300) is None


def test_nothing_is_left_when_the_peer_restarted(credits: Credits) -> None:
    credits.clear()
    assert len(credits) == 0
    assert credits.take(1) is None
