"""What was learnt of the paths survives a restart, and a file that cannot be used does no harm."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.core.path import PathState
from fedrdma_fate.engine.path_memory import KnownPath, PathSource
from fedrdma_fate.gateway.path_store import LONGEST_AGE_SECONDS, PathStore

NOW = 1.8e9
FOUND = PathState(1.2e9, 0.02, 0.001)


def store(directory: Path, now: float = NOW, site: str = "bank a/b") -> PathStore:
    return PathStore(directory, site, lambda: now)


def saved(directory: Path, state: PathState = FOUND) -> Path:
    """A file with one path, whose name is returned."""
    kept = store(directory)
    kept.note("bank-b", "verbs", KnownPath(state, "measured"))
    document = kept.pending()
    assert document is not None
    kept.write(document)
    assert kept.file is not None
    return kept.file


@pytest.mark.parametrize("state", [FOUND, PathState(1e6, 0.3, None)])
def test_what_a_transfer_found_is_remembered_after_a_restart(tmp_path: Path, state: PathState) -> None:
    saved(tmp_path / "made when needed", state)
    again = store(tmp_path / "made when needed", NOW + 3600)
    assert again.recall("bank-b", "verbs") == KnownPath(state, "remembered")
    assert again.recall("bank-b", "tcp") is None
    assert again.recall("bank-c", "verbs") is None
    assert again.pending() is None


@pytest.mark.parametrize("later", [LONGEST_AGE_SECONDS + 1, -LONGEST_AGE_SECONDS - 1])
def test_what_is_old_is_forgotten_also_when_the_clock_was_set_back(tmp_path: Path, later: float) -> None:
    saved(tmp_path)
    assert store(tmp_path, NOW + later).recall("bank-b", "verbs") is None


@pytest.mark.parametrize("source", ["configured", "remembered", "probed", None])
def test_only_what_transfers_have_found_is_kept(tmp_path: Path, source: PathSource | None) -> None:
    kept = store(tmp_path)
    kept.note("bank-b", "verbs", None if source is None else KnownPath(FOUND, source))
    assert kept.pending() is None


def test_the_file_is_written_only_when_something_has_changed_and_age_counts_from_then(tmp_path: Path) -> None:
    times = [NOW]
    kept = PathStore(tmp_path, "a", lambda: times[-1])
    kept.note("b", "verbs", KnownPath(FOUND, "measured"))
    assert kept.pending() is not None
    times.append(NOW + LONGEST_AGE_SECONDS + 1)
    kept.note("b", "verbs", KnownPath(FOUND, "measured"))
    assert kept.pending() is None
    assert kept.recall("b", "verbs") is None


@pytest.mark.parametrize(
    "state", [PathState(1e20, 0.01, None), PathState(math.nan, 0.01, None), PathState(1e6, math.inf, None)]
)
def test_what_could_not_be_read_again_is_not_kept_and_costs_no_other_path(tmp_path: Path, state: PathState) -> None:
    kept = store(tmp_path)
    kept.note("b", "verbs", KnownPath(FOUND, "measured"))
    kept.note("evil", "verbs", KnownPath(state, "measured"))
    document = kept.pending()
    assert document is not None
    kept.write(document)
    again = store(tmp_path)
    assert again.recall("b", "verbs") == KnownPath(FOUND, "remembered")
    assert again.recall("evil", "verbs") is None


def test_a_gateway_without_a_directory_keeps_nothing() -> None:
    kept = PathStore()
    kept.note("b", "verbs", KnownPath(FOUND, "measured"))
    assert kept.pending() is None
    assert kept.recall("b", "verbs") == KnownPath(FOUND, "remembered"), "as long as it runs"


def damaged(**changes: Any) -> Any:
    def change(text: str) -> str:
        document = json.loads(text)
        target = document if changes.keys() & document.keys() else document["paths"][0]
        target.update(changes)
        return json.dumps(document)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[:-5], id="cut off"),
        pytest.param(lambda _: "", id="empty"),
        pytest.param(lambda _: "[" * 100_000, id="nested without end"),
        pytest.param(damaged(version=2), id="a later version"),
        pytest.param(damaged(site="another"), id="of another site"),
        pytest.param(damaged(bytes_per_second=0), id="no rate"),
        pytest.param(damaged(bytes_per_second=1e300), id="too much"),
        pytest.param(damaged(rtt_seconds=-1), id="before it was sent"),
        pytest.param(damaged(packet_loss=1), id="loses everything"),
        pytest.param(damaged(more=1), id="unknown field"),
        pytest.param(damaged(peer=7), id="wrong type"),
    ],
)
def test_a_file_that_cannot_be_used_is_ignored_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    file = saved(tmp_path)
    file.write_text(damage(file.read_text()))
    with caplog.at_level(logging.WARNING):
        again = store(tmp_path)
    assert again.recall("bank-b", "verbs") is None
    assert str(file) in caplog.text


def test_a_file_that_is_a_directory_or_cannot_be_written_is_told_and_not_fatal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    kept = store(tmp_path / "taken")
    kept.note("b", "verbs", KnownPath(FOUND, "measured"))
    document = kept.pending()
    assert document is not None
    assert not kept.write(document)
    assert "cannot write" in caplog.text
    assert kept.pending() is None
    kept.not_written()
    assert kept.pending() == document, "it is tried again, though nothing has changed"
    file = saved(tmp_path)
    file.unlink()
    file.mkdir()
    store(tmp_path).write(document)
    assert list(tmp_path.glob("*.new")) == []


def test_the_file_is_for_its_user_alone_and_never_written_by_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    file = store(tmp_path).file
    assert file is not None
    file.with_suffix(".new").symlink_to(precious)
    assert saved(tmp_path) == file
    assert precious.read_text() == "kept"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert store(tmp_path).recall("bank-b", "verbs") is not None


def test_a_link_or_a_pipe_in_its_place_is_not_read(tmp_path: Path) -> None:
    file = saved(tmp_path / "real")
    linked, piped = tmp_path / "linked", tmp_path / "piped"
    linked.mkdir()
    (linked / file.name).symlink_to(file)
    piped.mkdir()
    os.mkfifo(piped / file.name)
    assert store(linked).recall("bank-b", "verbs") is None
    assert store(piped).recall("bank-b", "verbs") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_believed(tmp_path: Path) -> None:
    os.chown(saved(tmp_path), 65534, -1)
    assert store(tmp_path).recall("bank-b", "verbs") is None
