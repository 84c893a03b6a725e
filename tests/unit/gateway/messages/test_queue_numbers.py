"""How far queues have come is known as long as their sessions last, whatever is forgotten of their messages."""

from __future__ import annotations

import pytest

from fedrdma_fate.gateway.journal.state import replay, summarise
from fedrdma_fate.gateway.journal_records import Left, Over, Pulled, Pushed, encode_record
from fedrdma_fate.gateway.messages import queue_numbers, sessions
from fedrdma_fate.gateway.messages.queue_numbers import QUEUE_TAG, End
from fedrdma_fate.gateway.messages.sessions import Sessions
from fedrdma_fate.wire.frames import MessageKey, Party

A, B = Party("guest", "1"), Party("host", "2")


def key(number: int | str, session: str = "s", name: str = "n", tag: str = QUEUE_TAG) -> MessageKey:
    return MessageKey(session, name, f"{tag}{number}", A, B)


@pytest.mark.parametrize("end", ["push", "pop"])
def test_a_queue_of_which_every_message_is_forgotten_goes_on_with_its_next_number(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_REMEMBERED", 8)
    state = Sessions()
    note = state.remember_push if end == "push" else state.note_pull
    for number in range(20):
        note(key(number))
    for number in range(10):
        note(key(number, tag="others"))
    assert state.pushed(key(19)) is None
    assert not state.was_pulled(key(19))
    assert state.queues.next(key(0), end) == 20


@pytest.mark.parametrize("end", ["push", "pop"])
def test_a_journal_that_was_compacted_after_messages_were_forgotten_knows_the_next_number(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_REMEMBERED", 8)
    record = Pushed if end == "push" else Pulled
    bodies = [encode_record(record(key(number))) for number in range(20)]
    bodies += [encode_record(record(key(number, tag="others"))) for number in range(10)]
    again = summarise(summarise(bodies))
    assert sum(b"osx queue" in body for body in again) == 0
    assert replay(again).sessions.queues.next(key(0), end) == 20


def test_a_journal_of_an_earlier_version_tells_the_numbers_by_its_messages() -> None:
    # what it forgot lay at the beginning
    state = replay([encode_record(Pushed(key(number))) for number in range(7, 12)])
    assert state.sessions.queues.next(key(0), "push") == 12


def test_a_message_that_was_not_popped_after_all_is_the_next_one_and_an_earlier_one_is_not() -> None:
    state = Sessions()
    for number in range(3):
        state.note_pull(key(number))
    state.forget_pull(key(1))
    assert state.queues.next(key(0), "pop") == 3
    state.forget_pull(key(2))
    assert state.queues.next(key(0), "pop") == 2


def test_a_push_that_came_to_nothing_does_not_give_its_number_to_another() -> None:
    state = Sessions()
    state.note_push((key(0),))
    state.forget_push(key(0))
    assert state.queues.next(key(0), "push") == 1


def test_a_party_that_leaves_takes_its_own_ends_along_and_a_session_that_is_over_all() -> None:
    state = Sessions()
    state.note_push((key(0),))
    state.note_pull(key(0))
    state.leave("s", A)
    assert (state.queues.next(key(0), "push"), state.queues.next(key(0), "pop")) == (None, 1)
    state.end("s", "over")
    assert state.queues.next(key(0), "pop") is None
    assert list(state.queues.records()) == []


@pytest.mark.parametrize("over", [Left("s", A), Over("s", "over")])
def test_what_is_over_leaves_no_number_in_a_journal(over: Left | Over) -> None:
    state = replay(map(encode_record, (Pushed(key(0)), over)))
    assert list(state.sessions.queues.records()) == []


def test_no_queue_is_forgotten_for_another_and_room_comes_with_the_end_of_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_numbers, "MOST_QUEUES", 3)
    state = Sessions()
    state.note_push((key(4, name="a"),))
    state.note_push((key(5, name="b" * 300, session="t"),))
    assert not state.queues.has_room(key(0, name="c"), "push")
    state.note_push((key(6, name="c"),))
    assert [state.queues.next(key(0, name=each), "push") for each in ("a", "c")] == [5, None]
    state.note_push((key(7, name="a"),))
    assert state.queues.next(key(0, name="a"), "push") == 8
    state.end("t", "over")
    assert state.queues.has_room(key(0, name="c"), "push")


@pytest.mark.parametrize("number", ["", "x", "-1", "1 ", "١", "9" * 30, "1.0"])
def test_a_tag_that_is_no_number_of_a_queue_counts_for_none(number: str) -> None:
    state = Sessions()
    state.note_pull(key(number))
    assert list(state.queues.records()) == []
