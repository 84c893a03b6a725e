"""The sender's book of granted receive slots."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.credits import CreditBook
from fedrdma_fate.wire.frames import Grant


def grant(number: int, length: int) -> Grant:
    return Grant(transport="tcp", grant=number, key=1, address=0, length=length)


@pytest.fixture
def book() -> CreditBook:
    credits = CreditBook()
    for number, length in [(4, 100), (2, 300), (3, 200), (5, 200)]:
        credits.add(grant(number, length))
    return credits


def test_the_smallest_slot_that_fits_is_taken_and_the_oldest_among_equals(book: CreditBook) -> None:
    taken = [book.take(150), book.take(150), book.take(150)]
    assert [credit.grant if credit else None for credit in taken] == [3, 5, 2]


def test_a_slot_is_taken_once(book: CreditBook) -> None:
    assert book.take(300) == grant(2, 300)
    assert book.take(300) is None
    assert len(book) == 3


def test_a_payload_that_no_slot_holds_takes_none(book: CreditBook) -> None:
    assert book.take(301) is None
    assert len(book) == 4


def test_what_is_beside_the_ring_is_outgrown_when_it_was_too_small(book: CreditBook) -> None:
    assert [credit.grant for credit in book.take_outgrown()] == [2, 3, 5]
    assert book.take_outgrown() == []
    assert (len(book), CreditBook().take_outgrown()) == (1, [])


def test_an_unused_slot_can_be_recalled_once(book: CreditBook) -> None:
    assert book.recall(3)
    assert not book.recall(3)
    assert book.take(200) == grant(5, 200)


def test_a_used_slot_cannot_be_recalled(book: CreditBook) -> None:
    book.take(300)
    assert not book.recall(2)


def test_a_slot_granted_anew_replaces_the_old_grant(book: CreditBook) -> None:
    book.add(grant(2, 50))
    assert len(book) == 4
    assert book.take(300) is None


def test_nothing_is_left_when_the_peer_restarted(book: CreditBook) -> None:
    book.clear()
    assert len(book) == 0
    assert book.take(1) is None
