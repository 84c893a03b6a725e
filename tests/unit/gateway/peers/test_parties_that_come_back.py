"""A party that left its session and joins it again is told what was dropped by then, and so is its sender."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fedrdma_fate.gateway.messages.sessions import Push
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party, PartyBack, Refused, Undeliverable
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import BODY, Play, key_to, peer_of, pull, sent_by, work

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


NOT_SENT = [
    *((size, moment) for size in SIZES for moment in ("while it was away", "before it left")),
    # a small one would have come by then
    (len(BODY), "while its party is back"),
]


async def fails(twin: Twin, size: int) -> MessageKey:
    """A task of a's pushes what will not come; b is told by the next frame."""
    key = push(twin, size)
    peer_of(twin, "a").sending.give_up(ErrorCode.TRANSFER_ABORTED, "the test has given it up")
    return key


@pytest.mark.parametrize(("size", "moment"), NOT_SENT)
def test_a_party_that_is_back_is_told_at_once_of_what_will_not_come(play: Play, size: int, moment: str) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        join(twin, "b")
        if moment == "before it left":
            key = await fails(twin, size)
            await work(twin)
            leave(twin, "b")
        else:
            leave(twin, "b")
            key = await fails(twin, size)
            if moment == "while it was away":
                await work(twin)
        for _ in range(2):
            # a task that begins anew may do so more than once
            join(twin, "b")
            waits = pull(twin, key)
            await work(twin)
            with pytest.raises(FedRDMAError) as told:
                await waits
            assert told.value.code is ErrorCode.TRANSFER_ABORTED
            leave(twin, "b")

    play(scenario)


@pytest.mark.parametrize("is_here", [True, False], ids=["joined again", "still away"])
def test_what_failed_in_an_earlier_use_of_the_session_is_no_failure_of_the_next(play: Play, is_here: bool) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        join(twin, "b")
        await fails(twin, 100)
        await work(twin)
        leave(twin, "b")
        leave(twin, "a")
        if is_here:
            join(twin, "a")
        join(twin, "b")
        waits = pull(twin, key_to(twin, PARTIES["b"]))
        await work(twin)
        if is_here:
            # nor by a channel that comes later
            await twin.quiesce()
        assert not waits.done()
        join(twin, "a")
        push(twin, 100)
        await work(twin)
        assert await waits == BODY[:100]

    play(scenario)


@pytest.mark.parametrize("named", [[PARTIES["b"]], [PARTIES["b"], PARTIES["a"]], None])
def test_sites_that_the_session_does_not_name_hear_nothing_of_who_is_back(
    play: Play, named: list[Party] | None
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        for is_first in (True, False):
            if not is_first:
                leave(twin, "b")
            twin.halves["b"].context.mailbox.join("s", PARTIES["b"], named)
            is_told = not is_first and named != [PARTIES["b"]]
            assert sent_by(twin, "b", PartyBack) == ([PartyBack("s", PARTIES["b"])] if is_told else [])

    play(scenario)


def test_a_peer_of_an_earlier_version_is_not_asked(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        b = peer_of(twin, "b")
        b.hello = msgspec.structs.replace(b.hello, party_back=False)
        leave(twin, "b")
        join(twin, "b")
        assert sent_by(twin, "b", PartyBack) == []

    play(scenario)


def test_who_asks_again_and_again_pays_for_the_answers(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        join(twin, "a")
        for number in range(1000):
            twin.put("a", str(number), BODY[:10])
        peer_of(twin, "a").sending.give_up(ErrorCode.TRANSFER_ABORTED, "the test has given it up")
        b, before = peer_of(twin, "b"), asyncio.get_running_loop().time()
        for _ in range(100):
            b.send(PartyBack("s", PARTIES["b"]))
        await work(twin, 1)
        assert len(sent_by(twin, "a", Undeliverable)) < 50_000
        await asyncio.sleep(10)
        # 100,000 answers, at no more than 20,000 a second
        await work(twin, 200)
        assert asyncio.get_running_loop().time() - before >= 3

    play(scenario, limits={"frames_per_second": 20_000})


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
        assert not list(mailbox._late)

    play(scenario)
