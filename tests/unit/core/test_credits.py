"""The receive slots that a peer has granted."""

from __future__ import annotations

import dataclasses
import random

import pytest

from fedrdma_fate.core.credits import MOST_REQUESTS, MOST_SESSION_REQUESTS, Credits, RequestShares
from fedrdma_fate.wire.frames import Grant, MessageKey, Party


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


@dataclasses.dataclass(frozen=True)
class Wanting:
    transfer: int
    key: MessageKey


def outgoing(transfer: int, session: str) -> Wanting:
    return Wanting(transfer, MessageKey(session, "m", "t", Party("guest", "1"), Party("host", "2")))


def asking(requests: RequestShares, session: str, count: int, first: int) -> list[int]:
    """Of so many transfers of a session, those that may ask."""
    return [transfer for transfer in range(first, first + count) if requests.admit(transfer, session)]


def test_a_session_leaves_room_for_the_requests_of_others() -> None:
    requests = RequestShares()
    assert len(asking(requests, "greedy", 1000, 0)) == MOST_SESSION_REQUESTS
    assert asking(requests, "other", 3, 5000) == [5000, 5001, 5002]
    assert len(asking(requests, "third", 1000, 6000)) == MOST_REQUESTS - MOST_SESSION_REQUESTS - 3


def test_whoever_has_asked_may_ask_again_and_counts_once() -> None:
    requests = RequestShares()
    asked = asking(requests, "s", MOST_SESSION_REQUESTS, 0)
    assert asking(requests, "s", MOST_SESSION_REQUESTS, 0) == asked
    assert requests.discard(0)
    assert not requests.discard(0)
    assert requests.admit(9999, "s")


def test_the_session_with_the_fewest_requests_asks_next_and_within_it_the_first() -> None:
    requests = RequestShares()
    asking(requests, "greedy", 10, 0)
    asking(requests, "modest", 2, 100)
    waiting = [outgoing(0, "greedy"), outgoing(11, "greedy"), outgoing(102, "modest"), outgoing(103, "modest")]
    assert requests.next_of(waiting) is waiting[2]
    assert requests.next_of(waiting[:2]) is waiting[1]
    assert requests.next_of(waiting[:1]) is None, "it has asked"
    requests.keep([100])
    assert requests.next_of(waiting) is waiting[0]


def test_no_order_of_asking_and_ending_leaves_a_count_behind() -> None:
    requests, chance, open_ones = RequestShares(), random.Random(4), set()
    for transfer in range(5000):
        if requests.admit(transfer, f"s{chance.randrange(5)}"):
            open_ones.add(transfer)
        if open_ones and chance.random() < 0.6:
            requests.discard(open_ones.pop())
    requests.keep(())
    assert len(asking(requests, "s0", 1000, 10_000)) == MOST_SESSION_REQUESTS
    assert requests._of_session.keys() == {"s0"}
