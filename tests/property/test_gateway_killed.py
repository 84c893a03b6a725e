"""A gateway killed behind any record of its journal loses, doubles and misreports nothing that it had to send."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from fedrdma_fate.wire.frames import MessageKey, Party
from tests.support.kept_twin import KeptTwin
from tests.support.killed_behind import kill_behind_each
from tests.support.twin import PARTIES, run_virtually

_chance = random.Random(5)
SENT = [("a", f"m{number}", _chance.randbytes(length)) for number, length in enumerate((10, 150_000, 3000, 90_000))]
SENT += [("b", "back", _chance.randbytes(2000)), ("b", "large", _chance.randbytes(120_000))]
BODIES = {
    MessageKey("s", name, "t", PARTIES[site], PARTIES["b" if site == "a" else "a"]): body for site, name, body in SENT
}
BODY = _chance.randbytes(100_000)
STRANGER = Party("arbiter", "9")


async def _play(twin: KeptTwin, killed: str, pause: float) -> tuple[set[MessageKey], bool]:
    """Push all of it while things go on, until that site is killed; what was confirmed, and whether the refused one.

    Between two rounds there is a pause, so many seconds.
    """
    confirmed, refused = set(), False
    for site, name, body in SENT:
        key = twin.push(site, name, body)
        if not twin.is_dead(killed) or site != killed:
            confirmed.add(key)
        if name == "m2":
            twin.push("a", "unwanted", b"x", session="closed")
            refused = killed != "a" or not twin.is_dead("a")
        for _ in range(3):
            for each in PARTIES:
                if not twin.is_dead(killed):
                    await twin.turn(each)
                if not twin.is_dead(killed):
                    await twin.carry(each)
            await asyncio.sleep(pause)
        if twin.is_dead(killed):
            return confirmed, refused
    for _ in range(60):
        for each in PARTIES:
            if not twin.is_dead(killed):
                await twin.turn(each)
            if not twin.is_dead(killed):
                await twin.carry(each)
        await asyncio.sleep(pause)
    return confirmed, refused


async def _history(directory: Path, killed: str, behind: int, **settings: Any) -> int:
    """One run, killed there; how many writes there are, where that is 0."""
    twin = KeptTwin(directory, **settings)
    try:
        # who does not know a party refuses what comes of it
        twin.halves["b"].context.mailbox.join("closed", PARTIES["b"], (STRANGER,))
        await twin.connect()
        before = twin.written(killed)
        if behind:
            twin.kill_behind(killed, behind)
        confirmed, refused = await _play(twin, killed, 0.02 if settings.get("durable") else 0.0)
        writes = twin.written(killed) - before
        if behind:
            assert twin.is_dead(killed)
            if settings.get("durable"):
                twin.lose_memory(killed)
            await twin.restart(killed)
        for site, name, body in SENT:
            with contextlib.suppress(GatewayError):
                # whose push was not confirmed makes it again; what is known is refused, and so has to come
                twin.push(site, name, body)
        if not refused:
            with contextlib.suppress(GatewayError):
                twin.push("a", "unwanted", b"x", session="closed")
        await twin.quiesce()
        for key, body in BODIES.items():
            assert await asyncio.wait_for(twin.get(key), 10) == body, key
            with pytest.raises(GatewayError) as again:
                await twin.get(key)
            assert again.value.code is ErrorCode.DUPLICATE_PULL
        assert confirmed <= set(BODIES)
        sessions = twin.halves["a"].context.mailbox.sessions
        with pytest.raises(FedRDMAError, match="unwanted"):
            sessions.raise_push_failure("closed", PARTIES["a"])
        for half in twin.halves.values():
            # told once, and of nothing else
            half.context.mailbox.sessions.raise_push_failure("closed", half.party)
            half.context.mailbox.sessions.raise_push_failure("s", half.party)
            assert half.peer.sending.pending == 0
            assert half.context.mailbox.summary()["messages"] == 0
            assert half.context.send_pool.stats().slots == 0
        return writes
    finally:
        twin.close()


def test_what_a_durable_gateway_has_confirmed_is_there_whole_and_once_when_its_memory_is_gone() -> None:
    kill_behind_each(_history, "b", len(SENT) + 1, durable=True)


@pytest.mark.parametrize("killed", ["a", "b"])
def test_a_gateway_killed_behind_any_record_of_its_journal_loses_doubles_and_misreports_nothing(killed: str) -> None:
    kill_behind_each(_history, killed, len(SENT) + 1)


async def _both_restarted(directory: Path) -> None:
    twin = KeptTwin(directory)
    try:
        await twin.connect()
        key = twin.push("a", "m", BODY)
        await twin.quiesce()
        assert twin.halves["b"].context.mailbox.summary()["messages"] == 1
        await twin.restart("a")
        twin.lose_memory("b")
        await twin.restart("b")
        await twin.quiesce()
        with pytest.raises(GatewayError) as there:
            await twin.get(key)
        for _ in range(2):
            # it is told by the run that hears of it, or by the next
            await twin.restart("a")
            await twin.quiesce()
        sessions = twin.halves["a"].context.mailbox.sessions
        with pytest.raises(GatewayError) as here:
            sessions.raise_push_failure("s", PARTIES["a"])
        assert there.value.code is here.value.code is ErrorCode.MESSAGE_LOST
        await twin.restart("a")
        await twin.quiesce()
        twin.halves["a"].context.mailbox.sessions.raise_push_failure("s", PARTIES["a"])
    finally:
        twin.close()


def test_where_both_were_restarted_the_task_hears_once_of_a_message_that_was_confirmed_and_lost(tmp_path: Path) -> None:
    run_virtually(_both_restarted(tmp_path))


async def _pushed_again(directory: Path) -> None:
    twin = KeptTwin(directory)
    try:
        sending, sessions = twin.halves["a"].peer.sending, twin.halves["a"].context.mailbox.sessions
        key = twin.push("a", "m", BODY)
        (pending,) = sending._transfers.values()
        sessions.forget_push(key)
        sending.send_failed(pending.outgoing, ErrorCode.TRANSFER_ABORTED, "the test says so")
        twin.push("a", "m", BODY[::-1])
        await twin.restart("a")
        pull = asyncio.create_task(twin.get(key))
        await twin.quiesce()
        assert await pull == BODY[::-1]
    finally:
        twin.close()


def test_nobody_is_told_that_a_message_does_not_come_which_was_pushed_again(tmp_path: Path) -> None:
    run_virtually(_pushed_again(tmp_path))
