"""What is remembered of the messages of a session has a bound, and goes when its parties have left."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fedrdma_fate.gateway.journal.state import replay
from fedrdma_fate.gateway.journal_records import AnyRecord, encode_record
from fedrdma_fate.gateway.messages import sessions
from fedrdma_fate.gateway.messages.sessions import Push, Sessions
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, MessageKey, Party

GUEST, HOST = Party("guest", "1"), Party("host", "2")
MOST = 100


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_REMEMBERED", MOST)


def message(number: int, session: str = "s", name: str = "n") -> MessageKey:
    return MessageKey(session, name, str(number), GUEST, HOST)


def remembered(made: Sessions) -> int:
    return sum(len(each.pushed) + len(each.pulled) for each in made._sessions.values())


@pytest.mark.parametrize("session_count", [1, 7])
def test_the_latest_messages_are_remembered_and_older_ones_forgotten(session_count: int) -> None:
    made = Sessions()
    keys = [message(number, f"s{number % session_count}") for number in range(10 * MOST)]
    for key in keys:
        made.note_push((key,))
        made.note_pull(key)
        assert remembered(made) <= MOST
    for key in keys[-MOST // 4 :]:
        assert made.was_pulled(key)
        with pytest.raises(GatewayError) as refused:
            made.note_push((key,))
        assert refused.value.code is ErrorCode.DUPLICATE_PUSH
    assert not made.was_pulled(keys[0])
    made.note_push((keys[0],))


def test_a_session_that_floods_costs_no_other_what_is_remembered_of_it() -> None:
    made = Sessions()
    for number in range(10):
        made.note_push((message(number, "quiet"),))
        made.note_pull(message(number, "quiet"))
    for number in range(10 * MOST):
        made.note_push((message(number, "floods"),))
    for number in range(10):
        assert made.was_pulled(message(number, "quiet"))
    assert remembered(made) <= MOST
    made.leave("floods", GUEST)
    assert remembered(made) == 20
    # the next that floods is found as well
    for number in range(10 * MOST):
        made.note_push((message(number, "another"),))
    assert remembered(made) <= MOST
    assert made.was_pulled(message(0, "quiet"))


def test_messages_with_long_names_count_as_several() -> None:
    made = Sessions()
    for number in range(MOST):
        made.note_push((message(number, name="n" * MOST_NAME_CHARACTERS),))
    assert remembered(made) <= MOST // 4


def test_nothing_is_kept_of_sessions_whose_parties_have_left_nor_of_one_that_is_forgotten() -> None:
    made = Sessions()
    for number in range(50):
        made.note_push((message(number, f"s{number}"),))
        made.note_pull(message(number, f"s{number}"))
    for number in range(50):
        made.leave(f"s{number}", GUEST)
        made.leave(f"s{number}", HOST)
    assert (made.count, made._units) == (0, 0)
    for number in range(10 * MOST):
        made.note_push((message(number, f"s{number}"),))
    assert made.count <= MOST


def test_a_push_that_came_to_nothing_may_be_made_again_also_when_many_followed() -> None:
    made = Sessions()
    for _ in range(3 * MOST):
        made.note_push((message(0),))
        made.forget_push(message(0))
    made.note_push((message(0),))
    with pytest.raises(GatewayError):
        made.note_push((message(0),))


def test_a_push_that_was_not_delivered_is_refused_when_it_is_made_again_also_after_its_task_was_told() -> None:
    records: list[AnyRecord] = []
    sessions = Sessions()
    sessions.record = records.append
    push = Push("task", 7)
    assert sessions.note_push((message(1), message(2)), push) == (message(1), message(2))
    sessions.push_not_delivered(message(1), ErrorCode.MESSAGE_LOST, "its memory is gone")
    # this run, the next one, and one whose journal was written anew
    for of_run in (sessions, replayed(records), replayed(replayed(records).records())):
        with pytest.raises(FedRDMAError):
            of_run.raise_push_failure("s", GUEST)
        for again in (False, True):
            with pytest.raises(FedRDMAError) as caught:
                of_run.note_push((message(1),), push, again=again)
            assert caught.value.code is ErrorCode.MESSAGE_LOST
        # the run after that, which has nobody to tell
        with pytest.raises(FedRDMAError):
            replayed(of_run.records()).note_push((message(1),), push)
        assert of_run.note_push((message(2),), push) == ()


def replayed(records: Iterable[AnyRecord]) -> Sessions:
    """What the next run knows."""
    return replay(list(map(encode_record, records))).sessions
