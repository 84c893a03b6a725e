"""A copy on disk of a payload that is still coming."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrdma_fate.memory import payload_copies
from fedrdma_fate.memory.payload_copies import PayloadCopies
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

LENGTH = 5 * PAGE_BYTES + 123


@pytest.fixture
def payload() -> Iterator[Slot]:
    region = SharedRegion.create("receive", 8 * PAGE_BYTES)
    region.view[:] = os.urandom(region.length)
    yield Slot(region, PAGE_BYTES, LENGTH)
    region.close()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[PayloadCopies]:
    copies = PayloadCopies(tmp_path)
    yield copies
    copies.close()


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [(0, LENGTH)],
        [(4 * PAGE_BYTES, LENGTH), (100, LENGTH)],
        [(LENGTH - 10, LENGTH), (LENGTH - 11, LENGTH), (2 * PAGE_BYTES + 1, LENGTH)],
        [(0, 100), (0, PAGE_BYTES + 1), (0, 3 * PAGE_BYTES)],
        [(2 * PAGE_BYTES, 3 * PAGE_BYTES), (PAGE_BYTES, LENGTH)],
    ],
)
def test_in_whatever_steps_it_comes_the_copy_has_all_of_it(
    copies: PayloadCopies, payload: Slot, steps: list[tuple[int, int]]
) -> None:
    copy = copies.begin(payload)
    for start, end in steps:
        copy.write(start, end)
        assert all(name.endswith(".part") for name in os.listdir(copies.path))
    spilled = copy.finish()
    copy.discard()
    assert spilled.path.read_bytes() == bytes(payload.view)
    assert os.listdir(copies.path) == [spilled.path.name]
    assert copies.find(spilled.path.name, LENGTH) is not None


def test_only_what_is_not_there_yet_is_written(
    copies: PayloadCopies, payload: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, int]] = []
    real = payload_copies.write_payload

    def record(fileno: int, piece: Slot, start: int, end: int) -> None:
        if start < end:
            written.append((start, end))
        real(fileno, piece, start, end)

    monkeypatch.setattr(payload_copies, "write_payload", record)
    copy = copies.begin(payload)
    copy.write(3 * PAGE_BYTES, LENGTH)
    copy.write(PAGE_BYTES, LENGTH)
    copy.finish()
    copy.discard()
    assert written == [(3 * PAGE_BYTES, LENGTH), (PAGE_BYTES, 3 * PAGE_BYTES), (0, PAGE_BYTES)]


def test_it_is_on_disk_before_it_has_its_name(
    copies: PayloadCopies, payload: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
    copy = copies.begin(payload)
    copy.write(0, LENGTH)
    assert synced == []
    spilled = copy.finish()
    copy.discard()
    assert synced == [f"{spilled.path.name}.part", "payloads"]


def test_one_that_is_not_needed_leaves_nothing(copies: PayloadCopies, payload: Slot) -> None:
    copies.begin(payload).discard()
    copy = copies.begin(payload)
    copy.write(0, LENGTH)
    copy.discard()
    copy.discard()
    copy.write(0, LENGTH)
    assert os.listdir(copies.path) == []


def test_while_a_thread_writes_it_its_file_stays_open_and_goes_with_that(
    copies: PayloadCopies, payload: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, descriptors = threading.Event(), threading.Event(), list[int]()
    real = payload_copies.write_payload

    def held_up(fileno: int, piece: Slot, start: int, end: int) -> None:
        descriptors.append(fileno)
        begun.set()
        assert may_end.wait(60)
        # also after it was discarded, it is this very file
        assert os.readlink(f"/proc/self/fd/{fileno}").endswith(".part")
        real(fileno, piece, start, end)

    monkeypatch.setattr(payload_copies, "write_payload", held_up)
    copy = copies.begin(payload)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(copy.write, 0, LENGTH)
        assert begun.wait(60)
        copy.discard()
        assert os.path.exists(f"/proc/self/fd/{descriptors[0]}")
        may_end.set()
        writing.result(60)
    assert os.listdir(copies.path) == []
    open_files = [name for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")]
    assert not any(".part" in os.readlink(f"/proc/self/fd/{name}") for name in open_files)


def test_a_full_disk_is_told_by_write_and_by_finish(
    copies: PayloadCopies, payload: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fileno: int, _data: memoryview, _at: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwrite", full)
    copy = copies.begin(payload)
    for act in (lambda: copy.write(0, LENGTH), copy.finish):
        with pytest.raises(MemoryPoolError) as caught:
            act()
        assert caught.value.code is ErrorCode.SPILL_FAILED
        # it lies beside the journal, not with what is spilled
        assert "state_directory" in caught.value.remedy
    copy.discard()
    assert os.listdir(copies.path) == []
