"""Checks of the machine: Python, locked memory, shared memory, directories, huge pages."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
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

_HUGE_POLICIES = ("always", "within_size", "advise", "force")


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
    """Whether both regions can be registered with an RDMA device, for each peer.

    Args:
        memory: what may be locked.
        needed_bytes: of both regions, for all peers.
        need: what the configuration asks of RDMA.
        devices: whether this host has an RDMA device.
    """
    limit = "no limit" if memory.limit_bytes is None else size_text(memory.limit_bytes)
    if memory.privileged:
        limit += ", which this user may exceed"
    found = f"{limit}; both regions, once for each peer, are {size_text(needed_bytes)}"
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


def check_shared_memory(
    directory: Path, usable: bool, available_bytes: int, needed_bytes: int, *, taken: bool
) -> Finding:
    """Whether there is memory for both regions, and `memory.directory` to meet gateways of this host.

    Args:
        directory: that one.
        usable: whether it is there and may be written to.
        available_bytes: memory that a process may still take.
        needed_bytes: of both regions, for all peers.
        taken: whether the gateway runs, and has them already.
    """
    check = "shared memory"
    if not usable:
        remedy = "Point memory.directory at one that exists and that the gateway's user may write, like /dev/shm."
        return Finding(check, "error", f"{directory} is not there, or not ours to write", remedy)
    found = f"{size_text(available_bytes)} available; both regions are {size_text(needed_bytes)}"
    if taken:
        return fine(check, f"{found}, which the running gateway has")
    if available_bytes < needed_bytes:
        remedy = "Free memory, raise the container's limit, or lower memory.send_bytes and memory.receive_bytes."
        return Finding(check, "error", found, remedy)
    return fine(check, found)


def can_be_ours(directory: Path) -> bool:
    """Whether this user may write to a directory, or make it where it is not there yet, as a gateway does at start."""
    nearest = next(place for place in (directory, *directory.parents) if place.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def check_directories(wanted: Mapping[str, Path], *, taken: bool) -> Finding:
    """Whether a gateway of this user could have the directories that it makes files in.

    Args:
        wanted: each by the key of the configuration that names it.
        taken: whether the gateway runs, and has them already.
    """
    check = "directories"
    if taken:
        return fine(check, "the running gateway has them")
    missing = {key: directory for key, directory in wanted.items() if not can_be_ours(directory)}
    if missing:
        remedy = "As root, make them for the gateway's user (`install -d -o USER DIRECTORY`), or name others."
        found = "; ".join(f"{key}: {directory} is not ours to make, or to write" for key, directory in missing.items())
        return Finding(check, "error", found, remedy)
    return fine(check, ", ".join(f"{key}: {directory}" for key, directory in wanted.items()))


def check_huge_pages(policy: str, largest_region_bytes: int) -> Finding:
    """Whether large regions get huge pages.

    Args:
        policy: the kernel's for shared memory, see `read_huge_page_policy`.
        largest_region_bytes: of the larger region.
    """
    found = f"shmem_enabled is {policy}"
    if policy in _HUGE_POLICIES:
        return fine("huge pages", found)
    if largest_region_bytes < HUGE_PAGES_FROM_BYTES:
        return fine("huge pages", f"{found}; these regions are too small to gain from them")
    remedy = "Large regions are taken and mapped slower: see docs/sizing.md, Large regions."
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
