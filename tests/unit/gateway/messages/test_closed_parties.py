"""Who has left which session is known, until there are too many of them."""

from __future__ import annotations

import tracemalloc

from fedrdma_fate.gateway.messages.closed_parties import MOST_CLOSED, ClosedParties
from fedrdma_fate.wire.frames import Party

GUEST, HOST = Party("guest", "9999"), Party("host", "10000")


def test_who_has_left_is_known_in_that_session_and_in_no_other() -> None:
    closed = ClosedParties()
    closed.add("s", GUEST)
    assert ("s", GUEST) in closed
    assert ("s", HOST) not in closed
    assert ("s2", GUEST) not in closed
    assert list(closed) == [("s", GUEST)]


def test_who_comes_back_has_not_left() -> None:
    closed = ClosedParties()
    closed.add("s", GUEST)
    closed.remove("s", GUEST)
    closed.remove("s", HOST)
    assert ("s", GUEST) not in closed


def test_a_session_is_forgotten_with_all_its_parties_and_none_that_begins_alike() -> None:
    closed = ClosedParties()
    for session in ("s", "s1", "ses", "", "ß" * 300):
        closed.add(session, GUEST)
        closed.add(session, HOST)
    closed.forget("s")
    assert [session for session, _ in closed] == ["s1", "s1", "ses", "ses", "", "", "ß" * 300, "ß" * 300]
    closed.forget("ß" * 300)
    closed.forget("")
    assert [session for session, _ in closed] == ["s1", "s1", "ses", "ses"]


def test_the_oldest_is_forgotten_and_who_leaves_again_is_the_newest() -> None:
    closed = ClosedParties()
    for number in range(MOST_CLOSED):
        closed.add(f"s{number}", GUEST)
    closed.add("s0", GUEST)
    closed.add("one more", GUEST)
    assert len(closed) == MOST_CLOSED
    assert ("s0", GUEST) in closed
    assert ("s1", GUEST) not in closed
    assert ("s2", GUEST) in closed


def test_each_takes_as_little_memory_as_is_said() -> None:
    closed = ClosedParties()
    tracemalloc.start()
    try:
        for number in range(MOST_CLOSED):
            # as long as FATE's
            closed.add(f"202611271200000000000_{number:04}_reader_0", GUEST)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / MOST_CLOSED < 200
