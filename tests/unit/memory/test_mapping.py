"""Behaviour of a task's mappings: the send region, and received messages whose slots go back by themselves."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrdma_fate.memory import mapping as mapping_module
from fedrdma_fate.memory.mapping import make_private, map_copy_on_write, map_for_writing
from fedrdma_fate.memory.paging import MADV_POPULATE_WRITE
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError

REGION_BYTES = 8 * 1024 * 1024
EXTENT_BYTES = 2 * 1024 * 1024
PAYLOAD = bytes(range(256)) * 32


class Releases:
    """Counts calls of on_release as a client would: through a SimpleQueue."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self) -> None:
        self._queue.put(None)

    @property
    def count(self) -> int:
        gc.collect()
        return self._queue.qsize()


@pytest.fixture
def region() -> Iterator[SharedRegion]:
    region = SharedRegion.create("receive", REGION_BYTES)
    region.view[PAGE_BYTES : PAGE_BYTES + len(PAYLOAD)] = PAYLOAD
    yield region
    region.close()


@pytest.fixture
def releases() -> Releases:
    return Releases()


def received(region: SharedRegion, releases: Releases) -> memoryview:
    return map_copy_on_write(region.fileno, PAGE_BYTES, len(PAYLOAD), releases)


def test_a_received_view_shows_the_payload_and_may_be_written_to_privately(
    region: SharedRegion, releases: Releases
) -> None:
    view = received(region, releases)
    assert bytes(view) == PAYLOAD
    view[:4] = b"mine"
    assert bytes(region.view[PAGE_BYTES : PAGE_BYTES + len(PAYLOAD)]) == PAYLOAD
    assert bytes(view[:4]) == b"mine"


def test_the_slot_goes_back_once_when_the_view_dies(region: SharedRegion, releases: Releases) -> None:
    view = received(region, releases)
    assert releases.count == 0
    del view
    assert releases.count == 1


@pytest.mark.parametrize("cold", [False, True], ids=["written anew", "pages taken away"])
def test_what_was_made_private_stays_as_it_is_where_it_is_whatever_becomes_of_the_slot(
    region: SharedRegion, releases: Releases, cold: bool
) -> None:
    array = np.frombuffer(received(region, releases), dtype=np.uint8)
    array[5] = 77
    wanted, address = array.tobytes(), array.ctypes.data
    mapping = array.base.obj if isinstance(array.base, memoryview) else array.base
    assert make_private(mapping)
    if cold:
        region.give_back(PAGE_BYTES, len(PAYLOAD))
    region.view[PAGE_BYTES : PAGE_BYTES + len(PAYLOAD)] = bytes(len(PAYLOAD))
    assert (array.tobytes(), array.ctypes.data) == (wanted, address)
    array[6] = 78
    assert array[6] == 78


def test_what_other_threads_write_while_it_is_made_private_is_kept(region: SharedRegion, releases: Releases) -> None:
    view = map_copy_on_write(region.fileno, 0, REGION_BYTES, releases, prefault=False)
    array = np.frombuffer(view, dtype=np.uint64)
    writer = threading.Thread(target=lambda: array.__iadd__(np.uint64(1)))
    before = array.copy()
    writer.start()
    assert isinstance(view.obj, mmap.mmap)
    assert make_private(view.obj)
    writer.join()
    assert (array == before + np.uint64(1)).all()


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="torch comes with the extra `llm`")


def check_keeps_the_slot(region: SharedRegion, releases: Releases, derive: Callable[[memoryview], object]) -> None:
    view = received(region, releases)
    kept = derive(view)
    del view
    assert releases.count == 0
    del kept
    assert releases.count == 1


@pytest.mark.parametrize(
    "derive",
    [
        lambda view: view[5:10].cast("B"),
        lambda view: np.frombuffer(view, dtype=np.uint8),
        lambda view: np.frombuffer(view, dtype=np.float64)[10:20].reshape(2, 5),
        lambda view: np.asarray(view).T,
    ],
    ids=["slice", "array", "view of array", "asarray"],
)
def test_slices_and_arrays_made_from_the_view_keep_the_slot(
    region: SharedRegion, releases: Releases, derive: Callable[[memoryview], object]
) -> None:
    check_keeps_the_slot(region, releases, derive)


@pytest.mark.parametrize(
    "derive",
    [
        lambda torch, view: torch.from_numpy(np.frombuffer(view, dtype=np.float32)).view(-1, 4)[1:],
        lambda torch, view: torch.frombuffer(view, dtype=torch.float64)[3:],
        lambda torch, view: torch.nn.Parameter(torch.frombuffer(view, dtype=torch.float32)),
    ],
    ids=["from_numpy", "frombuffer", "parameter"],
)
def test_tensors_made_from_the_view_keep_the_slot(
    region: SharedRegion, releases: Releases, torch: Any, derive: Callable[[Any, memoryview], object]
) -> None:
    check_keeps_the_slot(region, releases, lambda view: derive(torch, view))


def test_of_many_arrays_the_last_to_die_gives_the_slot_back(region: SharedRegion, releases: Releases) -> None:
    view = received(region, releases)
    arrays = [np.frombuffer(view[start : start + 64], dtype=np.uint8) for start in range(0, 1024, 64)]
    del view
    while len(arrays) > 1:
        arrays.pop()
    assert releases.count == 0
    assert bytes(arrays[0]) == PAYLOAD[:64]
    arrays.clear()
    assert releases.count == 1


def test_a_view_may_die_in_another_thread(region: SharedRegion, releases: Releases) -> None:
    box = [np.frombuffer(received(region, releases), dtype=np.uint8)]
    assert releases.count == 0
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert releases.count == 1


def test_a_view_in_a_reference_cycle_goes_with_the_garbage_collector_and_not_before(
    region: SharedRegion, releases: Releases
) -> None:
    seen_while_dying = []

    class Node:
        def __init__(self) -> None:
            self.me = self
            self.array = np.frombuffer(received(region, releases), dtype=np.uint8)

        def __del__(self) -> None:
            seen_while_dying.append((bytes(self.array[:16]), releases._queue.qsize()))

    gc.disable()
    try:
        Node()
        assert releases._queue.qsize() == 0, "unreachable, but not collected yet"
    finally:
        gc.enable()
    assert releases.count == 1
    assert seen_while_dying == [(PAYLOAD[:16], 0)], "a finalizer may still read its array: the slot was not given back"


def test_two_mappings_of_one_slot_go_back_one_by_one(region: SharedRegion, releases: Releases) -> None:
    first, second = received(region, releases), received(region, releases)
    first[:1] = b"X"
    assert bytes(second) == PAYLOAD
    del first
    assert releases.count == 1
    del second
    assert releases.count == 2


@pytest.mark.parametrize("length", [0, 1, PAGE_BYTES, PAGE_BYTES + 1])
def test_a_view_is_exactly_as_long_as_the_message(region: SharedRegion, releases: Releases, length: int) -> None:
    view = map_copy_on_write(region.fileno, PAGE_BYTES, length, releases)
    assert bytes(view) == PAYLOAD[:length]
    assert not view.readonly
    del view
    assert releases.count == 1


def test_an_empty_spill_file_can_be_mapped(tmp_path: Path, releases: Releases) -> None:
    (tmp_path / "spilled").write_bytes(b"")
    fileno = os.open(tmp_path / "spilled", os.O_RDONLY)
    assert bytes(map_copy_on_write(fileno, 0, 0, releases, prefault=False)) == b""


@pytest.mark.parametrize(("offset", "length"), [(1, 10), (-PAGE_BYTES, 10), (0, -1)])
def test_an_impossible_piece_is_refused(region: SharedRegion, releases: Releases, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        map_copy_on_write(region.fileno, offset, length, releases)
    assert releases.count == 0


def test_a_file_shorter_than_the_message_is_an_error_and_not_a_crash_at_first_touch(
    region: SharedRegion, releases: Releases
) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        map_copy_on_write(region.fileno, REGION_BYTES - PAGE_BYTES, 2 * PAGE_BYTES, releases)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert releases.count == 0


def test_mapping_leaves_no_descriptor_behind(region: SharedRegion, releases: Releases) -> None:
    before = len(os.listdir("/proc/self/fd"))
    views = [received(region, releases) for _ in range(50)]
    views.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def drop_in_child(box: list[Any], releases: Releases, region: SharedRegion, answers: Any) -> None:
    inherited = bytes(box[0])
    box.clear()
    after_drop = releases.count
    own = received(region, releases)
    del own
    answers.put((inherited, after_drop, releases.count))


def test_a_forked_child_reads_what_it_inherits_and_gives_back_only_what_it_mapped_itself(
    region: SharedRegion, releases: Releases
) -> None:
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    box = [np.frombuffer(received(region, releases), dtype=np.uint8)]
    child = fork.Process(target=drop_in_child, args=(box, releases, region, answers))
    child.start()
    assert answers.get() == (PAYLOAD, 0, 1)
    child.join()
    assert releases.count == 0, "the child's view died, not ours"
    box.clear()
    assert releases.count == 1


def test_what_is_written_to_a_slot_is_in_the_region(region: SharedRegion) -> None:
    mapping = map_for_writing(region.fileno)
    slot = mapping.slot(3 * PAGE_BYTES, 5)
    slot[:] = b"hello"
    assert bytes(region.view[3 * PAGE_BYTES : 3 * PAGE_BYTES + 5]) == b"hello"
    assert len(slot) == 5


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, -1), (REGION_BYTES - 4, 5), (REGION_BYTES + 1, 0)])
def test_a_slot_outside_the_region_is_refused(region: SharedRegion, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        map_for_writing(region.fileno).slot(offset, length)


@pytest.fixture
def faulted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (start, length) ranges faulted in for writing."""
    ranges: list[tuple[int, int]] = []

    def record(_mapping: object, advice: int, start: int, length: int) -> bool:
        assert advice == MADV_POPULATE_WRITE
        ranges.append((start, length))
        return True

    monkeypatch.setattr(mapping_module, "advise", record)
    return ranges


def test_each_part_of_the_send_region_is_faulted_in_once_and_only_when_used(
    region: SharedRegion, faulted: list[tuple[int, int]]
) -> None:
    mapping = map_for_writing(region.fileno)
    assert faulted == []
    mapping.slot(EXTENT_BYTES + 5, 10)
    mapping.slot(EXTENT_BYTES, EXTENT_BYTES)
    mapping.slot(0, 3 * EXTENT_BYTES)
    mapping.slot(0, REGION_BYTES)
    mapping.slot(0, REGION_BYTES)
    assert faulted == [
        (EXTENT_BYTES, EXTENT_BYTES),
        (0, 3 * EXTENT_BYTES),
        (3 * EXTENT_BYTES, REGION_BYTES - 3 * EXTENT_BYTES),
    ]


def test_a_region_that_is_no_multiple_of_an_extent_is_faulted_in_to_its_end(faulted: list[tuple[int, int]]) -> None:
    region = SharedRegion.create("send", EXTENT_BYTES + PAGE_BYTES)
    map_for_writing(region.fileno).slot(EXTENT_BYTES, PAGE_BYTES)
    assert faulted == [(EXTENT_BYTES, PAGE_BYTES)]
    region.close()


def test_a_slot_outlives_the_closing_of_its_mapping(region: SharedRegion) -> None:
    mapping = map_for_writing(region.fileno)
    slot = mapping.slot(0, 5)
    mapping.close()
    mapping.close()
    slot[:] = b"still"
    assert bytes(region.view[:5]) == b"still"
    with pytest.raises(ValueError, match="released"):
        mapping.slot(0, 5)
