"""Transfers that have ended are answered as they ended."""

from __future__ import annotations

from fedrdma_fate.gateway.journal.state import REMEMBERED_TRANSFERS
from fedrdma_fate.gateway.peers.ended_transfers import EndedTransfers
from fedrdma_fate.wire.frames import Delivered, Refused


def test_what_was_delivered_and_what_was_refused_are_answered_so_again() -> None:
    ended = EndedTransfers()
    ended.add(Delivered(1))
    ended.add(Refused(2, "FR601", "no"))
    assert [transfer in ended for transfer in (0, 1, 2, 3)] == [False, True, True, False]
    assert ended.answer(1) == Delivered(1)
    assert ended.answer(2) == Refused(2, "FR601", "no")


def test_what_is_said_later_holds() -> None:
    ended = EndedTransfers()
    ended.add(Delivered(1))
    ended.add(Refused(1, "FR604", "lost"))
    assert ended.answer(1) == Refused(1, "FR604", "lost")
    ended.add(Delivered(1))
    assert ended.answer(1) == Delivered(1)
    assert len(ended) == 1


def test_refusals_are_forgotten_the_oldest_first() -> None:
    ended = EndedTransfers()
    for transfer in range(REMEMBERED_TRANSFERS + 1):
        ended.add(Refused(transfer, "FR601", "no"))
    assert 0 not in ended
    assert 1 in ended
    assert len(ended) == REMEMBERED_TRANSFERS
