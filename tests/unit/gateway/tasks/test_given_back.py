"""Messages that are kept for another get: when they wait again, and when nobody can have them any more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import msgspec
import pytest

from fedrdma_fate.client.protocol import Done, Forget, Get, GotInline, GotSlot, Leave, ReleaseLeases
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.gateway.tasks.socket import WithDescriptor, WithSequel
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import MessageKey
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import Play
from tests.unit.gateway.tasks.test_returning import ATTACH, Served

SOURCE = PARTIES["b"]
SMALL, LARGE, OTHER = (MessageKey("s", name, "t", SOURCE, PARTIES["a"]) for name in ("t#0#0", "t#1#0", "u#0#0"))


@pytest.fixture(autouse=True)
def _no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin's pools are numbers alone: no task could map anything of them."""
    monkeypatch.setattr(Message, "locate", lambda _message: ("region", os.open(os.devnull, os.O_RDONLY), 0))


def deliver(served: Served) -> None:
    mailbox = served.context.mailbox
    for number, key in enumerate((SMALL, OTHER)):
        mailbox.deliver(Message(key, "partition", 5, body=b"small", origin="b", transfer=number))
    lease = served.context.receive_pool.lease(100_000, "peer:b")
    assert lease is not None
    mailbox.deliver(Message(LARGE, "partition", 100_000, lease=lease, origin="b", transfer=9))


async def got(task: TaskConversation, key: MessageKey, *, keeps: bool, number: int = 1) -> int:
    """Get a message; its lease, 0 where it came inline."""
    answering = task.answer(Get(key.name, key.tag, key.source, 0.1, number=number, keeps=keeps))
    assert asyncio.iscoroutine(answering)
    answer = await answering
    if isinstance(answer, WithSequel):
        assert isinstance(answer.reply, GotInline)
        answer.then()
        return 0
    assert isinstance(answer, WithDescriptor)
    assert isinstance(answer.reply, GotSlot)
    os.close(answer.descriptor)
    return answer.reply.lease


def play_with(scenario: Callable[[Served, TaskConversation, TaskConversation], object], play: Play) -> None:
    async def whole(twin: Twin) -> None:
        served = Served(twin)
        deliver(served)
        task, other = served.attach(), served.attach(msgspec.structs.replace(ATTACH, client="other"))
        await scenario(served, task, other)  # type: ignore[misc]
        task.end()
        other.end()

    play(whole)


async def code_of_get(task: TaskConversation, key: MessageKey) -> ErrorCode | None:
    try:
        await got(task, key, keeps=True)
    except FedRDMAError as error:
        return error.code
    return None


@pytest.mark.parametrize("key", [SMALL, LARGE], ids=["inline", "slot"])
def test_a_kept_message_is_there_for_another_task_until_it_is_forgotten(play: Play, key: MessageKey) -> None:
    async def scenario(served: Served, task: TaskConversation, other: TaskConversation) -> None:
        mailbox = served.context.mailbox
        for who in (task, other, task):
            if lease := await got(who, key, keeps=True):
                # another task may not write over what this one reads, nor have it taken away by it
                assert not mailbox.has(key)
                assert await code_of_get(other, key) is ErrorCode.DUPLICATE_PULL
                who.answer(ReleaseLeases((lease,)))
            assert mailbox.has(key)

        assert task.answer(Forget("t#", "t", SOURCE)) == Done()

        assert not mailbox.has(key)
        assert served.context.receive_pool.stats().slots == 0
        assert await code_of_get(other, key) is ErrorCode.DUPLICATE_PULL
        assert mailbox.has(OTHER)

    play_with(scenario, play)


def test_what_a_task_had_kept_waits_again_when_the_task_is_gone(play: Play) -> None:
    async def scenario(served: Served, task: TaskConversation, other: TaskConversation) -> None:
        await got(task, LARGE, keeps=True)

        task.end()

        assert served.context.mailbox.has(LARGE)
        assert await got(other, LARGE, keeps=False)

    play_with(scenario, play)


@pytest.mark.parametrize("key", [SMALL, LARGE], ids=["inline", "slot"])
def test_a_message_that_is_not_kept_goes_with_its_get(play: Play, key: MessageKey) -> None:
    async def scenario(served: Served, task: TaskConversation, other: TaskConversation) -> None:
        if lease := await got(task, key, keeps=True):
            task.answer(ReleaseLeases((lease,)))
        if lease := await got(task, key, keeps=False, number=2):
            task.answer(ReleaseLeases((lease,)))

        assert not served.context.mailbox.has(key)
        assert await code_of_get(other, key) is ErrorCode.DUPLICATE_PULL

    play_with(scenario, play)


def test_what_is_given_back_when_its_party_has_left_is_dropped(play: Play) -> None:
    async def scenario(served: Served, task: TaskConversation, _other: TaskConversation) -> None:
        lease = await got(task, LARGE, keeps=True)
        task.answer(Leave())

        task.answer(ReleaseLeases((lease,)))

        assert served.context.mailbox.summary()["messages"] == 0
        assert served.context.receive_pool.stats().slots == 0

    play_with(scenario, play)


@pytest.mark.parametrize(
    "request_", [Forget("t#", "other", SOURCE), Forget("t#", "t", PARTIES["a"]), Forget("v#", "t", SOURCE)]
)
def test_other_messages_than_those_that_are_named_stay(play: Play, request_: Forget) -> None:
    async def scenario(served: Served, task: TaskConversation, _other: TaskConversation) -> None:
        assert task.answer(request_) == Done()

        assert served.context.mailbox.summary()["messages"] == 3

    play_with(scenario, play)
