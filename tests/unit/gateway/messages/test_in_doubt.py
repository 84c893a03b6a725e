"""What a task of an earlier run has pulled, and may not have got."""

from __future__ import annotations

from typing import Any

import pytest

from fedrdma_fate.gateway.journal_records import Missed
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.unit.gateway.messages.test_mailbox import HOST, Desk, key, run


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("is_first", [True, False], ids=["it comes before the task", "it comes after the task"])
@pytest.mark.parametrize("got", [True, False])
def test_a_message_in_doubt_is_nobodys_until_its_task_has_said_whether_it_has_it(
    desk: Desk, got: bool, is_first: bool
) -> None:
    async def scenario() -> None:
        desk.mailbox.sessions.note_pull(key())
        desk.mailbox.doubt(key())
        if is_first:
            assert desk.mailbox.deliver(desk.message())
            assert not desk.mailbox.deliver(desk.message()), "one is enough"
            with pytest.raises(GatewayError) as caught:
                await desk.mailbox.take(key(), 0)
            assert caught.value.code is ErrorCode.DUPLICATE_PULL
        desk.mailbox.settle(key(), got=got)
        if not is_first:
            assert desk.mailbox.deliver(desk.message()) is not got
        if not got:
            (await desk.mailbox.take(key(), 0)).discard()
        with pytest.raises(GatewayError) as again:
            await desk.mailbox.take(key(), 0)
        assert again.value.code is ErrorCode.DUPLICATE_PULL
        assert desk.slots == 0
        assert desk.mailbox.summary()["message_bytes"] == 0

    run(scenario())


@pytest.mark.parametrize("got", [True, False])
def test_who_has_not_got_a_message_in_doubt_is_told_that_it_will_not_come(desk: Desk, got: bool) -> None:
    async def scenario() -> None:
        desk.mailbox.sessions.note_pull(key())
        desk.mailbox.doubt(key())
        desk.mailbox.fail(key(), ErrorCode.MESSAGE_LOST.value, "its memory is gone")
        desk.mailbox.settle(key(), got=got)
        with pytest.raises(GatewayError) as caught:
            await desk.mailbox.take(key(), None)
        assert caught.value.code is (ErrorCode.DUPLICATE_PULL if got else ErrorCode.MESSAGE_LOST)

    run(scenario())


@pytest.mark.parametrize("whole_session", [True, False])
def test_a_message_in_doubt_goes_with_its_party_or_its_session(desk: Desk, whole_session: bool) -> None:
    async def scenario() -> None:
        written = list[Any]()
        for name in ("here", "away"):
            desk.mailbox.sessions.note_pull(key(name))
            desk.mailbox.doubt(key(name))
        assert desk.mailbox.deliver(desk.message("here"))
        if whole_session:
            desk.mailbox.end("s", "a test ends it")
        else:
            desk.mailbox.leave("s", HOST)
        assert desk.slots == 0
        desk.mailbox.sessions.record = written.append
        for name in ("here", "away"):
            desk.mailbox.settle(key(name), got=False)
            assert not desk.mailbox.deliver(desk.message(name))
        # whom nobody has pulled is asked about
        assert [each for each in written if not isinstance(each, Missed)] == []
        assert desk.slots == 0

    run(scenario())
