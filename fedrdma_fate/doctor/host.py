"""Checks of the machine: Python, locked memory, shared memory, huge pages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from fedrdma_fate.doctor.findings import Finding, fine

VerbsNeed = Literal["required", "wanted", "unused"]
"""What a configuration asks of RDMA: `transport: verbs`, `auto`, or neither."""

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 12)
NEWEST_PYTHON_OF_FATE = (3, 11)
"""FATE 2.2.0 needs `fate_utils`, of which there is no wheel for a newer one on x86-64, and no source."""
HUGE_PAGES_FROM_BYTES = 256 * 1024 * 1024
"""Regions from this size on are worth huge pages."""

_HUGE_MOUNTS = ("always", "within_size", "advise")


def check_python(version: tuple[int, int], system: str, processor: str) -> Finding:
    """The interpreter and the platform; `version` is (major, minor)."""
    found = f"Python {version[0]}.{version[1]} on {system} {processor}"
    if system != "Linux":
        return Finding("python", "error", found, "Shared memory and RDMA are those of Linux: use Linux on x86-64.")
    if not OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        return Finding("python", "error", found, "Use Python 3.10 or 3.11, as FATE 2.2.0 does, or 3.12 for a gateway.")
    if processor not in ("x86_64", "AMD64"):
        return Finding("python", "warning", found, "Only x86-64 is tested.")
    if version > NEWEST_PYTHON_OF_FATE:
        return fine("python", f"{found}: for a gateway alone, as FATE 2.2.0 needs 3.10 or 3.11")
    return fine("python", found)


@dataclasses.dataclass(frozen=True, slots=True)
class LockedMemory:
    """How much memory this user may lock.

    Attributes:
        limit_bytes: the limit (`ulimit -l`), None for none.
        privileged: whether the process may exceed it (CAP_IPC_LOCK).
    """

    limit_bytes: int | None
    privileged: bool


def check_memlock(memory: LockedMemory, needed_bytes: int, need: VerbsNeed, *, devices: bool) -> Finding:
    """Whether both regions can be registered with an RDMA device.

    Args:
        memory: what may be locked.
        needed_bytes: of both regions.
        need: what the configuration asks of RDMA.
        devices: whether this host has an RDMA device.
    """
    limit = "no limit" if memory.limit_bytes is None else size_text(memory.limit_bytes)
    if memory.privileged:
        limit += ", which this user may exceed"
    found = f"{limit}; both regions are {size_text(needed_bytes)}"
    enough = memory.privileged or memory.limit_bytes is None or memory.limit_bytes >= needed_bytes
    if enough:
        return fine("memlock", found)
    if need == "unused" or (need == "wanted" and not devices):
        return fine("memlock", f"{found}; matters to RDMA only, which is not used here")
    remedy = (
        "Raise the limit of the gateway's user: LimitMEMLOCK=infinity in its unit, or memlock in "
        "/etc/security/limits.conf; or lower memory.send_bytes and memory.receive_bytes."
    )
    return Finding("memlock", "error" if need == "required" else "warning", found, remedy)


def read_privilege(proc: Path) -> bool:
    """Whether this process has CAP_IPC_LOCK; `proc` is /proc."""
    try:
        status = (proc / "self" / "status").read_text()
        effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
        return bool(int(effective, 16) >> 14 & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """The file system that holds a directory.

    Attributes:
        kind: such as `tmpfs`.
        options: its options.
    """

    kind: str
    options: tuple[str, ...]


def mount_of(directory: Path, proc: Path) -> Mount | None:
    """The mount that a directory lies in, None where that cannot be told; `proc` is /proc."""
    try:
        lines = (proc / "self" / "mounts").read_text().splitlines()
    except OSError:
        return None
    found: tuple[int, Mount] | None = None
    for line in lines:
        fields = line.split()
        if len(fields) < 4 or not directory.is_relative_to(fields[1]):
            continue
        # of two mounts on one point, the later hides the earlier
        if found is None or len(fields[1]) >= found[0]:
            found = len(fields[1]), Mount(fields[2], tuple(fields[3].split(",")))
    return None if found is None else found[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """Bytes of a file system."""

    free_bytes: int
    total_bytes: int


def check_shared_memory(
    directory: Path, room: Room | None, mount: Mount | None, needed_bytes: int, *, taken: bool
) -> Finding:
    """Whether both regions fit into `memory.directory`.

    Args:
        directory: that one.
        room: what is there, None when the directory cannot be asked.
        mount: its file system, where that is known.
        needed_bytes: of both regions.
        taken: whether the gateway runs, and has them already.
    """
    check = "shared memory"
    if room is None:
        remedy = "Point memory.directory at a tmpfs that exists and that the gateway's user may write, like /dev/shm."
        return Finding(check, "error", f"{directory} is not there", remedy)
    free, total = size_text(room.free_bytes), size_text(room.total_bytes)
    found = f"{directory}: {free} of {total} free; both regions are {size_text(needed_bytes)}"
    if taken:
        found += ", which the running gateway has"
    elif room.free_bytes < needed_bytes:
        remedy = (
            f"Enlarge it (`mount -o remount,size=SIZE {directory}`; in a container, its shm size), or lower "
            "memory.send_bytes and memory.receive_bytes."
        )
        return Finding(check, "error", found, remedy)
    if mount is not None and mount.kind not in ("tmpfs", "hugetlbfs"):
        return Finding(check, "warning", f"{found}; it is a {mount.kind}", "Use a tmpfs: a disk makes transfers slow.")
    return fine(check, found)


def check_huge_pages(mount: Mount | None, policy: str, largest_region_bytes: int) -> Finding:
    """Whether large regions get huge pages.

    Args:
        mount: the file system of `memory.directory`, where that is known.
        policy: the kernel's for shared memory, see `read_huge_page_policy`.
        largest_region_bytes: of the larger region.
    """
    options = dict(option.partition("=")[::2] for option in mount.options) if mount else {}
    huge = options.get("huge", "never")
    found = f"huge={huge} on the mount, {policy} in the kernel"
    if policy == "force" or (huge in _HUGE_MOUNTS and policy != "deny"):
        return fine("huge pages", found)
    if largest_region_bytes < HUGE_PAGES_FROM_BYTES:
        return fine("huge pages", f"{found}; these regions are too small to gain from them")
    remedy = "Large regions are taken and mapped slower: see docs/sizing.md, Large regions, for the mount option."
    return Finding("huge pages", "warning", found, remedy)


def read_huge_page_policy(sysfs: Path) -> str:
    """The chosen word of transparent_hugepage/shmem_enabled, such as `advise`; `sysfs` is /sys."""
    try:
        text = (sysfs / "kernel" / "mm" / "transparent_hugepage" / "shmem_enabled").read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
