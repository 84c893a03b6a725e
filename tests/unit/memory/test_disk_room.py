"""Room is taken behind a file's end, and the file is no longer than it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedrdma_fate.memory.disk_room import take_room


def test_room_is_taken_and_the_file_stays_as_long_as_it_was(tmp_path: Path) -> None:
    fileno = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fileno, b"begun")
    if not take_room(fileno, 5, 1 << 20):
        pytest.skip("the file system of the temporary directory takes no room in advance")
    status = os.fstat(fileno)
    assert status.st_size == 5
    assert status.st_blocks * 512 >= 1 << 20
    os.close(fileno)


def test_a_file_that_can_have_none_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    assert not take_room(read_only, 0, 1 << 20)
    os.close(read_only)
    assert not take_room(read_only, 0, 1 << 20)
