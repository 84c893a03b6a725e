"""What is written so that the disk begins at once is all there, in order."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.memory import writeback
from fedrdma_fate.memory.writeback import write_for_disk

PIECE = 1000


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "PIECE_BYTES", PIECE)


def write(path: Path, *payloads: bytes) -> None:
    fileno = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for payload in payloads:
            write_for_disk(fileno, memoryview(payload))
    finally:
        os.close(fileno)


@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE // 2])
def test_the_file_holds_every_byte_behind_what_was_there(tmp_path: Path, length: int) -> None:
    body = os.urandom(length)
    write(tmp_path / "file", b"before", body)
    assert (tmp_path / "file").read_bytes() == b"before" + body


def test_the_disk_is_told_of_every_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(writeback, "_begin_writing", lambda _file, offset, length: told.append((offset, length)))
    write(tmp_path / "file", bytes(10), bytes(5 * PIECE // 2))
    assert told == [(0, 10), (10, PIECE), (10 + PIECE, PIECE), (10 + 2 * PIECE, PIECE // 2)]


def test_it_is_written_where_the_c_library_cannot_tell_the_disk_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_library(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", no_such_library)
    body = os.urandom(3 * PIECE)
    write(tmp_path / "file", body)
    assert (tmp_path / "file").read_bytes() == body


def test_a_full_disk_is_told() -> None:
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"), bytes(3 * PIECE))
