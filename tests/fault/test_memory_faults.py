"""Memory under duress: no room, no descriptors, processes killed in the middle of something."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrdma_fate.memory.mapping import map_copy_on_write, map_for_writing
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.memory.region_directory import RegionDirectory
from fedrdma_fate.memory.spill import SpillStore
from fedrdma_fate.ports import Slot
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError
from tests.support.descriptors import open_descriptors

MIB = 1024 * 1024

OPEN_AND_WAIT = """
import sys
from pathlib import Path
from fedrdma_fate.memory.region_directory import RegionDirectory
from fedrdma_fate.memory.pool import SlotPool
from fedrdma_fate.memory.spill import SpillStore
shared, spill = Path(sys.argv[1]), Path(sys.argv[2])
directory = RegionDirectory.open(shared, "guest")
pool = SlotPool(directory.create_region("send", 1 << 20), "send")
lease = pool.lease(5000, "task")
spilled = SpillStore(spill, "guest").spill(lease.slot, 0, 5000)
print(directory.path, spilled.path, pool.region.fileno, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def limited(which: int, soft: int) -> Iterator[None]:
    """A lower soft limit of this process, for a while."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@contextlib.contextmanager
def gateway_process(shared: Path, spill: Path) -> Iterator[tuple[subprocess.Popen[str], Path, Path, Path]]:
    """A process with a region directory and a spilled message; yields it, both, and where its region is."""
    command = [sys.executable, "-c", OPEN_AND_WAIT, str(shared), str(spill)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            directory, spilled, fileno = process.stdout.readline().split()
            yield process, Path(directory), Path(spilled), Path(f"/proc/{process.pid}/fd/{fileno}")
        finally:
            process.kill()


@pytest.fixture
def slot() -> Iterator[Slot]:
    region = SharedRegion.create("receive", MIB)
    region.view[:] = b"\x5a" * MIB
    yield Slot(region, 0, MIB)
    region.close()


def test_a_region_larger_than_files_may_be_is_refused_and_nothing_is_left() -> None:
    descriptors = open_descriptors()
    with limited(resource.RLIMIT_FSIZE, MIB), pytest.raises(MemoryPoolError) as caught:
        SharedRegion.create("send", 2 * MIB)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert open_descriptors() == descriptors


def test_memory_that_cannot_be_had_is_an_error_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    descriptors = open_descriptors()
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(MemoryPoolError) as caught:
        SharedRegion.create("unlucky", MIB)
    assert "No space left" in caught.value.message
    assert "memory.send_bytes" in caught.value.remedy
    assert open_descriptors() == descriptors
    assert "fedrdma-unlucky" not in Path("/proc/self/maps").read_text(), "its memory is given back, too"


def test_a_region_directory_gives_up_its_first_region_when_the_second_has_no_room(tmp_path: Path) -> None:
    directory = RegionDirectory.open(tmp_path, "guest")
    directory.create_region("send", MIB)
    with limited(resource.RLIMIT_FSIZE, MIB), pytest.raises(MemoryPoolError):
        directory.create_region("receive", 2 * MIB)
    directory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spill_that_hits_a_limit_half_way_leaves_no_file_and_the_slot_as_it_was(tmp_path: Path, slot: Slot) -> None:
    store = SpillStore(tmp_path / "spill")
    with limited(resource.RLIMIT_FSIZE, MIB // 2), pytest.raises(MemoryPoolError) as caught:
        store.spill(slot, 0, MIB)
    assert caught.value.code is ErrorCode.SPILL_FAILED
    assert [path.name for path in store.path.iterdir()] == ["pid"]
    assert bytes(slot.view) == b"\x5a" * MIB
    assert store.spill(slot, 0, MIB).path.stat().st_size == MIB, "and it works again when there is room"


def test_a_disk_that_fills_up_after_short_writes_leaves_no_file(
    tmp_path: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SpillStore(tmp_path / "spill")
    real_write = os.write
    writes: list[int] = []

    def filling_up(fileno: int, data: memoryview) -> int:
        if len(writes) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        writes.append(len(data))
        return real_write(fileno, data[:1000])

    monkeypatch.setattr(os, "write", filling_up)
    with pytest.raises(MemoryPoolError) as caught:
        store.spill(slot, 0, MIB)
    assert writes == [MIB, MIB - 1000, MIB - 2000]
    assert "No space left" in caught.value.message
    assert [path.name for path in store.path.iterdir()] == ["pid"]


def test_a_spill_into_a_directory_that_somebody_removed_is_a_typed_error(tmp_path: Path, slot: Slot) -> None:
    store = SpillStore(tmp_path / "spill")
    shutil.rmtree(store.path)
    with pytest.raises(MemoryPoolError) as caught:
        store.spill(slot, 0, MIB)
    assert caught.value.code is ErrorCode.SPILL_FAILED
    store.close()


def test_a_killed_gateways_directory_and_spill_are_removed_by_the_next(tmp_path: Path) -> None:
    with gateway_process(tmp_path, tmp_path / "spill") as (process, directory, spilled, _):
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert spilled.exists(), "a spilled message outlives its maker"
    assert directory.exists()
    successor = RegionDirectory.open(tmp_path, "guest")
    store = SpillStore(tmp_path / "spill", "guest")
    assert not directory.exists()
    assert not spilled.parent.exists()
    successor.close()
    store.close()


def test_a_living_gateways_directory_and_spill_are_left_alone(tmp_path: Path) -> None:
    with gateway_process(tmp_path, tmp_path / "spill") as (_process, directory, spilled, _):
        RegionDirectory.open(tmp_path, "guest").close()
        SpillStore(tmp_path / "spill", "guest").close()
        assert directory.exists()
        assert spilled.stat().st_size == 5000


def test_a_task_keeps_what_it_has_mapped_when_the_gateway_is_killed(tmp_path: Path) -> None:
    with gateway_process(tmp_path, tmp_path / "spill") as (process, _directory, _spilled, region):
        fileno = os.open(region, os.O_RDWR)
        sending = map_for_writing(fileno).slot(0, 4)
        sending[:] = b"mine"
        received = map_copy_on_write(fileno, 0, 4, lambda: None)
        os.close(fileno)
        process.send_signal(signal.SIGKILL)
        process.wait()
    sending[:1] = b"M"
    assert bytes(received) == b"Mine", "not yet written to, so it still shows the shared page"


def fill_and_die(fileno: int) -> None:
    map_for_writing(fileno).slot(0, MIB)[:] = b"x" * MIB
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_task_killed_while_it_writes_leaves_its_slot_to_the_next() -> None:
    region = SharedRegion.create("send", MIB)
    pool = SlotPool(region, "send")
    lease = pool.lease(MIB, "task")
    assert lease is not None
    child = multiprocessing.get_context("fork").Process(target=fill_and_die, args=(region.fileno,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert bytes(region.view[:1]) == b"x"
    assert pool.release_owner("task") == 1
    successor = pool.lease(MIB, "next")
    assert successor is not None
    successor.slot.view[:] = b"y" * MIB
    assert bytes(region.view[:PAGE_BYTES]) == b"y" * PAGE_BYTES
    region.close()


def test_a_task_out_of_descriptors_gets_a_typed_error_and_recovers(slot: Slot) -> None:
    released: list[None] = []
    lowest_free = os.dup(slot.region.fileno)
    os.close(lowest_free)
    with limited(resource.RLIMIT_NOFILE, lowest_free), pytest.raises(MemoryPoolError) as caught:
        map_copy_on_write(slot.region.fileno, 0, MIB, lambda: released.append(None))
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert released == [], "nothing was mapped, so nothing is released"
    assert bytes(map_copy_on_write(slot.region.fileno, 0, 4, lambda: released.append(None))) == b"\x5a" * 4
