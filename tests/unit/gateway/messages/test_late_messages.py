"""Messages that came for a party that had left are known until it is back, as far as there are not too many."""

from __future__ import annotations

from fedrdma_fate.gateway.messages.budget import NAME_CHARACTERS
from fedrdma_fate.gateway.messages.late_messages import MOST_LATE, LateMessage, LateMessages
from fedrdma_fate.wire.frames import MessageKey, Party

GUEST, HOST = Party("guest", "9999"), Party("host", "10000")


def late(name: str, session: str = "s", destination: Party = HOST, transfer: int = 1, origin: str = "a") -> LateMessage:
    return LateMessage(MessageKey(session, name, "t", GUEST, destination), origin, transfer)


def test_a_party_gets_its_own_once_and_in_their_order() -> None:
    messages = LateMessages()
    for each in (late("1"), late("2"), late("3", "s2"), late("4", destination=GUEST)):
        messages.add(each)
    assert messages.take("s", HOST) == [late("1"), late("2")]
    assert messages.take("s", HOST) == []
    assert len(messages) == 2


def test_of_a_message_that_came_twice_the_last_transfer_is_known() -> None:
    messages = LateMessages()
    messages.add(late("1"))
    messages.add(late("1", transfer=2))
    assert messages.take("s", HOST) == [late("1", transfer=2)]


def test_a_session_that_is_over_leaves_nothing() -> None:
    messages = LateMessages()
    messages.add(late("1"))
    messages.add(late("1", "s2"))
    messages.end("s")
    assert messages.take("s", HOST) == []
    assert len(messages) == 1


def test_the_oldest_are_forgotten_where_there_are_too_many() -> None:
    messages = LateMessages()
    for number in range(MOST_LATE + 2):
        messages.add(late(str(number)))
    assert len(messages) == MOST_LATE
    assert messages.take("s", HOST)[0] == late("2")


def test_no_site_pushes_out_those_of_another() -> None:
    messages = LateMessages()
    messages.add(late("1", origin="b"))
    for number in range(MOST_LATE + 1):
        messages.add(late(str(number)))
    assert late("1", origin="b") in messages.take("s", HOST)


def test_one_with_long_names_counts_as_several() -> None:
    messages = LateMessages()
    for number in range(MOST_LATE):
        messages.add(late(f"{number} {'x' * NAME_CHARACTERS}"))
    assert len(messages) == MOST_LATE // 2


def test_what_is_not_to_be_asked_about_any_more_is_forgotten_of_its_site_alone() -> None:
    messages = LateMessages()
    for origin in ("a", "b"):
        messages.add(late("1", origin=origin))
    messages.forget("a", late("1").key)
    messages.forget("c", late("1").key)
    assert list(messages) == [late("1", origin="b")]
