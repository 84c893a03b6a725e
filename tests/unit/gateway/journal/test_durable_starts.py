"""A durable gateway starts with a journal or not at all, and then loses nothing."""

from __future__ import annotations

import msgspec
import pytest

from fedrdma_fate.memory import journal_file
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.unit.gateway.journal.test_kept_memory import IN_REGION, SMALL, Runs, full_disk, runs

__all__ = ["runs"]


def test_a_durable_gateway_does_not_start_without_a_journal(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.config = msgspec.structs.replace(runs.config, durable=True)
    with monkeypatch.context() as full:
        full.setattr(journal_file, "_write_all", full_disk)
        with pytest.raises(MemoryPoolError, match="there has to be a journal") as caught, runs.run():
            pass
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE


def test_a_durable_gateway_that_finds_its_disk_full_leaves_what_it_had_confirmed_to_a_later_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.config = msgspec.structs.replace(runs.config, durable=True)
    runs.left(SMALL, synced=True)
    with runs.run() as (_, journal):
        journal.write(IN_REGION)
    with monkeypatch.context() as full:
        full.setattr(journal_file, "_write_all", full_disk)
        with pytest.raises(MemoryPoolError, match=r"No space left on device\. What an earlier"), runs.run():
            pass
    # what was half written takes none of the room that is lacking
    assert not list(runs.directory.glob("journal-*/journal.new"))
    with runs.run() as (kept, _):
        assert kept.earlier is not None
        assert kept.receive_region is not None, kept.earlier.why_gone
        assert list(kept.earlier.state.messages.values()) == [SMALL, IN_REGION]
        assert kept.journal_identity == "its journal"
