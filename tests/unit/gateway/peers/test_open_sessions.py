"""A session is open to the parties that its own tasks name when they attach, and to nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import ControlFrame, Inline, Lend, MessageKey, Offer, Party, Refused, Undeliverable
from tests.support.outside import examples
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import BODY, Play, key_to, pull, sent_by, work

OTHER = Party("arbiter", "9")
"""In the session; not the party of the peer."""


def example(kind: type[Any], key: MessageKey, number: int) -> Any:
    """A frame of this kind about a message."""
    (made, _), *_ = (given for name, given in examples(ControlFrame) if name == kind.__struct_config__.tag)
    wanted = {"key": key, "transport": "tcp", "transfer": number, "body": b"x", "grant": 10**6}
    return type(made)(**{name: wanted.get(name, getattr(made, name)) for name in made.__struct_fields__})


@pytest.mark.parametrize("kind", [Inline, Offer, Lend, Undeliverable])
def test_a_frame_of_a_session_that_is_not_open_to_its_party_is_refused_and_leaves_nothing(
    play: Play, kind: type[Any]
) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        half = twin.halves["b"]
        half.context.mailbox.join("s", PARTIES["b"], [PARTIES["b"], OTHER])
        key = key_to(twin, PARTIES["b"])
        half.peer._on_frame(example(kind, key, 77))
        await twin.turn("b")
        await twin.settle()
        assert half.context.mailbox.summary()["messages"] == 0
        assert half.context.mailbox._failed == {}
        assert not half.peer.receiving._announced
        codes = [frame.code for frame in sent_by(twin, "b", Refused)]
        assert codes == ([] if kind is Undeliverable else [ErrorCode.SESSION_NOT_OPEN.value])

    play(scenario)


@pytest.mark.parametrize("size", [100, len(BODY)])
def test_what_comes_before_the_task_is_its_when_it_names_the_sender(play: Play, size: int) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        key = twin.put("a", "m", BODY[:size])
        await work(twin)
        mailbox = twin.halves["b"].context.mailbox
        assert mailbox.summary()["messages"] == 1
        mailbox.join("s", PARTIES["b"], PARTIES.values())
        assert await pull(twin, key) == BODY[:size]

    play(scenario)


@pytest.mark.parametrize("size", [100, len(BODY)])
def test_what_comes_before_the_task_is_dropped_when_it_does_not_and_both_ends_are_told(play: Play, size: int) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        key = twin.put("a", "m", BODY[:size])
        assert key is not None
        await work(twin)
        b = twin.halves["b"]
        b.context.mailbox.join("s", PARTIES["b"], [PARTIES["b"], OTHER])
        await work(twin)
        assert b.context.mailbox.summary()["messages"] == 0
        assert b.context.receive_pool.stats().slots == b.credits_held()
        with pytest.raises(FedRDMAError) as told:
            twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", key.source)
        assert told.value.code is ErrorCode.SESSION_NOT_OPEN

    play(scenario)


def test_a_payload_that_is_on_its_way_when_the_task_attaches_is_dropped_when_it_has_come(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        await work(twin)
        twin.put("a", "m", BODY)
        b = twin.halves["b"]
        while not b.peer.receiving._announced:
            await twin.turn("b")
            await twin.carry("b")
            await twin.turn("a")
            await twin.carry("a")
        b.context.mailbox.join("s", PARTIES["b"], [PARTIES["b"]])
        await work(twin)
        assert b.context.mailbox.summary()["messages"] == 0
        assert b.context.receive_pool.stats().slots == b.credits_held()

    play(scenario)


def test_a_second_task_of_the_party_adds_those_whom_it_names(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        sessions = twin.halves["b"].context.mailbox.sessions
        sessions.join("s", PARTIES["b"], [OTHER])
        assert not sessions.admits(key_to(twin, PARTIES["b"]))
        sessions.join("s", PARTIES["b"], [PARTIES["a"]])
        assert sessions.admits(key_to(twin, PARTIES["b"]))
        await asyncio.sleep(0)

    play(scenario)


def test_another_session_and_another_party_are_closed_by_themselves(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        sessions = twin.halves["b"].context.mailbox.sessions
        sessions.join("s", PARTIES["b"], [OTHER])
        assert sessions.admits(MessageKey("t", "m", "0", PARTIES["a"], PARTIES["b"]))
        sessions.leave("s", PARTIES["b"])
        assert sessions.is_closed("s", PARTIES["b"])
        await asyncio.sleep(0)

    play(scenario)


def test_who_does_not_know_the_parties_takes_messages_of_all(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        twin.halves["b"].context.mailbox.join("s", PARTIES["b"], None)
        key = twin.put("a", "m", b"x")
        await work(twin)
        assert await pull(twin, key) == b"x"

    play(scenario)


def test_a_peer_that_refuses_what_was_lent_or_delivered_twice_breaks_nothing(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        await twin.connect()
        twin.put("a", "m", b"x")
        await work(twin)
        a = twin.halves["a"]
        (transfer,) = a.peer.sending._delivered
        for _ in range(2):
            a.peer._on_frame(Refused(transfer, "FR611", "no"))
        assert a.peer.connected

    play(scenario)
