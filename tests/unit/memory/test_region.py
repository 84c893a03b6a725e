"""Behaviour of shared regions and of the directory that holds a gateway's."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrdma_fate import memory_files
from fedrdma_fate.memory import region as region_module
from fedrdma_fate.memory.owned_directory import OwnedDirectory, sweep
from fedrdma_fate.memory.paging import MADV_POPULATE_READ, advise
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.memory.region_directory import RegionDirectory
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError


def test_what_one_process_writes_another_that_attached_reads() -> None:
    made = SharedRegion.create("send", 4 * PAGE_BYTES)
    seen = SharedRegion.attach(os.dup(made.fileno), made.length)
    made.view[PAGE_BYTES : PAGE_BYTES + 5] = b"hello"
    assert bytes(seen.view[PAGE_BYTES : PAGE_BYTES + 5]) == b"hello"
    assert seen.length == made.length == 4 * PAGE_BYTES
    assert os.pread(made.fileno, 5, PAGE_BYTES) == b"hello"
    assert made.address != seen.address
    seen.close()
    made.close()


def test_a_new_region_is_all_zeroes_and_private_to_the_user() -> None:
    region = SharedRegion.create("send", 2 * PAGE_BYTES)
    assert bytes(region.view) == bytes(2 * PAGE_BYTES)
    assert stat.S_IMODE(os.fstat(region.fileno).st_mode) == 0o600
    region.close()


def test_a_region_has_its_memory_from_the_start() -> None:
    region = SharedRegion.create("send", 64 * PAGE_BYTES)
    assert os.fstat(region.fileno).st_blocks * 512 >= 64 * PAGE_BYTES
    region.close()


@pytest.mark.parametrize("length", [PAGE_BYTES, 3 * PAGE_BYTES])
def test_nobody_can_give_a_region_another_length(length: int) -> None:
    region = SharedRegion.create("send", 2 * PAGE_BYTES)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fileno, length)
    region.close()


def test_a_region_for_which_there_is_less_memory_than_it_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_module, "available_bytes", lambda: PAGE_BYTES)
    with pytest.raises(MemoryPoolError) as caught:
        SharedRegion.create("send", 2 * PAGE_BYTES)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert str(PAGE_BYTES) in caught.value.message
    SharedRegion.create("send", 2 * PAGE_BYTES, warm=False).close()


def test_a_kernel_that_cannot_fault_in_on_advice_gets_a_populated_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    flags_used = []
    real_mmap = mmap.mmap

    def recording(fileno: int, length: int, flags: int = mmap.MAP_SHARED) -> mmap.mmap:
        flags_used.append(flags)
        return real_mmap(fileno, length, flags)

    monkeypatch.setattr(region_module, "advise", lambda *_: False)
    monkeypatch.setattr(mmap, "mmap", recording)
    region = SharedRegion.create("send", 4 * PAGE_BYTES)
    assert flags_used[-1] & mmap.MAP_POPULATE
    region.view[:1] = b"x"
    region.close()


@pytest.mark.parametrize("length", [0, -PAGE_BYTES, PAGE_BYTES + 1])
def test_a_length_that_is_not_whole_pages_is_refused(length: int) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        SharedRegion.create("send", length)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE


def unsealed(length: int) -> int:
    fileno = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fileno, length)
    return fileno


def for_reading(length: int) -> int:
    region = SharedRegion.create("other", length)
    fileno = memory_files.open_for_reading(region.fileno)
    region.close()
    return fileno


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: unsealed(PAGE_BYTES), "cut short"),
        (lambda: os.dup(SharedRegion.create("longer", 2 * PAGE_BYTES).fileno), f"has {2 * PAGE_BYTES} bytes"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "no file in memory"),
        (lambda: os.open("/dev/shm", os.O_RDONLY), "no file in memory"),
        (lambda: for_reading(PAGE_BYTES), "ermission"),
    ],
    ids=["not sealed", "of another length", "a device", "a directory", "not for writing"],
)
def test_what_is_not_a_sealed_region_for_writing_cannot_be_attached(make: Callable[[], int], why: str) -> None:
    fileno = make()
    with pytest.raises(MemoryPoolError) as caught:
        SharedRegion.attach(fileno, PAGE_BYTES)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert why in caught.value.message
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fileno)


def test_a_file_of_a_disk_cannot_be_attached(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE_BYTES))
    with pytest.raises(MemoryPoolError, match="cut short"):
        SharedRegion.attach(os.open(tmp_path / "file", os.O_RDWR), PAGE_BYTES)


def test_closing_gives_the_memory_back_and_may_be_repeated() -> None:
    region = SharedRegion.create("send", PAGE_BYTES)
    region.close()
    region.close()
    assert region.fileno == -1


def test_an_array_over_a_region_outlives_its_closing() -> None:
    region = SharedRegion.create("send", PAGE_BYTES)
    array = np.frombuffer(region.view, dtype=np.uint8)
    piece = region.view[:4]
    array[:4] = 7
    region.close()
    assert array[:4].tolist() == [7, 7, 7, 7]
    assert bytes(piece) == b"\x07" * 4


def test_advice_that_the_kernel_does_not_take_is_no_error() -> None:
    mapping = mmap.mmap(-1, PAGE_BYTES)
    assert not advise(mapping, 12345)
    assert advise(mapping, mmap.MADV_NORMAL)
    assert MADV_POPULATE_READ == 22, "the kernel's ABI, not ours to choose"


def test_the_directory_rounds_regions_up_to_pages_and_takes_them_along_at_the_end(tmp_path: Path) -> None:
    directory = RegionDirectory.open(tmp_path, "guest")
    send = directory.create_region("send", 10)
    receive = directory.create_region("receive", 3 * PAGE_BYTES)
    assert (send.length, receive.length) == (PAGE_BYTES, 3 * PAGE_BYTES)
    assert directory.path.name.startswith("fedrdma-guest-")
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    directory.close()
    directory.close()
    assert list(tmp_path.iterdir()) == []
    assert (send.fileno, receive.fileno) == (-1, -1)


def test_a_site_name_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    directory = RegionDirectory.open(tmp_path, "../../etc/passwd" + "x" * 300)
    assert directory.path.parent == tmp_path
    directory.close()


def test_two_gateways_of_one_site_live_side_by_side(tmp_path: Path) -> None:
    first = RegionDirectory.open(tmp_path, "guest")
    second = RegionDirectory.open(tmp_path, "guest")
    assert first.path != second.path
    assert first.path.exists(), "the second must not sweep the first, which lives"
    second.close()
    first.close()


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_a_bad_memory_directory_is_named_in_the_error(tmp_path: Path, kind: str) -> None:
    parent = tmp_path / "shm"
    if kind == "file":
        parent.write_bytes(b"")
    with pytest.raises(MemoryPoolError) as caught:
        RegionDirectory.open(parent, "guest")
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert str(parent) in caught.value.message
    assert "memory.directory" in caught.value.remedy


def test_the_sweep_leaves_alone_what_is_not_a_dead_gateways(tmp_path: Path) -> None:
    (tmp_path / "fedrdma-file").write_bytes(b"a file, not a directory")
    (tmp_path / "other").mkdir()
    (tmp_path / "fedrdma-guest-being-made").mkdir()
    outside = tmp_path / "other" / "target"
    outside.mkdir()
    (tmp_path / "fedrdma-link").symlink_to(outside)
    assert sweep(tmp_path) == []
    assert outside.exists()
    assert (tmp_path / "fedrdma-guest-being-made").exists()


def test_the_sweep_removes_a_directory_whose_maker_died_before_it_was_locked(tmp_path: Path) -> None:
    abandoned = tmp_path / "fedrdma-guest-abandoned"
    abandoned.mkdir()
    long_ago = time.time() - 3600
    os.utime(abandoned, (long_ago, long_ago))
    assert sweep(tmp_path) == [abandoned]
    assert not abandoned.exists()


def test_the_sweep_leaves_alone_what_somebody_keeps_under_a_name_like_ours(tmp_path: Path) -> None:
    checkout = tmp_path / "fedrdma-fate"
    (checkout / "docs").mkdir(parents=True)
    notes = tmp_path / "fedrdma-notes"
    notes.mkdir()
    (notes / "tmp-of-mine.txt").write_text("kept")
    for path in (checkout, notes):
        os.utime(path, (0, 0))
    OwnedDirectory.create(tmp_path, "guest").close()
    assert (checkout / "docs").is_dir()
    assert (notes / "tmp-of-mine.txt").read_text() == "kept"


def test_the_sweep_removes_a_directory_whose_maker_died_between_making_and_naming_the_lock(tmp_path: Path) -> None:
    abandoned = Path(tempfile.mkdtemp(prefix="fedrdma-guest-", dir=tmp_path))
    os.close(tempfile.mkstemp(dir=abandoned)[0])
    os.utime(abandoned, (0, 0))
    assert sweep(tmp_path) == [abandoned]


def test_what_a_removal_leaves_that_is_cut_short_is_swept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = OwnedDirectory.create(tmp_path, "guest")
    for name in "abcdefgh":
        (directory.path / name).write_bytes(b"spilled")
    unlink, removed = os.unlink, list[str]()

    def cut_short(path: Any, **how: Any) -> None:
        if len(removed) == 8:
            raise OSError(errno.EIO, "the disk is gone")
        removed.append(str(path))
        unlink(path, **how)

    with monkeypatch.context() as failing:
        failing.setattr(os, "unlink", cut_short)
        directory.close()
    os.utime(directory.path, (0, 0))
    assert len(removed) == 8
    assert sweep(tmp_path) == [directory.path]
    assert not directory.path.exists()


def test_the_sweep_leaves_other_users_directories_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned = tmp_path / "fedrdma-guest-abandoned"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    with monkeypatch.context() as another_user:
        another_user.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert sweep(tmp_path) == []
    assert sweep(tmp_path) == [abandoned]


def test_the_pid_file_names_the_owner_for_people(tmp_path: Path) -> None:
    directory = OwnedDirectory.create(tmp_path, "guest")
    assert (directory.path / "pid").read_text() == f"{os.getpid()}\n"
    directory.close()
