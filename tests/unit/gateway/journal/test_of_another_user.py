"""What a run of another user has left: say, of root, who has tried the gateway by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedrdma_fate.gateway.journal.earlier_run import StateDirectory
from fedrdma_fate.memory.journal_file import JournalFile, read_records
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def test_the_directory_and_the_user_who_has_it_are_named(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "a")
    state.close()
    os.chown(state.path, 1001, -1)
    with pytest.raises(MemoryPoolError, match=f"{state.path} for the journal: user 1001 owns it") as caught:
        StateDirectory(tmp_path, "a")
    assert caught.value.code is ErrorCode.SPILL_FAILED
    assert "chown" in caught.value.remedy


def test_for_its_journal_nobody_is_sent_to_another_version(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path, "a")
    JournalFile(state.fileno, [b"record"]).close()
    os.chown(state.path / "journal", 1001, -1)
    with pytest.raises(MemoryPoolError, match="user 1001 owns it") as caught:
        read_records(state.fileno)
    state.close()
    assert caught.value.code is ErrorCode.JOURNAL_UNUSABLE
    assert "version" not in caught.value.remedy
    assert "chown" in caught.value.remedy
