"""Behaviour of the spill store."""

from __future__ import annotations

import concurrent.futures
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.memory.mapping import map_copy_on_write
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

REGION_PAGES = 64


@pytest.fixture
def slot() -> Iterator[Slot]:
    region = SharedRegion.create("receive", REGION_PAGES * PAGE_BYTES)
    region.view[:] = bytes(range(256)) * (region.length // 256)
    yield Slot(region, 2 * PAGE_BYTES, 8 * PAGE_BYTES)
    region.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SpillStore]:
    store = SpillStore(tmp_path / "spill", "guest")
    yield store
    store.close()


def payload_files(store: SpillStore) -> list[Path]:
    return [path for path in store.path.iterdir() if path.name != "pid"]


@pytest.mark.parametrize(("offset", "length"), [(PAGE_BYTES, 7 * PAGE_BYTES), (10, 1000), (0, 8 * PAGE_BYTES), (5, 0)])
def test_the_file_holds_the_payload_from_its_first_byte(
    slot: Slot, store: SpillStore, offset: int, length: int
) -> None:
    spilled = store.spill(slot, offset, length)
    assert spilled.path.read_bytes() == bytes(slot.part(offset, length).view)
    assert spilled.length == length
    assert payload_files(store) == [spilled.path]
    assert stat.S_IMODE(spilled.path.stat().st_mode) == 0o600


def test_a_task_maps_a_spilled_payload_as_it_would_the_slot(slot: Slot, store: SpillStore) -> None:
    spilled = store.spill(slot, PAGE_BYTES, 1000)
    view = map_copy_on_write(spilled.open(), 0, spilled.length, lambda: None, prefault=False)
    spilled.discard()
    assert bytes(view) == bytes(slot.part(PAGE_BYTES, 1000).view), "also after it was discarded"


def test_what_another_user_puts_in_the_place_of_the_directory_is_neither_written_to_nor_emptied(
    slot: Slot, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("thesis", "pid"):
        (own / name).write_text("kept")
    store = SpillStore(tmp_path / "spill", "guest")
    # a directory that others may write to, and that is not sticky, lets them do that
    store.path.rename(tmp_path / "spill" / "moved")
    store.path.symlink_to(own)
    spilled = store.spill(slot, 0, 100)
    view = map_copy_on_write(spilled.open(), 0, spilled.length, lambda: None, prefault=False)
    assert bytes(view) == bytes(slot.part(0, 100).view)
    spilled.discard()
    store.spill(slot, 0, 100)
    store.close()
    assert sorted(path.name for path in own.iterdir()) == ["pid", "thesis"]
    assert list((tmp_path / "spill" / "moved").iterdir()) == []


def test_what_the_disk_does_not_let_go_keeps_nobody_from_going_on(
    slot: Slot, store: SpillStore, caplog: pytest.LogCaptureFixture
) -> None:
    spilled = store.spill(slot, 0, 100)
    spilled.path.unlink()
    spilled.path.mkdir()
    spilled.discard()
    assert "stays on disk" in caplog.text


def test_discarding_removes_the_file_and_may_be_repeated(slot: Slot, store: SpillStore) -> None:
    spilled = store.spill(slot, 0, 100)
    spilled.discard()
    spilled.discard()
    assert payload_files(store) == []


def test_several_threads_spill_at_once(slot: Slot, store: SpillStore) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        lengths = list(range(1, 8 * PAGE_BYTES, 1111))
        spilled = list(executor.map(lambda length: store.spill(slot, 0, length), lengths))
    whole = bytes(slot.view)
    assert [each.path.read_bytes() for each in spilled] == [whole[:length] for length in lengths]


def test_a_piece_outside_the_slot_is_refused(slot: Slot, store: SpillStore) -> None:
    with pytest.raises(ValueError, match="outside a slot"):
        store.spill(slot, PAGE_BYTES, 8 * PAGE_BYTES)
    assert payload_files(store) == []


def test_closing_removes_all_that_is_still_spilled(slot: Slot, store: SpillStore) -> None:
    spilled = store.spill(slot, 0, 100)
    store.close()
    store.close()
    assert not store.path.exists()
    spilled.discard()


def test_a_spill_directory_that_cannot_be_made_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MemoryPoolError) as caught:
        SpillStore(tmp_path / "file" / "spill")
    assert caught.value.code is ErrorCode.SPILL_FAILED
    assert "memory.spill_directory" in caught.value.remedy
