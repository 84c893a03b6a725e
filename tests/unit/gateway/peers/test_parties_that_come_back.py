"""A party that left its session and joins it again is told what was dropped by then, and so is its sender."""

from __future__ import annotations

from typing import Any

import pytest

from fedrdma_fate.gateway.messages.sessions import Push
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Refused
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import BODY, Play, peer_of, pull, sent_by, work

SIZES = [100, len(BODY)]


def sessions(twin: Twin, site: str) -> Any:
    return twin.halves[site].context.mailbox.sessions


def push(twin: Twin, size: int) -> MessageKey:
    """As a task of a's does: its gateway remembers it."""
    key = twin.put("a", "m", BODY[:size])
    assert key is not None
    sessions(twin, "a").note_push((key,), Push("task"))
    return key


def leave(twin: Twin, site: str) -> None:
    twin.halves[site].context.mailbox.leave("s", PARTIES[site])


def join(twin: Twin, site: str) -> None:
    twin.halves[site].context.mailbox.join("s", PARTIES[site], PARTIES.values())


async def both_are_told_when_it_is_back(twin: Twin, key: MessageKey) -> None:
    """The message's party joins its session again, and pulls; before, nobody is told anything."""
    # nobody waits for it
    sessions(twin, "a").raise_push_failure("s", key.source)
    join(twin, "b")
    waits = pull(twin, key)
    await work(twin)
    with pytest.raises(FedRDMAError) as told:
        await waits
    assert told.value.code is ErrorCode.MESSAGE_LOST
    with pytest.raises(FedRDMAError) as told:
        sessions(twin, "a").raise_push_failure("s", key.source)
    assert told.value.code is ErrorCode.MESSAGE_LOST


@pytest.mark.parametrize("size", SIZES)
def test_both_ends_are_told_of_a_message_that_came_while_its_party_was_away(play: Play, size: int) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        leave(twin, "b")
        key = push(twin, size)
        await work(twin)
        await both_are_told_when_it_is_back(twin, key)

    play(scenario)


@pytest.mark.parametrize("size", SIZES)
def test_both_ends_are_told_of_a_message_that_waited_when_its_party_left(play: Play, size: int) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        join(twin, "b")
        key = push(twin, size)
        await work(twin)
        leave(twin, "b")
        await work(twin)
        await both_are_told_when_it_is_back(twin, key)

    play(scenario)


def test_nobody_is_told_of_a_message_that_its_party_had_before_it_left(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        join(twin, "b")
        key = push(twin, 100)
        waits = pull(twin, key)
        await work(twin)
        assert await waits == BODY[:100]
        leave(twin, "b")
        join(twin, "b")
        await work(twin)
        sessions(twin, "a").raise_push_failure("s", key.source)
        assert not peer_of(twin, "a").sending.has_to_tell

    play(scenario)


def test_they_are_told_by_the_next_channel_where_there_was_none_when_the_party_came_back(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        leave(twin, "b")
        key = push(twin, 100)
        await work(twin)
        await twin.lose_control("a")
        await twin.lose_control("b")
        join(twin, "b")
        waits = pull(twin, key)
        await twin.connect()
        await work(twin)
        with pytest.raises(FedRDMAError):
            await waits
        with pytest.raises(FedRDMAError):
            sessions(twin, "a").raise_push_failure("s", key.source)

    play(scenario)


@pytest.mark.parametrize("size", SIZES)
def test_what_came_too_late_in_an_earlier_use_of_the_session_is_no_failure_of_the_next(play: Play, size: int) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        leave(twin, "b")
        push(twin, size)
        await work(twin)
        leave(twin, "a")
        join(twin, "a")
        join(twin, "b")
        await work(twin)
        waits = pull(twin, push(twin, size))
        await work(twin)
        assert await waits == BODY[:size]
        sessions(twin, "a").raise_push_failure("s", PARTIES["a"])

    play(scenario)


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_the_next_use_that_is_on_its_way_by_then_is_not_told_to_be_lost(play: Play, size: int) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        leave(twin, "b")
        push(twin, size)
        await work(twin)
        leave(twin, "a")
        join(twin, "a")
        key = push(twin, size)
        # before that has come, and after b asks about the one before it
        join(twin, "b")
        waits = pull(twin, key)
        await work(twin)
        assert await waits == BODY[:size]
        sessions(twin, "a").raise_push_failure("s", PARTIES["a"])
        assert not peer_of(twin, "a").sending.has_to_tell

    play(scenario)


def test_nobody_is_asked_about_messages_of_a_session_that_is_over_or_of_a_party_that_stays_away(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        leave(twin, "b")
        push(twin, 100)
        await work(twin)
        mailbox = twin.halves["b"].context.mailbox
        mailbox.join("s", PARTIES["a"], None)
        mailbox.join("other", PARTIES["b"], None)
        assert sent_by(twin, "b", Refused) == []
        mailbox.end("s", "the test ended it")
        assert len(mailbox._late) == 0

    play(scenario)
