"""One payload for several parties of a site: whoever is killed, and when, each gets it once, and whole."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError, GatewayError
from tests.support.kept_twin import KeptTwin
from tests.support.killed_behind import kill_behind_each
from tests.support.twin import PARTIES

NAMES = ["m1", "m2", "m3"]
BODY = random.Random(8).randbytes(150_000)


async def _work(twin: KeptTwin, killed: str, pause: float) -> None:
    for _ in range(40):
        for site in PARTIES:
            if not twin.is_dead(killed):
                await twin.turn(site)
            if not twin.is_dead(killed):
                await twin.carry(site, 2)
        await asyncio.sleep(pause)


async def _history(directory: Path, killed: str, behind: int, **settings: Any) -> int:
    """One run, killed there; how many writes there are, where that is 0."""
    twin = KeptTwin(directory, **settings)
    try:
        await twin.connect()
        before = twin.written(killed)
        if behind:
            twin.kill_behind(killed, behind)
        keys = twin.push_all("a", NAMES, BODY)
        await _work(twin, killed, 0.02 if settings.get("durable") else 0.0)
        writes = twin.written(killed) - before
        if behind:
            assert twin.is_dead(killed)
            if settings.get("durable"):
                twin.lose_memory(killed)
            await twin.restart(killed)
            with contextlib.suppress(FedRDMAError):
                # whose push was not confirmed makes it again; what is known is refused, and so has to come
                twin.push_all("a", NAMES, BODY)
        await twin.quiesce()
        slots = twin.halves["b"].context.receive_pool.stats().slots - twin.halves["b"].credits_held()
        assert behind or slots == 1
        for key in keys:
            assert await asyncio.wait_for(twin.get(key), 10) == BODY, key
            with pytest.raises(GatewayError) as again:
                await twin.get(key)
            assert again.value.code is ErrorCode.DUPLICATE_PULL
        await twin.quiesce()
        b = twin.halves["b"]
        assert b.context.receive_pool.stats().slots == b.credits_held()
        for half in twin.halves.values():
            half.context.mailbox.sessions.raise_push_failure("s", half.party)
            assert half.peer.sending.pending == 0
            assert len(half.peer.receiving.same) == 0
            assert half.context.mailbox.summary()["messages"] == 0
            assert half.context.send_pool.stats().slots == 0
        return writes
    finally:
        twin.close()


@pytest.mark.parametrize(
    ("killed", "settings"),
    [("a", {}), ("b", {}), ("b", {"durable": True})],
    ids=["sender", "receiver", "receiver-that-is-durable-and-loses-its-memory"],
)
def test_a_gateway_killed_behind_any_record_loses_and_doubles_nothing(killed: str, settings: dict[str, Any]) -> None:
    kill_behind_each(_history, killed, len(NAMES), **settings)
