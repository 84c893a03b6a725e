"""Tasks of an earlier run: who is let have what they had, and what becomes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fedrdma_fate.client.protocol import (
    CLIENT_PROTOCOL_VERSION,
    Attach,
    Commit,
    Done,
    Get,
    GoOn,
    GotInline,
    NotYet,
    PutInline,
    ReleaseLeases,
    ReturnLease,
)
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.journal_records import Came
from fedrdma_fate.gateway.messages.message import Message
from fedrdma_fate.gateway.messages.sessions import Pull
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.gateway.tasks.returning import Had, digest_of_secret
from fedrdma_fate.gateway.tasks.server import TaskServer
from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.gateway.tasks.socket import WithSequel
from fedrdma_fate.gateway.tasks.users import TaskUsers
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import MessageKey
from tests.support.twin import PARTIES, Twin
from tests.support.twin_play import Play

USER = 77
SECRET = b"only it knows it"
ATTACH = Attach(CLIENT_PROTOCOL_VERSION, "task", "s", PARTIES["a"], None, None, SECRET)
CAME = Came("task", digest_of_secret(SECRET), "s", PARTIES["a"], None, USER, 5)
SMALL = MessageKey("s", "small", "t", PARTIES["b"], PARTIES["a"])


class Served:
    """Gateway a, and its answers to a task."""

    def __init__(self, twin: Twin) -> None:
        half = twin.halves["a"]
        self.context = half.context
        peers = {"b": half.peer}
        users = TaskUsers.of_config(
            parse_config(
                {
                    "site": "a",
                    "parties": ["guest:1"],
                    "security": "off",
                    "task_users": [
                        {"user": str(USER), "parties": ["guest:1"]},
                        {"user": str(USER + 1), "parties": ["guest:1"]},
                    ],
                }
            )
        )

        async def no_probe(*_: Any) -> dict[str, object]:
            raise AssertionError

        ends = SessionEnds(self.context, peers)
        sending = {"b": half.peer.sending}
        self.server = TaskServer(self.context, sending, lambda _may: {}, no_probe, users, ends)

    def attach(self, attach: Attach = ATTACH, user: int = USER) -> TaskConversation:
        """A connection of a task that has attached."""
        conversation = self.server.begin(user)
        # the regions of a twin have no descriptor to pass
        conversation._task = self.server.attach(attach, user)
        return conversation


def small(body: bytes = b"hello") -> Message:
    return Message(SMALL, "bytes", len(body), body=body, origin="b", transfer=9)


@pytest.mark.parametrize(
    ("attach", "user", "code"),
    [
        (ATTACH, USER + 1, ErrorCode.USER_REFUSED),
        (msgspec.structs.replace(ATTACH, secret=b"another"), USER, ErrorCode.CLIENT_PROTOCOL),
        (msgspec.structs.replace(ATTACH, secret=b""), USER, ErrorCode.CLIENT_PROTOCOL),
        (msgspec.structs.replace(ATTACH, session="other"), USER, ErrorCode.CLIENT_PROTOCOL),
    ],
)
def test_who_is_not_the_task_is_refused_and_the_task_finds_what_it_had(
    play: Play, attach: Attach, user: int, code: ErrorCode
) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        lease = served.context.send_pool.lease(100_000, "task:task")
        assert lease is not None
        served.server.expect([Had(CAME, leases={3: lease})])
        with pytest.raises(GatewayError) as caught:
            served.attach(attach, user)
        assert caught.value.code is code
        back = served.attach()
        assert back.answer(GoOn((3,), 3)) == Done()
        assert back.answer(Commit(3, "m", "t", (PARTIES["b"],), "object")) == Done()
        back.end()

    play(scenario)


def test_a_task_that_no_journal_knows_cannot_go_on(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        stranger = served.attach()
        with pytest.raises(GatewayError) as caught:
            stranger.answer(GoOn((), 0))
        assert caught.value.code is ErrorCode.SESSION_CLOSED
        reason = served.context.mailbox.sessions.ended.reason(ATTACH.session)
        assert reason is not None
        assert "has lost its journal" in reason
        stranger.end()

    play(scenario)


@pytest.mark.parametrize("who", ["an earlier run has it", "another user's task is in it"])
def test_a_session_goes_on_where_one_says_that_its_task_was_forgotten_and(play: Play, who: str) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        if who == "an earlier run has it":
            served.server.sessions._of_earlier_run.add(ATTACH.session)
        else:
            served.server._tasks["other"] = served.attach().task
            served.server._tasks["other"].user += 1
        stranger = served.attach(msgspec.structs.replace(ATTACH, client="stranger"))
        with pytest.raises(GatewayError) as caught:
            stranger.answer(GoOn((), 0))
        assert caught.value.code is ErrorCode.SESSION_CLOSED
        assert served.context.mailbox.sessions.ended.reason(ATTACH.session) is None

    play(scenario)


@pytest.mark.parametrize("unanswered", [True, False])
def test_a_message_that_was_given_waits_again_if_it_did_not_come_and_else_is_over(play: Play, unanswered: bool) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        served.context.mailbox.sessions.note_pull(SMALL)
        served.server.expect([Had(CAME, small=[(small(), 4)])])
        back = served.attach()
        assert back.answer(GoOn((), 0, (4,) if unanswered else ())) == Done()
        got = back.answer(Get("small", "t", PARTIES["b"], 1.0, number=4))
        assert asyncio.iscoroutine(got)
        if unanswered:
            answer = await got
            assert isinstance(answer, WithSequel)
            assert answer.reply == GotInline("bytes", b"hello")
            answer.then()
        else:
            with pytest.raises(GatewayError) as caught:
                await got
            assert caught.value.code is ErrorCode.DUPLICATE_PULL
        assert served.context.mailbox.summary()["messages"] == 0
        back.end()

    play(scenario)


@pytest.mark.parametrize("end", ["not got", "got", "dead"])
def test_a_lent_message_that_was_pulled_waits_again_only_for_a_task_that_says_it_has_not_got_it(
    play: Play, end: str
) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        mailbox = served.context.mailbox
        mailbox.sessions.note_pull(SMALL, Pull("task", 4))
        mailbox.doubt(SMALL)
        served.server.expect([Had(CAME, pulls=[(SMALL, 4)])])
        assert mailbox.deliver(small())
        other = served.attach(msgspec.structs.replace(ATTACH, client="other"))
        # whichever number it says
        assert await code_of_get(other, 4) == ErrorCode.DUPLICATE_PULL
        with pytest.raises(GatewayError):
            other.answer(GoOn((), 0, (4,)))
        back = served.attach()
        if end == "dead":
            back.task.is_awaited = False
            back.end()
        else:
            assert back.answer(GoOn((), 0, (4,) if end == "not got" else ())) == Done()
            assert await code_of_get(back, 4) == (None if end == "not got" else ErrorCode.DUPLICATE_PULL)
            back.end()
        assert await code_of_get(other, 5) == ErrorCode.DUPLICATE_PULL
        assert mailbox.summary()["messages"] == 0
        other.end()

    play(scenario)


@pytest.mark.parametrize("unanswered", [True, False])
@pytest.mark.parametrize("how", [ReturnLease(3), ReleaseLeases((3,))])
def test_what_a_task_has_let_go_of_before_it_goes_on_is_in_no_doubt_any_more(
    play: Play, how: ReturnLease | ReleaseLeases, unanswered: bool
) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        mailbox = served.context.mailbox
        mailbox.sessions.note_pull(SMALL)
        lease = served.context.receive_pool.lease(100_000, "peer:b")
        assert lease is not None
        given = Message(SMALL, "bytes", 5, lease=lease, origin="b", transfer=9)
        served.server.expect([Had(CAME, messages={3: (given, 4)})])
        back = served.attach()
        back.answer(how)
        assert back.answer(GoOn((), 3, (4,) if unanswered else ())) == Done()
        waits = isinstance(how, ReturnLease)
        assert mailbox.has(SMALL) == waits
        assert served.context.receive_pool.stats().slots == (1 if waits else 0)
        back.end()

    play(scenario)


async def code_of_get(task: TaskConversation, number: int) -> ErrorCode | None:
    """Why a task does not get the small message; None where it does."""
    got = task.answer(Get("small", "t", PARTIES["b"], 0.1, number=number))
    assert asyncio.iscoroutine(got)
    try:
        answer = await got
    except FedRDMAError as error:
        return error.code
    assert isinstance(answer, WithSequel)
    answer.then()
    return None


def test_a_task_lets_wait_again_what_it_has_got_and_nothing_else(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        served.context.mailbox.deliver(small())
        task, other = served.attach(), served.attach(msgspec.structs.replace(ATTACH, client="other"))
        message = await served.context.mailbox.take(SMALL, 0)
        for number in (1, 2):
            task.task.received[number] = message
        task.task._summed[2] = None
        lease = served.context.send_pool.lease(100_000, "task:task")
        assert lease is not None
        sending = task.task.has(lease) + 10
        task.task.sending[sending] = task.task.sending.pop(sending - 10)
        # another's, a sum of an earlier run, a slot to write into, and none
        for who, number in ((other, 1), (task, 2), (task, sending), (task, 99)):
            with pytest.raises(FedRDMAError) as caught:
                who.answer(ReturnLease(number))
            assert caught.value.code is ErrorCode.LEASE_UNKNOWN
        assert served.context.mailbox.summary()["messages"] == 0
        assert task.answer(ReturnLease(1)) == Done()
        with pytest.raises(FedRDMAError):
            task.answer(ReturnLease(1))
        assert await code_of_get(other, 1) is None
        del task.task.received[2], task.task._summed[2]
        task.end()
        other.end()

    play(scenario)


def test_leases_that_a_task_has_not_got_or_has_given_back_go_back_and_later_ones_have_other_numbers(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        pool = served.context.send_pool
        leases = {number: pool.lease(100_000, "task:task") for number in (1, 2)}
        served.server.expect([Had(CAME, leases={n: lease for n, lease in leases.items() if lease is not None})])
        back = served.attach()
        assert back.answer(GoOn((1,), 8)) == Done()
        assert pool.stats().slots == 1
        assert back.task.new_lease() == 9
        back.end()
        assert pool.stats().slots == 0

    play(scenario)


def test_a_small_message_whose_task_went_away_before_it_had_it_waits_for_the_next(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        served.context.mailbox.deliver(small())
        first = served.attach()
        got = first.answer(Get("small", "t", PARTIES["b"], 1.0, number=1))
        assert asyncio.iscoroutine(got)
        answer = await got
        assert isinstance(answer, WithSequel)
        answer.undo()
        first.end()
        message = await served.context.mailbox.take(SMALL, 1.0)
        assert message.small_body() == b"hello"

    play(scenario)


def test_what_is_asked_for_again_is_done_once_and_other_bytes_are_refused(play: Play) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        task, to = served.attach(), (PARTIES["b"],)
        for again in (False, True, False):
            assert task.answer(PutInline("m", "t", to, "bytes", b"x", again)) == Done()
        assert twin.halves["a"].peer.sending.pending == 1
        for again in (False, True):
            with pytest.raises(FedRDMAError) as caught:
                task.answer(PutInline("m", "t", to, "bytes", b"other", again))
            assert caught.value.code is ErrorCode.DUPLICATE_PUSH
        # a large one, whose lease was given away with the first
        lease = served.context.send_pool.lease(100_000, "task:task")
        assert lease is not None
        number = task.task.has(lease)
        commit = Commit(number, "n", "t", to, "object")
        assert task.answer(commit) == Done()
        assert task.answer(msgspec.structs.replace(commit, again=True)) == Done()
        unfinished = msgspec.structs.replace(commit, keep=True, unfinished=True, again=True)
        assert task.answer(unfinished) == NotYet(digests=True)
        with pytest.raises(FedRDMAError) as unknown:
            task.answer(commit)
        assert unknown.value.code is ErrorCode.LEASE_UNKNOWN
        other = served.attach(msgspec.structs.replace(ATTACH, client="other"))
        with pytest.raises(FedRDMAError):
            other.answer(msgspec.structs.replace(commit, again=True))
        task.end()
        other.end()

    play(scenario)
