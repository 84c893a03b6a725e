"""Behaviour of shared regions and of the directory that holds a gateway's."""

from __future__ import annotations

import mmap
import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from fedrdma_fate.memory import region as region_module
from fedrdma_fate.memory.owned_directory import OwnedDirectory, sweep
from fedrdma_fate.memory.paging import MADV_POPULATE_READ, advise
from fedrdma_fate.memory.region import PAGE_BYTES, SharedRegion
from fedrdma_fate.memory.region_directory import RegionDirectory
from fedrdma_fate.wire.errors import ErrorCode, MemoryPoolError


def test_what_one_process_writes_another_that_attached_reads(tmp_path: Path) -> None:
    made = SharedRegion.create(tmp_path / "send", 4 * PAGE_BYTES)
    seen = SharedRegion.attach(made.path)
    made.view[PAGE_BYTES : PAGE_BYTES + 5] = b"hello"
    assert bytes(seen.view[PAGE_BYTES : PAGE_BYTES + 5]) == b"hello"
    assert seen.length == made.length == 4 * PAGE_BYTES
    assert os.pread(made.fileno, 5, PAGE_BYTES) == b"hello"
    assert made.address != seen.address
    seen.close()
    made.close()


def test_a_new_region_is_all_zeroes_and_private_to_the_user(tmp_path: Path) -> None:
    region = SharedRegion.create(tmp_path / "send", 2 * PAGE_BYTES)
    assert bytes(region.view) == bytes(2 * PAGE_BYTES)
    assert stat.S_IMODE(region.path.stat().st_mode) == 0o600
    region.close()


def test_a_region_has_its_memory_from_the_start(tmp_path: Path) -> None:
    region = SharedRegion.create(tmp_path / "send", 64 * PAGE_BYTES)
    assert region.path.stat().st_blocks * 512 >= 64 * PAGE_BYTES
    region.close()


def test_a_kernel_that_cannot_fault_in_on_advice_gets_a_populated_mapping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags_used = []
    real_mmap = mmap.mmap

    def recording(fileno: int, length: int, flags: int = mmap.MAP_SHARED) -> mmap.mmap:
        flags_used.append(flags)
        return real_mmap(fileno, length, flags)

    monkeypatch.setattr(region_module, "advise", lambda *_: False)
    monkeypatch.setattr(mmap, "mmap", recording)
    region = SharedRegion.create(tmp_path / "send", 4 * PAGE_BYTES)
    assert flags_used[-1] & mmap.MAP_POPULATE
    region.view[:1] = b"x"
    region.close()


@pytest.mark.parametrize("length", [0, -PAGE_BYTES, PAGE_BYTES + 1])
def test_a_length_that_is_not_whole_pages_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(MemoryPoolError) as caught:
        SharedRegion.create(tmp_path / "send", length)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert not (tmp_path / "send").exists()


def test_an_existing_file_is_neither_used_nor_removed(tmp_path: Path) -> None:
    path = tmp_path / "send"
    path.write_bytes(b"mine")
    with pytest.raises(MemoryPoolError):
        SharedRegion.create(path, PAGE_BYTES)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_what_is_not_a_region_cannot_be_attached(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "send"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MemoryPoolError) as caught:
        SharedRegion.attach(path)
    assert caught.value.code is ErrorCode.REGION_UNAVAILABLE
    assert str(path) in caught.value.message


def test_closing_removes_the_makers_file_and_not_that_of_one_who_attached(tmp_path: Path) -> None:
    made = SharedRegion.create(tmp_path / "send", PAGE_BYTES)
    seen = SharedRegion.attach(made.path)
    seen.close()
    seen.close()
    assert made.path.exists()
    made.close()
    made.close()
    assert not made.path.exists()


def test_an_array_over_a_region_outlives_its_closing(tmp_path: Path) -> None:
    region = SharedRegion.create(tmp_path / "send", PAGE_BYTES)
    array = np.frombuffer(region.view, dtype=np.uint8)
    piece = region.view[:4]
    array[:4] = 7
    region.close()
    assert not region.path.exists()
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
    region = first.create_region("send", PAGE_BYTES)
    second = RegionDirectory.open(tmp_path, "guest")
    assert first.path != second.path
    assert region.path.exists(), "the second must not sweep the first, which lives"
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
