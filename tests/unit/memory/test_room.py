"""How much memory may still be taken: of the host, and of the control groups that have a limit."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from fedrdma_fate.memory import room
from fedrdma_fate.memory.room import available_bytes, group_rooms

MIB = 1 << 20


def group(path: Path, limit: str, used: int, file: int = 0, shmem: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{limit}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 5\nfile {file}\nshmem {shmem}\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("1:name=systemd:/elsewhere\n0::/slice/unit\n")
    return path


def test_every_group_around_a_process_counts_that_has_a_limit(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "groups"
    group(groups, "max", 900 * MIB)
    group(groups / "slice", str(100 * MIB), 40 * MIB)
    group(groups / "slice" / "unit", str(50 * MIB), 30 * MIB)
    assert sorted(group_rooms(groups, own)) == [20 * MIB, 60 * MIB]


def test_files_of_disks_can_be_dropped_and_shared_memory_cannot(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "groups"
    group(groups / "slice" / "unit", str(100 * MIB), 90 * MIB, file=50 * MIB, shmem=20 * MIB)
    assert group_rooms(groups, own) == [40 * MIB]


def test_a_group_that_is_over_its_limit_has_no_room(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "groups"
    group(groups / "slice" / "unit", str(10 * MIB), 11 * MIB)
    assert group_rooms(groups, own) == [0]


@pytest.mark.parametrize("text", ["", "3:memory:/old\n", None])
def test_a_host_without_groups_of_this_version_has_no_limits(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "own").write_text(text)
    assert group_rooms(tmp_path, tmp_path / "own") == []


def test_the_least_of_host_and_groups_is_what_is_available(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = tmp_path / "groups"
    group(groups / "slice" / "unit", str(7 * MIB), MIB)
    monkeypatch.setattr(room, "_CONTROL_GROUPS", groups)
    monkeypatch.setattr(room, "_OWN_GROUP", own)
    assert available_bytes() == 6 * MIB
    group(groups / "slice" / "unit", "max", MIB)
    assert 6 * MIB < available_bytes() <= psutil.virtual_memory().total
