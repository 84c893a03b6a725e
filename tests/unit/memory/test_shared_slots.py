"""Lent slots: who holds one is known to its owner, and nothing else can be borrowed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fedrdma_fate.memory.mapping import map_copy_on_write
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.memory.shared_slots import BorrowedFile, hold_range, range_is_held
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

LENGTH = 4 * PAGE_BYTES


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="test-of-fedrdma-") as name:
        yield Path(name)


@pytest.fixture
def region(directory: Path) -> Iterator[SharedRegion]:
    """The lender's region, with bytes that tell their place."""
    region = SharedRegion.create(directory / "send", LENGTH)
    region.view[:] = os.urandom(LENGTH)
    yield region
    region.close()


@pytest.fixture
def own(directory: Path) -> Iterator[SharedRegion]:
    """The borrower's region."""
    region = SharedRegion.create(directory / "receive", LENGTH)
    yield region
    region.close()


@pytest.fixture
def slot(region: SharedRegion) -> Slot:
    return Slot(region, PAGE_BYTES, PAGE_BYTES + 10)


def borrow(slot: Slot, own: SharedRegion) -> BorrowedFile:
    return BorrowedFile(slot.region.path, slot.offset, slot.length, [own])


def test_a_slot_is_held_from_when_it_is_borrowed_until_it_is_closed(slot: Slot, own: SharedRegion) -> None:
    assert not range_is_held(slot)
    borrowed = borrow(slot, own)
    assert range_is_held(slot)
    borrowed.close()
    borrowed.close()
    assert not range_is_held(slot)


def test_whoever_wants_to_know_is_told_once_that_a_borrowed_slot_is_held_no_more(slot: Slot, own: SharedRegion) -> None:
    held_when_told: list[bool] = []
    borrowed = BorrowedFile(
        slot.region.path, slot.offset, slot.length, [own], lambda: held_when_told.append(range_is_held(slot))
    )
    assert held_when_told == []
    borrowed.close()
    borrowed.close()
    assert held_when_told == [False]


def test_nobody_is_told_of_what_could_not_be_borrowed(region: SharedRegion, own: SharedRegion) -> None:
    told: list[str] = []
    with pytest.raises(MemoryPoolError):
        BorrowedFile(region.path, 1, PAGE_BYTES, [own], lambda: told.append("closed"))
    assert told == []


def test_the_slot_next_to_a_borrowed_one_is_not_held(slot: Slot, own: SharedRegion) -> None:
    borrowed = borrow(slot, own)
    assert not range_is_held(Slot(slot.region, 0, PAGE_BYTES))
    assert not range_is_held(Slot(slot.region, 3 * PAGE_BYTES, PAGE_BYTES))
    borrowed.close()


def test_two_may_hold_one_slot_and_it_is_free_when_both_have_let_go(slot: Slot, own: SharedRegion) -> None:
    first, second = borrow(slot, own), borrow(slot, own)
    first.close()
    assert range_is_held(slot)
    second.close()
    assert not range_is_held(slot)


def test_a_mapping_holds_its_slot_until_the_last_view_of_it_dies(slot: Slot) -> None:
    view = map_copy_on_write(slot.region.path, slot.offset, slot.length, lambda: None, hold=True)
    part = view[5:6]
    del view
    assert range_is_held(slot)
    del part
    assert not range_is_held(slot)


def test_a_mapping_that_was_not_asked_to_hold_does_not(slot: Slot) -> None:
    view = map_copy_on_write(slot.region.path, slot.offset, slot.length, lambda: None)
    assert not range_is_held(slot)
    del view


def _hold_for_ever(path: str, offset: int, length: int, tell: Connection) -> None:
    view = map_copy_on_write(Path(path), offset, length, lambda: None, hold=True)
    tell.send(len(view))
    signal.pause()


def test_the_slot_of_a_killed_process_is_not_held_any_more(slot: Slot) -> None:
    here, there = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_hold_for_ever, args=(str(slot.region.path), slot.offset, slot.length, there))
    process.start()
    try:
        assert here.poll(20)
        assert here.recv() == slot.length
        assert range_is_held(slot)
    finally:
        process.kill()
        process.join()
    assert not range_is_held(slot)


def test_a_borrowed_slot_can_be_copied_also_after_its_file_is_gone(slot: Slot, own: SharedRegion) -> None:
    borrowed = borrow(slot, own)
    slot.region.path.unlink()
    borrowed.read_into(own.view)
    assert own.view[: slot.length] == slot.view
    assert not any(own.view[slot.length :])
    borrowed.close()


def test_a_borrowed_slot_can_be_spilled(slot: Slot, own: SharedRegion, tmp_path: Path) -> None:
    store = SpillStore(tmp_path)
    borrowed = borrow(slot, own)
    spilled = store.spill_borrowed(borrowed)
    assert spilled.path.read_bytes() == slot.view
    borrowed.close()
    store.close()


def test_a_region_that_has_become_shorter_is_an_error_and_leaves_no_spill_file(
    slot: Slot, own: SharedRegion, tmp_path: Path
) -> None:
    store = SpillStore(tmp_path)
    borrowed = borrow(slot, own)
    os.truncate(slot.region.path, slot.offset)
    with pytest.raises(MemoryPoolError) as reading:
        borrowed.read_into(own.view)
    with pytest.raises(MemoryPoolError) as spilling:
        store.spill_borrowed(borrowed)
    assert reading.value.code is ErrorCode.REGION_UNAVAILABLE
    assert spilling.value.code is ErrorCode.SPILL_FAILED
    assert [path.name for path in store.path.iterdir()] == ["pid"]
    borrowed.close()
    store.close()


@pytest.mark.parametrize(
    ("offset", "length"), [(1, 10), (-PAGE_BYTES, 10), (0, 0), (0, -1), (0, LENGTH + 1), (LENGTH, 1)]
)
def test_what_is_no_slot_cannot_be_borrowed(region: SharedRegion, own: SharedRegion, offset: int, length: int) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        BorrowedFile(region.path, offset, length, [own])
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE


def test_files_elsewhere_links_directories_and_files_that_are_not_there_cannot_be_borrowed(
    region: SharedRegion, own: SharedRegion, directory: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "file"
    elsewhere.write_bytes(bytes(LENGTH))
    link = directory / "link"
    link.symlink_to(region.path)
    before = len(os.listdir("/proc/self/fd"))
    for path in (elsewhere, link, directory, directory / "nothing", Path("a\0b")):
        with pytest.raises(MemoryPoolError) as caught:
            BorrowedFile(path, 0, PAGE_BYTES, [own])
        assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_region_of_our_own_can_be_borrowed_by_whatever_name(
    region: SharedRegion, own: SharedRegion, directory: Path
) -> None:
    other_name = directory / "other name"
    os.link(region.path, other_name)
    before = len(os.listdir("/proc/self/fd"))
    for path in (own.path, region.path, other_name):
        with pytest.raises(MemoryPoolError, match="a region of our own"):
            BorrowedFile(path, 0, PAGE_BYTES, [own, region])
    assert len(os.listdir("/proc/self/fd")) == before
    BorrowedFile(other_name, 0, PAGE_BYTES, [own]).close()


def test_what_cannot_be_locked_says_so(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_PATH)
    with pytest.raises(OSError, match="Bad file descriptor"):
        hold_range(directory, 0, 1)
    os.close(directory)
