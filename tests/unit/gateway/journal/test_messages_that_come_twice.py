"""A message that comes once more, so late that its transfer is not remembered any more, costs the first one nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fedrdma_fate.gateway.peers.ended_transfers import EndedTransfers
from fedrdma_fate.wire.frames import Delivered
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, run_virtually
from tests.support.twin_play import BODY, pull, sent_by, work


@pytest.mark.parametrize("size", [100, len(BODY)])
@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
def test_the_next_run_has_it_all_the_same(tmp_path: Path, size: int, durable: bool) -> None:
    async def scenario(twin: KeptTwin) -> None:
        await twin.connect()
        for site, party in PARTIES.items():
            twin.halves[site].context.mailbox.join("s", party, PARTIES.values())
        await work(twin)
        key = twin.push("a", "m", BODY[:size])
        b = twin.halves["b"]
        for _ in range(100):
            # what b says of it does not come
            await twin.turn("a")
            await twin.carry("a")
            await twin.turn("b")
            if sent_by(twin, "b", Delivered):
                break
            await twin.carry("b")
            # for a disk
            await asyncio.sleep(0.01)
        assert b.context.mailbox.has(key)
        # as if very many others had come since
        b.peer.receiving._ended = EndedTransfers()
        b.context.journal._received.clear()
        await twin.quiesce()
        assert not twin.halves["a"].peer.sending.pending
        twin.kill("b")
        await twin.restart("b")
        await twin.connect()
        waits = pull(twin, key)
        await work(twin)
        assert waits.done()
        assert await waits == BODY[:size]

    async def run() -> None:
        twin = KeptTwin(tmp_path, durable=durable)
        try:
            await scenario(twin)
        finally:
            twin.close()

    run_virtually(run())
