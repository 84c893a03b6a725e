"""What a run has spilled whose journal is missing: nobody can have it any more, and it takes no room for long."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.gateway import kept_memory
from tests.support.files import spilled_below
from tests.unit.gateway.journal.test_kept_memory import Runs, runs

__all__ = ["runs"]


@pytest.mark.parametrize("is_missing", [True, False])
def test_what_was_spilled_goes_when_the_journal_that_names_it_is_missing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, *, is_missing: bool
) -> None:
    monkeypatch.setattr(kept_memory, "KEEPER_LOOK_SECONDS", 0.1)
    with runs.run() as (kept, _):
        assert kept._spill is not None
        kept._spill.spill_bytes(b"hello")
        # as one that is killed
        kept.leave()
    (left,) = spilled_below(runs.directory)
    if is_missing:
        (journal,) = runs.directory.glob("journal-*/journal")
        journal.unlink()

    async def watch() -> None:
        watching = asyncio.ensure_future(kept.watch_keeper())
        ends = asyncio.get_running_loop().time() + 10
        while is_missing and spilled_below(runs.directory) and asyncio.get_running_loop().time() < ends:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        watching.cancel()
        await asyncio.wait([watching])

    with runs.run() as (kept, _):
        # the keeper had its lock when this run began
        assert left.exists()
        asyncio.run(watch())
        assert left.exists() is not is_missing
