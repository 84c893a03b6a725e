"""What the doctor says of Python, locked memory, shared memory and huge pages, on good machines and on bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrdma_fate.doctor.findings import Finding, Level, fine, worst
from fedrdma_fate.doctor.host import (
    LockedMemory,
    VerbsNeed,
    can_be_ours,
    check_directories,
    check_huge_pages,
    check_memlock,
    check_python,
    check_shared_memory,
    read_huge_page_policy,
    read_privilege,
    size_text,
)
from tests.support.sysfs import write

SHM = Path("/dev/shm")
GIB = 1 << 30


def assert_helps(finding: Finding, level: Level, *words: str) -> None:
    """It has the level, says the words, and what to do."""
    assert finding.level == level
    assert finding.remedy
    for word in words:
        assert word in f"{finding.found} {finding.remedy}"


def test_the_worst_of_findings_is_the_gravest_level() -> None:
    bad = [Finding("a", "warning", "x", "y"), Finding("b", "error", "x", "y"), fine("c", "x")]
    assert [worst([]), worst(bad[2:]), worst([bad[0], bad[2]]), worst(bad)] == ["ok", "ok", "warning", "error"]


# --- Python ---


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_a_python_that_fate_runs_on_is_fine_on_linux(version: tuple[int, int]) -> None:
    assert check_python(version, "Linux", "x86_64") == fine("python", f"Python 3.{version[1]} on Linux x86_64")


def test_a_python_that_only_a_gateway_runs_on_is_fine_and_says_so() -> None:
    finding = check_python((3, 12), "Linux", "x86_64")
    assert finding.level == "ok"
    assert "for a gateway alone" in finding.found


@pytest.mark.parametrize(
    ("version", "system", "processor", "level", "word"),
    [
        ((3, 13), "Linux", "x86_64", "error", "3.10 or 3.11"),
        ((3, 9), "Linux", "x86_64", "error", "3.10 or 3.11"),
        ((3, 11), "Darwin", "arm64", "error", "Linux"),
        ((3, 11), "Linux", "aarch64", "warning", "x86-64"),
    ],
)
def test_another_python_or_platform_is_told(
    version: tuple[int, int], system: str, processor: str, level: Level, word: str
) -> None:
    assert_helps(check_python(version, system, processor), level, word)


# --- locked memory ---


@pytest.mark.parametrize(
    "memory", [LockedMemory(None, False), LockedMemory(2 * GIB, False), LockedMemory(8 << 20, True)]
)
def test_memory_that_can_be_locked_for_both_regions_is_fine(memory: LockedMemory) -> None:
    assert check_memlock(memory, 2 * GIB, "required", devices=True).level == "ok"


@pytest.mark.parametrize(
    ("need", "devices", "level"),
    [("required", True, "error"), ("required", False, "error"), ("wanted", True, "warning")],
)
def test_too_low_a_limit_matters_where_rdma_is_used(need: VerbsNeed, devices: bool, level: Level) -> None:
    finding = check_memlock(LockedMemory(8 << 20, False), 2 * GIB, need, devices=devices)
    assert_helps(finding, level, "8 MiB", "2.0 GiB", "LimitMEMLOCK")


@pytest.mark.parametrize(("need", "devices"), [("wanted", False), ("unused", True)])
def test_a_low_limit_is_fine_where_rdma_is_not_used(need: VerbsNeed, devices: bool) -> None:
    finding = check_memlock(LockedMemory(8 << 20, False), 2 * GIB, need, devices=devices)
    assert finding.level == "ok"
    assert "RDMA only" in finding.found


@pytest.mark.parametrize(
    ("status", "privileged"),
    [("CapEff:\t000001ffffffffff", True), ("CapEff:\t0000000000000000", False), ("CapEff:", False), ("", False)],
)
def test_the_privilege_to_lock_memory_is_read_from_the_capabilities(
    tmp_path: Path, status: str, privileged: bool
) -> None:
    write(tmp_path / "self" / "status", f"Name:\tx\n{status}")
    assert read_privilege(tmp_path) is privileged


def test_a_process_without_readable_status_has_no_privilege(tmp_path: Path) -> None:
    assert not read_privilege(tmp_path)


# --- shared memory ---


def test_memory_for_both_regions_is_fine() -> None:
    assert check_shared_memory(SHM, True, 3 * GIB, 2 * GIB, taken=False).level == "ok"


def test_too_little_memory_is_an_error_with_both_sizes() -> None:
    finding = check_shared_memory(SHM, True, 60 << 20, 2 * GIB, taken=False)
    assert_helps(finding, "error", "60 MiB available", "2.0 GiB", "memory.send_bytes")


def test_little_memory_is_fine_where_the_running_gateway_has_its_regions() -> None:
    assert check_shared_memory(SHM, True, 0, 2 * GIB, taken=True).level == "ok"


def test_a_directory_that_is_not_there_is_an_error() -> None:
    finding = check_shared_memory(Path("/nowhere"), False, 9 * GIB, GIB, taken=False)
    assert_helps(finding, "error", "/nowhere", "memory.directory")


# --- directories ---


def test_a_directory_that_the_gateway_could_make_or_has_is_fine(tmp_path: Path) -> None:
    wanted = {"listen.socket": tmp_path, "memory.spill_directory": tmp_path / "to" / "make"}
    assert check_directories(wanted, taken=False).level == "ok"


def test_a_directory_that_the_gateway_could_not_make_is_an_error_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wanted = {"listen.socket": tmp_path, "memory.spill_directory": tmp_path / "file" / "spill"}
    finding = check_directories(wanted, taken=False)
    assert_helps(finding, "error", "memory.spill_directory", str(tmp_path / "file" / "spill"), "install -d")
    assert "listen.socket" not in finding.found


def test_the_directories_of_a_running_gateway_are_not_looked_at() -> None:
    assert check_directories({"listen.socket": Path("/proc/none")}, taken=True).level == "ok"


def test_a_directory_of_somebody_else_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrdma_fate.doctor.host.os.access", lambda path, _: Path(path) != tmp_path)
    assert not can_be_ours(tmp_path / "spill")


# --- huge pages ---


@pytest.mark.parametrize("policy", ["always", "within_size", "advise", "force"])
def test_a_kernel_that_gives_shared_memory_huge_pages_is_fine(policy: str) -> None:
    assert check_huge_pages(policy, GIB).level == "ok"


@pytest.mark.parametrize("policy", ["never", "unknown", "deny"])
def test_large_regions_in_small_pages_are_warned_of(policy: str) -> None:
    assert_helps(check_huge_pages(policy, GIB), "warning", policy, "docs/sizing.md")


def test_small_regions_need_no_huge_pages() -> None:
    assert check_huge_pages("never", 64 << 20).level == "ok"


@pytest.mark.parametrize(
    ("text", "policy"), [("always within_size advise [never] deny force", "never"), ("odd", "unknown")]
)
def test_the_kernels_policy_is_the_word_in_brackets(tmp_path: Path, text: str, policy: str) -> None:
    write(tmp_path / "kernel" / "mm" / "transparent_hugepage" / "shmem_enabled", text)
    assert read_huge_page_policy(tmp_path) == policy


def test_a_kernel_without_huge_pages_has_an_unknown_policy(tmp_path: Path) -> None:
    assert read_huge_page_policy(tmp_path) == "unknown"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (65536, "64 KiB"), (8 << 20, "8 MiB"), (5 << 40, "5120.0 GiB")]
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    assert size_text(count) == text
