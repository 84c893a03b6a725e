"""Sessions that are over are remembered for a day, and no more than so many of them."""

from __future__ import annotations

from fedrdma_fate.gateway.messages.ended import REMEMBERED_ENDED, REMEMBERED_SECONDS, EndedSessions
from fedrdma_fate.wire.errors import ErrorCode


class Clock:
    """Time as the test sets it."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_an_ended_session_is_remembered_for_a_day() -> None:
    clock = Clock()
    ended = EndedSessions(clock)
    ended.add("s", "it was dropped at a")
    assert ended.reason("s") == "it was dropped at a"
    assert ended.reason("t") is None
    assert ended.error("s").code is ErrorCode.SESSION_ENDED
    clock.now += REMEMBERED_SECONDS
    assert ended.reason("s") is None


def test_a_session_of_an_id_that_had_ended_long_ago_ends_like_any_other() -> None:
    clock = Clock()
    ended = EndedSessions(clock)
    ended.add("s", "it was dropped at a")
    clock.now += REMEMBERED_SECONDS
    ended.add("s", "again")
    assert ended.reason("s") == "again"


def test_what_a_peer_says_counts_only_where_it_is_in_the_session() -> None:
    ended = EndedSessions()
    ended.add_of_peer("c", "s", "why")
    assert ended.reason("s") is None
    assert ended.reason_of_peers("s", {"b"}) is None
    assert ended.reason_of_peers("t", {"c"}) is None
    assert ended.reason_of_peers("s", {"b", "c"}) == "why"
    assert ended.reason_of_peers("s", None) == "why"


def test_of_each_peer_and_of_this_site_the_latest_are_remembered() -> None:
    ended = EndedSessions()
    for number in range(REMEMBERED_ENDED + 1):
        ended.add(f"s{number}", "why")
        ended.add_of_peer("b", f"s{number}", "why")
    assert ended.reason("s0") is None
    assert ended.reason("s1") == "why"
    assert ended.reason_of_peers("s0", None) is None
    assert ended.reason_of_peers("s1", None) == "why"
