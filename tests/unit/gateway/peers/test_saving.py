"""`durable`: a peer is told that a message is here when the disk has it, and not before; or that it is not here."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.gateway.peers import saving
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Delivered, Refused
from tests.support.kept_twin import KeptTwin
from tests.support.twin import run_virtually
from tests.support.twin_play import BODY, pull, sent_by, work

BODIES = [BODY, b"small", bytes(range(256)) * 40]
"""In a slot; in its record; in a file of its own, for it is too long for that."""

assert saving.IN_JOURNAL_BYTES < len(BODIES[2]) <= INLINE_LIMIT_BYTES

Scenario = Callable[[KeptTwin], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Plays a scenario with a twin that is connected, and durable."""

    async def run(scenario: Scenario, settings: dict[str, Any]) -> None:
        twin = KeptTwin(tmp_path, durable=True, **settings)
        try:
            await twin.connect()
            await work(twin)
            await scenario(twin)
        finally:
            twin.close()

    return lambda scenario, **settings: run_virtually(run(scenario, settings))


@pytest.mark.parametrize("mode", ["grpc", "fedrdma", "fedrdma-e", "fedrdma-x"])
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_nothing_is_said_to_be_delivered_before_it_and_its_record_are_on_disk(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, body: bytes, mode: str
) -> None:
    synced: list[str] = []

    def sync(fileno: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fileno}")))

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fdatasync", sync)

    async def scenario(twin: KeptTwin) -> None:
        synced.clear()
        key = twin.push("a", "m", body, mode=mode)  # type: ignore[arg-type]
        told_at = None
        for _ in range(60):
            for site in twin.halves:
                await twin.turn(site)
                if site == "b" and sent_by(twin, "b", Delivered) and told_at is None:
                    told_at = list(synced)
                await twin.carry(site)
            await asyncio.sleep(0.005)
        assert twin.halves["a"].peer.sending.pending == 0
        assert told_at is not None
        # nobody could have had it before, either
        files = [name for name in told_at if name.endswith(".part")]
        assert len(files) == (len(body) > saving.IN_JOURNAL_BYTES)
        assert told_at[-1] == "journal"
        if files:
            assert told_at == [*files, "payloads", "journal"]
        assert await pull(twin, key) == body
        copies = twin.halves["b"].context.copies
        assert copies is not None
        assert os.listdir(copies.path) == []

    play(scenario, mode=mode)


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_where_the_disk_does_not_take_a_message_both_ends_are_told(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        slots = twin.halves["b"].context.receive_pool.stats().slots
        key = twin.push("a", "m", body)
        waiting = pull(twin, key)
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", _full)
            full.setattr(os, "fdatasync", _full)
            await twin.quiesce()
        with pytest.raises(FedRDMAError) as there:
            await waiting
        with pytest.raises(FedRDMAError) as here:
            twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", key.source)
        assert there.value.code is here.value.code is ErrorCode.SPILL_FAILED
        assert twin.halves["b"].context.receive_pool.stats().slots <= slots + 1

    play(scenario)


def _full(_fileno: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_what_is_offered_again_while_it_is_written_comes_once_and_every_slot_back(
    play: Callable[..., None], body: bytes
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        a, b = twin.halves["a"], twin.halves["b"]
        key = twin.push("a", "m", body)
        # until it is all here, and no time passes, so that the disk does not have it
        await work(twin)
        assert len(b.peer.receiving.saving._entries) == 1
        for _ in range(2):
            twin.break_paths()
            await twin.lose_control("a")
            await twin.lose_control("b")
            await twin.connect()
            await work(twin)
        assert a.peer.sending.pending == 1
        assert not sent_by(twin, "b", Delivered)
        await twin.quiesce()
        assert a.peer.sending.pending == 0
        assert await pull(twin, key) == body
        await twin.quiesce()
        assert b.context.receive_pool.stats().slots == b.credits_held()
        with pytest.raises(GatewayError):
            await pull(twin, key)

    play(scenario)


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_what_its_sender_gives_up_while_it_is_written_is_here_for_nobody(
    play: Callable[..., None], body: bytes
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        a, b = twin.halves["a"], twin.halves["b"]
        key = twin.push("a", "m", body)
        waiting = pull(twin, key)
        await work(twin)
        assert len(b.peer.receiving.saving._entries) == 1
        a.peer.sending.give_up(ErrorCode.GATEWAY_STOPPING, "the test says so")
        await work(twin)
        await twin.quiesce()
        with pytest.raises(GatewayError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.GATEWAY_STOPPING
        assert b.context.mailbox.summary()["messages"] == 0
        assert b.context.receive_pool.stats().slots == b.credits_held()

    play(scenario)


def test_small_messages_that_are_one_too_many_for_the_disk_are_refused(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "MOST_SMALL_BYTES", 3000)

    async def scenario(twin: KeptTwin) -> None:
        keys = [twin.push("a", f"m{number}", b"small") for number in range(4)]
        await twin.carry("a")
        (refused,) = sent_by(twin, "b", Refused)
        assert refused.code == ErrorCode.LIMIT_REACHED.value
        await twin.quiesce()
        for key in keys[:3]:
            assert await pull(twin, key) == b"small"

    play(scenario)


def test_a_copy_that_is_there_is_not_written_once_more_when_its_slot_is_needed(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(twin: KeptTwin) -> None:
        b = twin.halves["b"]
        monkeypatch.setattr(b.context.spill, "_keep", None)
        keys = [twin.push("a", f"m{number}", bytes([number]) * 250_000) for number in range(6)]
        await twin.quiesce()
        assert b.context.mailbox.summary()["spilled_messages"] > 0
        # and the next gateway finds them by the same names
        await twin.restart("b")
        await twin.quiesce()
        for number, key in enumerate(keys):
            assert await pull(twin, key) == bytes([number]) * 250_000

    play(scenario)
