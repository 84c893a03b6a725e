"""What a party leaves behind in its session is asked about when it is back, whenever it left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fedrdma_fate.gateway.messages.mailbox import Mailbox
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.wire.errors import FedRDMAError
from fedrdma_fate.wire.frames import MessageKey, Party
from tests.support.twin import run_virtually

GUEST, HOST = Party("guest", "1"), Party("host", "2")
KEY = MessageKey("s", "model", "t", GUEST, HOST)


def message() -> Message:
    return Message(KEY, "bytes", 4, body=b"1234", origin="a", transfer=1)


async def pulled_just_now(mailbox: Mailbox) -> asyncio.Task[Message]:
    """A pull whose message has come, and that has had no turn since."""
    pull = asyncio.create_task(mailbox.take(KEY, None))
    await asyncio.sleep(0.01)
    assert mailbox.deliver(message())
    return pull


def test_of_a_failure_at_its_own_site_a_party_that_is_back_is_told_once_more() -> None:
    mailbox, back = Mailbox(), list[Any]()
    mailbox.on_back = back.append
    for moment in ("before", "after"):
        if moment == "after":
            mailbox.leave("s", HOST)
        mailbox.fail(MessageKey("s", moment, "t", GUEST, HOST), "FR612", "the test lost it")
        # of other sites' theirs know
        mailbox.fail(MessageKey("s", f"{moment}-2", "t", GUEST, HOST), "FR612", "the test lost it", "a")
    mailbox.join("s", HOST, None)
    assert [late.key.name for late in back] == ["before", "after"]


@pytest.mark.parametrize("moment", ["before the pull has its turn", "as the pull ends", "before it is given back"])
def test_what_a_party_leaves_in_the_moment_of_its_pull_is_asked_about_when_it_is_back(moment: str) -> None:
    async def scenario() -> None:
        mailbox, back = Mailbox(), list[Any]()
        mailbox.on_back = back.append
        pull = await pulled_just_now(mailbox)
        if moment == "before it is given back":
            taken = await pull
            mailbox.leave("s", HOST)
            mailbox.return_(taken)
        else:
            mailbox.leave("s", HOST)
            if moment == "as the pull ends":
                pull.cancel()
            with pytest.raises((FedRDMAError, asyncio.CancelledError)):
                await pull
        mailbox.join("s", HOST, None)
        assert [late.key for late in back] == [KEY]

    run_virtually(scenario())


def test_what_is_dropped_with_its_session_is_asked_about_by_nobody() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        pull = await pulled_just_now(mailbox)
        mailbox.end("s", "a test ends it")
        with pytest.raises(FedRDMAError):
            await pull
        assert not list(mailbox._late)

    run_virtually(scenario())
