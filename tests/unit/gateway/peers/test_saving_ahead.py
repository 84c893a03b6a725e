"""`durable`: the copy of a long message is begun while it comes, and goes where that does not come to its end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.engine import incoming, landing
from fedrdma_fate.gateway.peers import saving
from fedrdma_fate.memory.payload_copies import CopyAhead
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Inline, MessageKey
from tests.support.kept_twin import KeptTwin
from tests.support.twin import run_virtually
from tests.support.twin_play import BODY, pull, work

Scenario = Callable[[KeptTwin], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    """Plays a scenario with a twin that is connected, and durable, to which every message is a long one.

    Its chunks have 4096 bytes, and one lands in each turn.
    """
    monkeypatch.setattr(incoming, "LEAST_BYTES", 1)
    monkeypatch.setattr(landing, "STEP_BYTES", 4096)
    monkeypatch.setattr(saving, "LEAST_AHEAD_BYTES", 1)
    monkeypatch.setattr(saving, "AHEAD_STEP_BYTES", 4096)

    async def run(scenario: Scenario) -> None:
        twin = KeptTwin(tmp_path, durable=True, chunk=4096, transport="tcp")
        try:
            await twin.connect()
            await work(twin)
            for wire in twin._wires["tcp"].values():
                wire.lands_at_once = 1
            await scenario(twin)
        finally:
            twin.close()

    return lambda scenario: run_virtually(run(scenario))


def files(twin: KeptTwin) -> list[str]:
    copies = twin.halves["b"].context.copies
    assert copies is not None
    return os.listdir(copies.path)


async def some_of_it_comes(twin: KeptTwin) -> None:
    """Until a copy was begun."""
    for _ in range(200):
        await work(twin, 1)
        if files(twin):
            break
    (name,) = files(twin)
    assert name.endswith(".part")
    saving = twin.halves["b"].peer.receiving.saving
    assert saving._ahead
    assert not saving._entries


async def the_rest_comes(twin: KeptTwin) -> None:
    """And is on disk, where it can be."""
    for _ in range(60):
        await work(twin, 2)
        await asyncio.sleep(0.01)


def test_a_message_that_comes_whole_has_one_copy_with_its_bytes(play: Callable[[Scenario], None]) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        await some_of_it_comes(twin)
        await the_rest_comes(twin)
        (name,) = files(twin)
        copies = twin.halves["b"].context.copies
        assert copies is not None
        assert (copies.path / name).read_bytes() == BODY
        assert await pull(twin, key) == BODY
        assert files(twin) == []

    play(scenario)


def test_a_message_that_its_sender_gives_up_leaves_no_copy(play: Callable[[Scenario], None]) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        waiting = pull(twin, key)
        await some_of_it_comes(twin)
        twin.halves["a"].peer.sending.give_up(ErrorCode.GATEWAY_STOPPING, "the test says so")
        await the_rest_comes(twin)
        with pytest.raises(GatewayError):
            await waiting
        assert files(twin) == []
        assert twin.halves["b"].peer.receiving.saving._ahead == {}

    play(scenario)


def test_a_message_that_goes_on_by_another_data_path_has_a_copy_with_its_bytes(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        await some_of_it_comes(twin)
        twin.break_paths()
        await work(twin, 3)
        await the_rest_comes(twin)
        (name,) = files(twin)
        copies = twin.halves["b"].context.copies
        assert copies is not None
        assert (copies.path / name).read_bytes() == BODY
        assert await pull(twin, key) == BODY

    play(scenario)


def test_no_more_copies_are_begun_than_may_be_and_each_message_is_on_disk_in_the_end(
    play: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    most, body = 2, BODY[:100_000]
    monkeypatch.setattr(saving, "MOST_AHEAD", most)
    begun: list[int] = []

    async def scenario(twin: KeptTwin) -> None:
        keys = [twin.push("a", f"m{number}", body) for number in range(6)]
        for _ in range(400):
            await work(twin, 1)
            begun.append(sum(name.endswith(".part") for name in files(twin)))
            if not twin.halves["a"].peer.sending.pending:
                break
            await asyncio.sleep(0.001)
        assert max(begun) == most
        for key in keys:
            assert await pull(twin, key) == body
        saves = twin.halves["b"].peer.receiving.saving
        assert (saves._ahead, saves._to_finish) == ({}, 0)

    play(scenario)


def test_where_the_disk_fails_meanwhile_it_is_written_anew_when_all_has_come(
    play: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        await some_of_it_comes(twin)
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", _full)
            await work(twin, 10)
        await the_rest_comes(twin)
        (name,) = files(twin)
        assert not name.endswith(".part")
        assert await pull(twin, key) == BODY

    play(scenario)


def _full(_fileno: int, _data: memoryview, _at: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_where_its_end_cannot_be_written_it_is_written_anew(
    play: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[CopyAhead] = []
    real = CopyAhead._write

    def cannot(copy: CopyAhead, start: int, end: int) -> Any:
        if start == 0 and end == len(BODY):
            asked.append(copy)
            _full(0, memoryview(b""), 0)
        return real(copy, start, end)

    monkeypatch.setattr(CopyAhead, "_write", cannot)

    async def scenario(twin: KeptTwin) -> None:
        key = twin.push("a", "m", BODY)
        await some_of_it_comes(twin)
        await the_rest_comes(twin)
        assert asked
        assert await pull(twin, key) == BODY
        assert files(twin) == []

    play(scenario)


def test_a_peer_that_says_a_small_message_under_the_number_of_one_that_comes_leaks_nothing(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        b = twin.halves["b"]
        key = twin.push("a", "m", BODY)
        await some_of_it_comes(twin)
        (transfer,) = b.peer.receiving._announced
        other = MessageKey(key.session, "other", key.tag, key.source, key.destination)
        b.peer.receiving.on_inline(Inline(transfer, other, "bytes", b"x" * 5000))
        # no time passes, so that the disk has neither
        await work(twin, 120)
        assert not b.peer.receiving._announced
        await the_rest_comes(twin)
        assert not b.peer.receiving.saving._entries
        # all that has memory is a message, or granted
        messages, granted = b.context.mailbox.summary()["messages"], len(b.peer.receiving._granted)
        assert b.context.receive_pool.stats().slots <= granted + messages

    play(scenario)
