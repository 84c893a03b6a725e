"""Sums on disk: whole or not at all, and so many."""

from __future__ import annotations

import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrdma_fate.aggregate import checkpoint
from fedrdma_fate.aggregate.checkpoint import StoppedError, read, write
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import NoSummandError, Summand, footer_bytes
from tests.support.summands import masked, written

SHAPES = ((30, 20), (), (7,))
PARTIES = (Party("host", "1"), Party("guest", "2"))
OF = {"session": "s", "name": "n", "tag": "t", "destination": "arbiter:1", "order": "exact"}


def kept(directory: Path, count: int = 8, weight: float | None = 3.0, stop: bool = False) -> Path:
    pairs = masked(SHAPES, 1, 5)[0]
    body = written(pairs, PARTIES[0])
    planes = memoryview(body)[: len(body) - footer_bytes(body[-16:])]
    stopped = threading.Event()
    if stop:
        stopped.set()
    return write(directory, planes, Summand(PARTIES, weight, SHAPES), OF, count, stopped)


@pytest.mark.parametrize("weight", [3.0, None])
def test_what_was_written_is_read(tmp_path: Path, weight: float | None) -> None:
    path = kept(tmp_path / "new", weight=weight)
    found = read(path)

    expected = [fraction + whole for fraction, whole in masked(SHAPES, 1, 5)[0]]
    assert all(np.array_equal(array, other) for array, other in zip(found.arrays, expected, strict=True))
    assert (found.weight, found.parties, found.of) == (weight, ["host:1", "guest:2"], OF)
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in path.parent.iterdir())
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_so_many_stay_the_oldest_go_and_nothing_that_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [tmp_path / "model.sum", tmp_path / "20260101T000000Z.json"]
    for other in others:
        other.write_bytes(b"x")
    (tmp_path / "20251231T000000Z-01234567.sum.part").write_bytes(b"of one that was killed")
    paths = []
    for second in range(5):
        monkeypatch.setattr(checkpoint.time, "strftime", lambda *_, second=second: f"20260101T00000{second}Z")
        paths.append(kept(tmp_path, 2))

    assert [path.exists() for path in paths] == [False, False, False, True, True]
    assert len(list(tmp_path.iterdir())) == 2 * 2 + len(others)
    assert all(other.exists() for other in others)


def test_one_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        kept(tmp_path, stop=True)

    assert list(tmp_path.iterdir()) == []


def test_one_that_is_stopped_while_its_last_piece_is_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then somebody else may have had the memory that the piece was read from."""
    original, stop = checkpoint._write_all, threading.Event()

    def stopped_meanwhile(file: Any, left: memoryview) -> None:
        original(file, left)
        if file.tell() > 1000:
            stop.set()

    monkeypatch.setattr(checkpoint, "_write_all", stopped_meanwhile)

    with pytest.raises(StoppedError):
        write(tmp_path, memoryview(bytes(4096)), Summand(PARTIES, None, ((256,),)), OF, 8, stop)

    assert list(tmp_path.iterdir()) == []


def test_one_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint._write_all
    written_so_far = []

    def full(file: object, left: memoryview) -> None:
        written_so_far.append(len(left))
        if len(written_so_far) > 3:
            raise OSError(28, "No space left on device")
        original(file, left)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "_write_all", full)

    with pytest.raises(OSError, match="No space left"):
        kept(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_cut_short_is_none(tmp_path: Path) -> None:
    path = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(NoSummandError):
        read(path)
