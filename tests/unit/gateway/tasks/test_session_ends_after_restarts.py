"""A site that was away when a session ended is told by the next run of the gateway that ended it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.gateway.tasks.session_ends import SessionEnds
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.kept_twin import KeptTwin
from tests.support.twin import PARTIES, run_virtually
from tests.support.twin_play import key_to, pull, work


def ends_of(twin: KeptTwin, site: str) -> SessionEnds:
    half = twin.halves[site]
    return SessionEnds(half.context, {half.peer.config.site: half.peer})


@pytest.mark.parametrize("is_in", [True, False], ids=["in the session", "not in it"])
def test_who_waits_at_a_site_that_was_away_is_told_after_a_restart(tmp_path: Path, is_in: bool) -> None:
    async def scenario(twin: KeptTwin) -> None:
        ends = {site: ends_of(twin, site) for site in PARTIES}
        await twin.connect()
        named = {site: [*PARTIES.values()] if is_in else [party] for site, party in PARTIES.items()}
        for site, party in PARTIES.items():
            twin.halves[site].context.mailbox.join("s", party, named[site])
            ends[site].arrive("s", party)
        await work(twin)
        await twin.lose_control("a")
        await twin.lose_control("b")
        waits = pull(twin, key_to(twin, PARTIES["b"]))
        ends["a"].drop("s")
        twin.kill("a")
        await twin.restart("a")
        ends["a"].close()
        ends["a"] = ends_of(twin, "a")
        await twin.connect()
        await work(twin)
        assert waits.done() == is_in
        if is_in:
            with pytest.raises(FedRDMAError) as told:
                await waits
            assert told.value.code is ErrorCode.SESSION_ENDED
        waits.cancel()
        for each in ends.values():
            each.close()

    async def run() -> None:
        twin = KeptTwin(tmp_path)
        try:
            await scenario(twin)
        finally:
            twin.close()

    run_virtually(run())
