"""Lent slots: who holds one is known to its owner, and nothing else can be borrowed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.memory.mapping import map_copy_on_write
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.memory.shared_slots import BorrowedSlot, PresentedRegion, hold_range, range_is_held
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.ports import Region, Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

LENGTH = 4 * PAGE_BYTES


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    """The lender's region, with bytes that tell their place."""
    region = SharedRegion.create("send", LENGTH)
    region.view[:] = os.urandom(LENGTH)
    yield region
    region.close()


@pytest.fixture
def own() -> Iterator[SharedRegion]:
    """The borrower's region."""
    region = SharedRegion.create("receive", LENGTH)
    yield region
    region.close()


@pytest.fixture
def slot(region: SharedRegion) -> Slot:
    return Slot(region, PAGE_BYTES, PAGE_BYTES + 10)


def presented(region: Region) -> PresentedRegion:
    return PresentedRegion(memory_files.open_for_reading(region.fileno), region.length)


def borrow(slot: Slot) -> BorrowedSlot:
    return BorrowedSlot(presented(slot.region), slot.offset, slot.length)


def test_a_slot_is_held_from_when_it_is_borrowed_until_it_is_closed(slot: Slot) -> None:
    assert not range_is_held(slot)
    borrowed = borrow(slot)
    assert range_is_held(slot)
    borrowed.close()
    borrowed.close()
    assert not range_is_held(slot)


def test_whoever_wants_to_know_is_told_once_that_a_borrowed_slot_is_held_no_more(slot: Slot) -> None:
    held_when_told: list[bool] = []
    region = presented(slot.region)
    borrowed = BorrowedSlot(region, slot.offset, slot.length, lambda: held_when_told.append(range_is_held(slot)))
    assert held_when_told == []
    borrowed.close()
    borrowed.close()
    assert held_when_told == [False]


def test_nobody_is_told_of_what_could_not_be_borrowed(region: SharedRegion) -> None:
    told: list[str] = []
    with pytest.raises(MemoryPoolError):
        BorrowedSlot(presented(region), 1, PAGE_BYTES, lambda: told.append("closed"))
    assert told == []


def test_the_slot_next_to_a_borrowed_one_is_not_held(slot: Slot) -> None:
    borrowed = borrow(slot)
    assert not range_is_held(Slot(slot.region, 0, PAGE_BYTES))
    assert not range_is_held(Slot(slot.region, 3 * PAGE_BYTES, PAGE_BYTES))
    borrowed.close()


def test_two_may_hold_one_slot_and_it_is_free_when_both_have_let_go(slot: Slot) -> None:
    first, second = borrow(slot), borrow(slot)
    first.close()
    assert range_is_held(slot)
    second.close()
    assert not range_is_held(slot)


def mapped(slot: Slot) -> memoryview:
    """As a task maps it, given a descriptor by its gateway, which then lets go."""
    borrowed = borrow(slot)
    view = map_copy_on_write(borrowed.fileno, slot.offset, slot.length, lambda: None)
    borrowed.close()
    return view


def test_a_mapping_of_a_borrowed_slot_holds_it_until_the_last_view_of_it_dies(slot: Slot) -> None:
    view = mapped(slot)
    part = view[5:6]
    del view
    assert range_is_held(slot)
    del part
    assert not range_is_held(slot)


def test_a_mapping_of_what_was_not_borrowed_holds_nothing(slot: Slot) -> None:
    view = map_copy_on_write(slot.region.fileno, slot.offset, slot.length, lambda: None)
    assert not range_is_held(slot)
    del view


HOLD_FOR_EVER = """
import signal, sys
from fedrdma_fate import memory_files
from fedrdma_fate.memory.mapping import map_copy_on_write
view = map_copy_on_write(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), lambda: None)
print(len(view), flush=True)
signal.pause()
"""


def test_the_slot_of_a_killed_process_is_not_held_any_more(slot: Slot) -> None:
    borrowed = borrow(slot)
    fileno = borrowed.fileno
    command = [sys.executable, "-c", HOLD_FOR_EVER, str(fileno), str(slot.offset), str(slot.length)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[fileno]) as process:
        borrowed.close()
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"{slot.length}\n"
            assert range_is_held(slot)
        finally:
            process.kill()
    assert not range_is_held(slot)


def test_a_borrowed_slot_can_be_copied_also_after_its_lender_is_gone(
    region: SharedRegion, slot: Slot, own: SharedRegion
) -> None:
    borrowed, expected = borrow(slot), bytes(slot.view)
    region.close()
    borrowed.read_into(own.view)
    assert own.view[: slot.length] == expected
    assert not any(own.view[slot.length :])
    borrowed.close()


def test_a_borrowed_slot_can_be_spilled(slot: Slot, tmp_path: Path) -> None:
    store = SpillStore(tmp_path)
    borrowed = borrow(slot)
    spilled = store.spill_borrowed(borrowed)
    assert spilled.path.read_bytes() == slot.view
    borrowed.close()
    store.close()


@pytest.mark.parametrize(
    ("offset", "length"), [(1, 10), (-PAGE_BYTES, 10), (0, 0), (0, -1), (0, LENGTH + 1), (LENGTH, 1)]
)
def test_what_is_no_slot_cannot_be_borrowed(region: SharedRegion, offset: int, length: int) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        BorrowedSlot(presented(region), offset, length)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE


def unsealed(length: int) -> int:
    fileno = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fileno, length)
    return fileno


def of_a_disk(directory: Path, length: int) -> int:
    (directory / "file").write_bytes(bytes(length))
    return os.open(directory / "file", os.O_RDONLY)


def test_what_could_be_cut_short_or_is_no_region_is_not_kept(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for fileno in (unsealed(LENGTH), of_a_disk(tmp_path, LENGTH), os.open("/dev/zero", os.O_RDONLY)):
        with pytest.raises(MemoryPoolError) as caught:
            PresentedRegion(fileno, LENGTH)
        assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_region_that_is_not_as_long_as_it_was_said_to_be_is_not_kept(region: SharedRegion) -> None:
    with pytest.raises(MemoryPoolError, match=f"has {LENGTH} bytes"):
        PresentedRegion(os.dup(region.fileno), LENGTH + PAGE_BYTES)


def test_nothing_can_be_borrowed_of_a_region_whose_data_path_is_lost_and_what_was_stays(slot: Slot) -> None:
    kept = presented(slot.region)
    borrowed = BorrowedSlot(kept, slot.offset, slot.length)
    kept.close()
    kept.close()
    with pytest.raises(MemoryPoolError, match="was lost"):
        BorrowedSlot(kept, slot.offset, slot.length)
    assert range_is_held(slot)
    borrowed.close()


def test_a_borrower_cannot_write_into_what_is_lent(slot: Slot) -> None:
    borrowed = borrow(slot)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(borrowed.fileno, b"x", slot.offset)
    with pytest.raises(PermissionError):
        mmap.mmap(borrowed.fileno, PAGE_BYTES, access=mmap.ACCESS_WRITE)
    borrowed.close()


def test_what_cannot_be_locked_says_so(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_PATH)
    with pytest.raises(OSError, match="Bad file descriptor"):
        hold_range(directory, 0, 1)
    os.close(directory)
