"""How many sessions the tasks of one listed user may be in."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.tasks.user_sessions import MOST_SESSIONS_OF_A_USER, UserSessions
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party

A, B = Party("guest", "1"), Party("host", "1")
USER, ANOTHER = 1001, 1002


def full() -> UserSessions:
    sessions = UserSessions()
    for number in range(MOST_SESSIONS_OF_A_USER):
        sessions.join(USER, f"s{number}", A)
    return sessions


def test_a_user_is_in_so_many_sessions_and_the_next_is_refused() -> None:
    sessions = full()
    with pytest.raises(GatewayError, match="user 1001") as refused:
        sessions.join(USER, "one more", A)
    assert refused.value.code is ErrorCode.LIMIT_REACHED
    # further tasks of a party that is in already are none more, and other users have their own
    sessions.join(USER, "s5", A)
    sessions.join(ANOTHER, "one more", A)


def test_a_session_that_was_left_makes_room_for_another() -> None:
    sessions = full()
    sessions.leave("s7", B)
    with pytest.raises(GatewayError):
        sessions.join(USER, "one more", A)
    sessions.leave("s7", A)
    sessions.join(USER, "one more", A)


def test_nothing_is_kept_of_a_user_whose_sessions_were_all_left() -> None:
    sessions = full()
    for number in range(MOST_SESSIONS_OF_A_USER):
        sessions.leave(f"s{number}", A)
    assert not sessions._of_user
