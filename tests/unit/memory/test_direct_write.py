"""Payloads written past the page cache, where the file system lets them: the same bytes in any case."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.memory import direct_write
from fedrdma_fate.memory.direct_write import ALIGNMENT_BYTES, write_payload
from fedrdma_fate.memory.region import SharedRegion
from fedrdma_fate.ports import Slot

LENGTH = 3 * 1024 * 1024 + 777


@pytest.fixture
def slot() -> Iterator[Slot]:
    region = SharedRegion.create("receive", 4 * 1024 * 1024)
    region.view[:] = os.urandom(1 << 16) * (region.length >> 16)
    yield Slot(region, 0, region.length)
    region.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fileno = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fileno
    os.close(fileno)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_write, "PIECE_BYTES", 1024 * 1024)
    monkeypatch.setattr(direct_write, "LEAST_BYTES", 64 * 1024)


def is_direct(fileno: int) -> bool:
    return bool(fcntl.fcntl(fileno, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize("at", [0, ALIGNMENT_BYTES, 100], ids=["aligned", "aligned too", "not aligned"])
@pytest.mark.parametrize(
    ("start", "end"),
    [(0, LENGTH), (5, LENGTH - 5), (ALIGNMENT_BYTES, 2 * ALIGNMENT_BYTES), (70, 70), (300_000, LENGTH)],
)
def test_bytes_of_the_payload_lie_at_the_same_place_in_the_file(
    slot: Slot, file: int, at: int, start: int, end: int
) -> None:
    payload = slot.part(at, LENGTH)
    write_payload(file, payload, start, end)
    assert os.pread(file, LENGTH, start) == bytes(payload.view[start:end])
    assert not is_direct(file)


def test_pieces_in_any_order_make_up_the_whole(slot: Slot, file: int) -> None:
    payload = slot.part(0, LENGTH)
    cuts = [0, 1 << 20, 2 << 20, LENGTH]
    for start, end in reversed(list(itertools.pairwise(cuts))):
        write_payload(file, payload, start, end)
    assert os.pread(file, LENGTH + 1, 0) == bytes(payload.view)


def test_all_whole_blocks_of_what_is_long_go_past_the_cache(
    slot: Slot, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct: list[tuple[int, int]] = []
    real = os.pwrite

    def pwrite(fileno: int, data: memoryview, at: int) -> int:
        if is_direct(fileno):
            direct.append((at, at + len(data)))
        return real(fileno, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    write_payload(file, slot.part(0, LENGTH), 5, LENGTH)
    if not direct:
        pytest.skip("the file system of the temporary directory has no O_DIRECT")
    assert (direct[0][0], direct[-1][1]) == (ALIGNMENT_BYTES, LENGTH // ALIGNMENT_BYTES * ALIGNMENT_BYTES)


def test_where_the_file_system_has_no_such_thing_it_is_written_through_the_cache(
    slot: Slot, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.fcntl

    def refuses(fileno: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such flag here")
        return int(real(fileno, command, flags))

    monkeypatch.setattr(direct_write.fcntl, "fcntl", refuses)
    payload = slot.part(0, LENGTH)
    write_payload(file, payload, 0, LENGTH)
    assert os.pread(file, LENGTH, 0) == bytes(payload.view)


@pytest.mark.parametrize("wanted", [1, 2])
def test_what_the_file_system_does_not_take_so_is_written_through_the_cache(
    slot: Slot, file: int, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    real, refused = os.pwrite, 0

    def pwrite(fileno: int, data: memoryview, at: int) -> int:
        nonlocal refused
        if is_direct(fileno):
            refused += 1
            if refused >= wanted:
                raise OSError(errno.EINVAL, "another alignment is wanted")
        return real(fileno, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    payload = slot.part(0, LENGTH)
    write_payload(file, payload, 0, LENGTH)
    assert os.pread(file, LENGTH, 0) == bytes(payload.view)


def test_a_write_that_is_cut_short_goes_on_where_it_ended(
    slot: Slot, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fileno, data, at: real(fileno, data[: max(1, len(data) - 1000)], at))
    payload = slot.part(0, LENGTH)
    write_payload(file, payload, 0, LENGTH)
    assert os.pread(file, LENGTH, 0) == bytes(payload.view)


def test_a_full_disk_is_told_and_the_file_is_as_it_was_opened(
    slot: Slot, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fileno: int, _data: memoryview, _at: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no room"):
        write_payload(file, slot.part(0, LENGTH), 0, LENGTH)
    assert not is_direct(file)
