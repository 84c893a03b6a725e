"""The mailbox: each message is handed out once, and nothing is lost where things happen at the same time."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.gateway.messages.closed_parties import MOST_CLOSED
from fedrdma_fate.gateway.messages.mailbox import Mailbox
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.sessions import Sessions
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.spill import Spilled
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError, TransferError
from fedrdma_fate.wire.frames import MessageKey, Party
from tests.support.endpoints import HeapRegion

GUEST, HOST = Party("guest", "1"), Party("host", "2")


def key(name: str = "model", session: str = "s") -> MessageKey:
    return MessageKey(session, name, "0", GUEST, HOST)


class Desk:
    """A mailbox, and a pool whose slots messages lie in."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.pool = SlotPool(HeapRegion(16 * 4096), "receive")

    def message(self, name: str = "model", session: str = "s") -> Message:
        lease = self.pool.lease(4096, "peer")
        assert lease is not None
        return Message(key(name, session), "bytes", 4096, lease=lease)

    @property
    def slots(self) -> int:
        return self.pool.stats().slots


@pytest.fixture
def desk() -> Desk:
    return Desk()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_message_that_is_here_is_handed_out_at_once(desk: Desk) -> None:
    async def scenario() -> None:
        message = desk.message()
        assert desk.mailbox.deliver(message)
        assert await desk.mailbox.take(key(), None) is message

    run(scenario())


def test_a_pull_waits_for_its_message(desk: Desk) -> None:
    async def scenario() -> None:
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        assert desk.mailbox.waiting_pulls == 1
        message = desk.message()
        desk.mailbox.deliver(message)
        assert await pull is message
        assert desk.mailbox.waiting_pulls == 0

    run(scenario())


def test_a_pull_that_never_comes_times_out_and_may_be_tried_again(desk: Desk) -> None:
    async def scenario() -> None:
        with pytest.raises(GatewayError) as caught:
            await desk.mailbox.take(key(), 0.01)
        assert caught.value.code is ErrorCode.PULL_TIMEOUT
        assert "fedrdma status" in caught.value.remedy
        message = desk.message()
        desk.mailbox.deliver(message)
        assert await desk.mailbox.take(key(), 0.01) is message

    run(scenario())


def test_a_message_that_comes_in_the_moment_of_the_time_out_is_not_lost(desk: Desk) -> None:
    async def scenario() -> None:
        pull = asyncio.create_task(desk.mailbox.take(key(), 0.01))
        await settle()
        message = desk.message()
        # the very turn of the loop in which the time-out is due
        asyncio.get_running_loop().call_later(0.01, desk.mailbox.deliver, message)
        try:
            assert await pull is message
        except GatewayError:
            assert await desk.mailbox.take(key(), 0.01) is message

    run(scenario())


def test_a_message_whose_task_goes_away_just_then_stays_for_another(desk: Desk) -> None:
    async def scenario() -> None:
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        message = desk.message()
        desk.mailbox.deliver(message)
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        assert await desk.mailbox.take(key(), None) is message

    run(scenario())


@pytest.mark.parametrize("first_pulled", [True, False])
def test_a_second_message_of_the_same_key_is_dropped(desk: Desk, first_pulled: bool) -> None:
    async def scenario() -> None:
        desk.mailbox.deliver(desk.message())
        if first_pulled:
            (await desk.mailbox.take(key(), None)).discard()
        assert not desk.mailbox.deliver(desk.message())
        assert desk.slots == (0 if first_pulled else 1)

    run(scenario())


def test_a_second_message_between_the_first_and_its_pull_is_dropped(desk: Desk) -> None:
    async def scenario() -> None:
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        first = desk.message()
        assert desk.mailbox.deliver(first)
        assert not desk.mailbox.deliver(desk.message())
        assert await pull is first
        assert desk.slots == 1

    run(scenario())


def test_a_message_is_pulled_once(desk: Desk) -> None:
    async def scenario() -> None:
        desk.mailbox.deliver(desk.message())
        await desk.mailbox.take(key(), None)
        with pytest.raises(GatewayError) as caught:
            await desk.mailbox.take(key(), None)
        assert caught.value.code is ErrorCode.DUPLICATE_PULL

    run(scenario())


def test_two_pulls_of_one_message_at_a_time_are_one_too_many(desk: Desk) -> None:
    async def scenario() -> None:
        first = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        with pytest.raises(GatewayError) as caught:
            await desk.mailbox.take(key(), None)
        assert caught.value.code is ErrorCode.DUPLICATE_PULL
        desk.mailbox.deliver(desk.message())
        await first

    run(scenario())


def test_sessions_do_not_mix(desk: Desk) -> None:
    async def scenario() -> None:
        one, other = desk.message(session="one"), desk.message(session="other")
        desk.mailbox.deliver(one)
        desk.mailbox.deliver(other)
        assert await desk.mailbox.take(key(session="other"), None) is other
        assert await desk.mailbox.take(key(session="one"), None) is one

    run(scenario())


# --- messages that will not come ---


def test_who_waits_and_who_will_wait_are_told_that_a_message_will_not_come(desk: Desk) -> None:
    async def scenario() -> None:
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        desk.mailbox.fail(key(), "FR302", "no progress")
        with pytest.raises(TransferError) as waiting:
            await pull
        with pytest.raises(TransferError) as later:
            await desk.mailbox.take(key(), None)
        for error in (waiting.value, later.value):
            assert error.code is ErrorCode.IDLE_TIMEOUT
            assert "no progress" in error.message

    run(scenario())


def test_a_message_that_comes_after_all_makes_its_failure_forgotten(desk: Desk) -> None:
    async def scenario() -> None:
        desk.mailbox.fail(key(), "FR303", "aborted")
        message = desk.message()
        desk.mailbox.deliver(message)
        assert await desk.mailbox.take(key(), None) is message

    run(scenario())


def test_a_failure_that_is_told_late_does_not_touch_a_message_that_has_come(desk: Desk) -> None:
    async def scenario() -> None:
        desk.mailbox.deliver(desk.message())
        desk.mailbox.fail(key(), "FR303", "aborted")
        await desk.mailbox.take(key(), None)
        desk.mailbox.fail(key(), "FR303", "aborted")
        with pytest.raises(GatewayError) as caught:
            await desk.mailbox.take(key(), None)
        assert caught.value.code is ErrorCode.DUPLICATE_PULL

    run(scenario())


# --- leaving ---


def test_what_waits_for_a_party_that_leaves_is_dropped_and_its_pulls_are_refused(desk: Desk) -> None:
    async def scenario() -> None:
        desk.mailbox.deliver(desk.message("one"))
        desk.mailbox.deliver(desk.message("one", session="other"))
        pull = asyncio.create_task(desk.mailbox.take(key("two"), None))
        await settle()
        assert desk.mailbox.leave("s", HOST) == 1
        with pytest.raises(GatewayError) as caught:
            await pull
        assert caught.value.code is ErrorCode.SESSION_CLOSED
        assert desk.slots == 1
        assert not desk.mailbox.deliver(desk.message("three"))
        assert desk.slots == 1

    run(scenario())


def test_a_pull_after_leaving_is_refused(desk: Desk) -> None:
    async def scenario() -> None:
        desk.mailbox.leave("s", HOST)
        with pytest.raises(GatewayError) as caught:
            await desk.mailbox.take(key(), None)
        assert caught.value.code is ErrorCode.SESSION_CLOSED

    run(scenario())


def test_leaving_in_the_moment_of_a_pull_gives_its_memory_back(desk: Desk) -> None:
    async def scenario() -> None:
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        desk.mailbox.deliver(desk.message())
        desk.mailbox.leave("s", HOST)
        with pytest.raises(GatewayError):
            await pull
        assert desk.slots == 0

    run(scenario())


# --- while a message is being spilled ---


def spilling(message: Message, target: Path, end: asyncio.Event) -> None:
    """As gateway.spilling does it, at the test's pace."""

    async def spill() -> None:
        await end.wait()
        target.write_bytes(b"x" * message.total_bytes)
        message.spilled = Spilled(target, message.total_bytes, os.open(target.parent, os.O_DIRECTORY))
        assert message.lease is not None
        message.lease.release()
        message.lease = None
        message.moving = None

    message.moving = asyncio.create_task(spill())


def test_a_pull_of_a_message_that_is_being_spilled_waits_for_the_spill(desk: Desk, tmp_path: Path) -> None:
    async def scenario() -> None:
        message, end = desk.message(), asyncio.Event()
        desk.mailbox.deliver(message)
        spilling(message, tmp_path / "spilled", end)
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        assert not pull.done()
        end.set()
        assert await pull is message
        place, descriptor, offset = message.locate()
        assert (place, offset, os.pread(descriptor, 2, 0)) == ("spilled", 0, b"xx")
        os.close(descriptor)
        assert desk.slots == 0

    run(scenario())


def test_a_pull_that_is_cancelled_during_the_spill_loses_nothing(desk: Desk, tmp_path: Path) -> None:
    async def scenario() -> None:
        message, end = desk.message(), asyncio.Event()
        desk.mailbox.deliver(message)
        spilling(message, tmp_path / "spilled", end)
        pull = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        pull.cancel()
        await settle()
        end.set()
        assert await desk.mailbox.take(key(), None) is message
        assert message.spilled is not None

    run(scenario())


def test_leaving_during_a_spill_removes_the_file_when_it_is_written(desk: Desk, tmp_path: Path) -> None:
    async def scenario() -> None:
        message, end = desk.message(), asyncio.Event()
        desk.mailbox.deliver(message)
        spilling(message, tmp_path / "spilled", end)
        desk.mailbox.leave("s", HOST)
        assert desk.slots == 1
        end.set()
        await settle()
        assert desk.slots == 0
        assert not (tmp_path / "spilled").exists()

    run(scenario())


def test_only_messages_in_the_region_that_nobody_spills_are_offered_for_spilling(desk: Desk, tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second, end = desk.message("one"), desk.message("two"), asyncio.Event()
        for message in (first, second):
            desk.mailbox.deliver(message)
        desk.mailbox.deliver(Message(key("small"), "bytes", 2, body=b"hi"))
        assert list(desk.mailbox.in_region(desk.pool.region)) == [first, second]
        spilling(first, tmp_path / "spilled", end)
        assert list(desk.mailbox.in_region(desk.pool.region)) == [second]
        assert list(desk.mailbox.in_region(HeapRegion(4096))) == []
        end.set()
        await settle()

    run(scenario())


def test_a_message_that_comes_in_the_moment_in_which_its_pull_is_refused_waits_for_the_next_pull(desk: Desk) -> None:
    async def scenario() -> None:
        refused = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        desk.mailbox.refuse_all(GatewayError(ErrorCode.GATEWAY_STOPPING, "the gateway stops"))
        message = desk.message()
        assert desk.mailbox.deliver(message)
        # it is here, and is not here twice
        assert not desk.mailbox.deliver(desk.message())
        with pytest.raises(GatewayError) as caught:
            await refused
        assert caught.value.code is ErrorCode.GATEWAY_STOPPING
        assert list(desk.mailbox.all_messages()) == [message]
        assert desk.slots == 1

    run(scenario())


def test_what_comes_back_of_an_earlier_use_of_its_name_takes_no_place_of_the_message_that_is_here(desk: Desk) -> None:
    async def scenario() -> None:
        earlier, later = desk.message(), desk.message()
        desk.mailbox.deliver(earlier)
        assert await desk.mailbox.take(key(), None) is earlier
        desk.mailbox.sessions.leave("s", HOST)
        desk.mailbox.sessions.join("s", HOST)
        assert desk.mailbox.deliver(later)
        # its task went away before it had it
        desk.mailbox.return_(earlier)
        assert desk.slots == 1
        assert await desk.mailbox.take(key(), None) is later

    run(scenario())


# --- sessions ---


def test_a_message_is_pushed_once_to_each_party() -> None:
    sessions = Sessions()
    sessions.note_push((key(),))
    with pytest.raises(GatewayError) as caught:
        sessions.note_push((key("other"), key()))
    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    # nothing of the refused push was noted
    sessions.note_push((key("other"),))


def test_one_push_does_not_name_a_party_twice() -> None:
    sessions = Sessions()
    with pytest.raises(GatewayError) as caught:
        sessions.note_push((key(), key()))
    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    sessions.note_push((key(),))


def test_a_failed_push_is_told_once_to_its_party_in_its_session() -> None:
    sessions = Sessions()
    failure = TransferError(ErrorCode.IDLE_TIMEOUT, "no progress")
    sessions.push_failed(key(), failure)
    sessions.raise_push_failure("s", HOST)
    sessions.raise_push_failure("other", GUEST)
    with pytest.raises(FedRDMAError) as caught:
        sessions.raise_push_failure("s", GUEST)
    assert caught.value is failure
    sessions.raise_push_failure("s", GUEST)


def test_a_session_is_forgotten_when_its_last_party_has_left() -> None:
    sessions = Sessions()
    for number in range(200):
        session = f"s{number}"
        sessions.note_push((key(session=session),))
        sessions.note_pull(key(session=session))
        sessions.push_failed(key(session=session), TransferError(ErrorCode.IDLE_TIMEOUT, "x"))
        sessions.leave(session, GUEST)
        assert sessions.count == 1
        sessions.leave(session, HOST)
        assert sessions.count == 0


def test_a_party_may_join_again_after_leaving() -> None:
    sessions = Sessions()
    sessions.leave("s", GUEST)
    assert sessions.is_closed("s", GUEST)
    assert not sessions.is_closed("s", HOST)
    sessions.join("s", GUEST)
    assert not sessions.is_closed("s", GUEST)


def test_of_parties_that_have_left_only_the_latest_are_remembered() -> None:
    sessions = Sessions()
    for number in range(MOST_CLOSED + 1):
        sessions.leave(f"s{number}", GUEST)
    assert not sessions.is_closed("s0", GUEST)
    assert sessions.is_closed("s1", GUEST)


def test_messages_that_come_again_and_again_do_not_fill_the_log(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedrdma_fate")

    async def scenario() -> None:
        assert desk.mailbox.deliver(desk.message("n" * 1000))
        for _ in range(500):
            assert not desk.mailbox.deliver(desk.message("n" * 1000))

    run(scenario())

    assert 0 < sum(len(record.getMessage()) for record in caplog.records) < 20 * 400


def test_a_failure_that_is_told_before_the_pull_has_had_its_turn_leaves_nothing(desk: Desk) -> None:
    async def scenario() -> None:
        pulling = asyncio.create_task(desk.mailbox.take(key(), None))
        await settle()
        message = desk.message()
        desk.mailbox.deliver(message)
        assert desk.mailbox.fail(key(), "FR303", "aborted", "b") == ""
        assert await pulling is message
        assert not desk.mailbox._failed

    run(scenario())
