"""Large messages that are pushed again under the same name: the same bytes are the same push, others are refused."""

from __future__ import annotations

import inspect
import random
from typing import Any

import msgspec
import pytest

from fedrdma_fate.client.protocol import Begun, Commit, Done, NotYet, Written
from fedrdma_fate.core.digest import block_digest, blocks_of
from fedrdma_fate.gateway.messages.sessions import Push, Sessions
from fedrdma_fate.gateway.tasks import pushing as pushing_module
from fedrdma_fate.gateway.tasks.conversation import TaskConversation
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import MessageKey
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, Twin, run_virtually
from tests.support.twin_play import Play
from tests.unit.gateway.tasks.test_returning import ATTACH, Served

BODY = random.Random(3).randbytes(700_000)
OTHER = BODY[:-1] + bytes([BODY[-1] ^ 1])
KEY = MessageKey("s", "m", "t", PARTIES["a"], PARTIES["b"])


async def push(served: Served, task: TaskConversation, body: bytes, to: str = "b") -> Any:
    """Lease, write and commit, as `GatewayClient` does."""
    lease = served.context.send_pool.lease(len(body), "task:task")
    assert lease is not None
    lease.slot.view[:] = body
    commit = Commit(task.task.has(lease), "m", "t", (PARTIES[to],), "object")
    answer = task.answer(commit)
    return await answer if inspect.isawaitable(answer) else answer


async def refused(served: Served, task: TaskConversation, body: bytes, to: str = "b") -> str:
    with pytest.raises(FedRDMAError) as caught:
        await push(served, task, body, to)
    assert caught.value.code is ErrorCode.DUPLICATE_PUSH
    return caught.value.message


@pytest.fixture(params=[True, False], ids=["digested when it is committed", "digested when it is pushed again"])
def digested_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the payload is short enough for that."""
    if not request.param:
        monkeypatch.setattr(pushing_module, "DIGESTED_AT_COMMIT_BYTES", 0)
    return bool(request.param)


def test_what_is_still_here_is_looked_at_when_it_is_pushed_again(play: Play, digested_here: bool) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        sending = served.context.mailbox.sessions
        first, restarted = served.attach(), served.attach(msgspec.structs.replace(ATTACH, client="restarted"))
        assert await push(served, first, BODY) == Done()
        push_known = sending.pushed(KEY)
        assert push_known is not None
        assert (push_known.digest is not None) == digested_here
        assert "with other bytes" in await refused(served, restarted, OTHER)
        for task in (restarted, first):
            assert await push(served, task, BODY) == Done()
        assert twin.halves["a"].peer.sending.pending == 1
        await twin.quiesce()
        assert await twin.get(KEY) == BODY
        first.end()
        restarted.end()
        assert served.context.send_pool.stats().slots == 0

    play(scenario)


def test_what_was_delivered_is_known_by_its_digest_or_said_not_to_be(play: Play, digested_here: bool) -> None:
    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        task = served.attach()
        assert await push(served, task, BODY) == Done()
        await twin.quiesce()
        assert await twin.get(KEY) == BODY
        if digested_here:
            assert await push(served, task, BODY) == Done()
            assert "with other bytes" in await refused(served, task, OTHER)
        else:
            assert "is not known" in await refused(served, task, BODY)
        assert twin.halves["a"].peer.sending.pending == 0
        task.end()
        assert served.context.send_pool.stats().slots == 0

    play(scenario)


def test_one_for_a_party_of_this_site_that_nobody_has_pulled_is_looked_at_where_it_waits(
    play: Play, digested_here: bool
) -> None:
    del digested_here

    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        task = served.attach()
        assert await push(served, task, BODY, "a") == Done()
        assert await push(served, task, BODY, "a") == Done()
        assert "with other bytes" in await refused(served, task, OTHER, "a")
        assert served.context.mailbox.summary()["messages"] == 1
        task.end()

    play(scenario)


def test_one_that_was_pushed_before_is_not_begun_before_it_is_whole(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing_module, "DIGESTED_AT_COMMIT_BYTES", 0)

    async def scenario(twin: Twin) -> None:
        served = Served(twin)
        task = served.attach()
        await twin.quiesce()
        blocks = tuple(block_digest(BODY[start:end]) for start, end in blocks_of(len(BODY)))
        for expected in (Begun(digests=True), NotYet(digests=True)):
            lease = served.context.send_pool.lease(len(BODY), "task:task")
            assert lease is not None
            number = task.task.has(lease)
            commit = Commit(number, "m", "t", (PARTIES["b"],), "object", keep=True)
            assert task.answer(msgspec.structs.replace(commit, unfinished=True)) == expected
            lease.slot.view[:] = BODY
            assert task.answer(Written(number, 0, blocks)) == Done()
            if expected == NotYet(digests=True):
                answer = task.answer(msgspec.structs.replace(commit, keep=False))
                assert (await answer if inspect.isawaitable(answer) else answer) == Done()
            else:
                task.task.release(number)
        assert twin.halves["a"].peer.sending.pending == 1
        task.end()

    play(scenario)


def test_the_next_run_of_a_killed_gateway_knows_what_was_the_same(tmp_path: Any) -> None:
    async def scenario() -> None:
        twin = KeptTwin(tmp_path)
        try:
            await twin.connect()
            key = twin.push("a", "m", BODY)
            await twin.quiesce()
            assert await twin.get(key) == BODY
            twin.kill("a")
            await twin.restart("a")
            assert twin.push("a", "m", BODY) == key
            assert twin.halves["a"].peer.sending.pending == 0
            with pytest.raises(GatewayError, match="with other bytes"):
                twin.push("a", "m", OTHER)
        finally:
            twin.close()

    run_virtually(scenario())


def test_a_digest_that_becomes_known_later_is_written_down_once_and_changes_no_other() -> None:
    sessions, written = Sessions(), list[Any]()
    sessions.record = written.append
    sessions.note_digest(KEY, 5)
    assert sessions.note_push((KEY,), Push("task")) == (KEY,)
    for digest in (7, 8):
        sessions.note_digest(KEY, digest)
    assert sessions.pushed(KEY) == Push("task", 7)
    assert len(written) == 2
