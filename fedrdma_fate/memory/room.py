"""How much memory this process may still take without another one, or it itself, being ended for it."""

from __future__ import annotations

from pathlib import Path

import psutil

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows control groups, of version 2."""
_OWN_GROUP = Path("/proc/self/cgroup")
"""Says which of them this process is in."""


def available_bytes() -> int:
    """Memory that can be taken now: of the host, or what the control groups of this process leave of it."""
    return min([psutil.virtual_memory().available, *group_rooms(_CONTROL_GROUPS, _OWN_GROUP)])


def group_rooms(groups: Path, own_group: Path) -> list[int]:
    """What each control group around this process has left, of those that have a limit.

    Args:
        groups: where control groups are shown.
        own_group: the file that says which is ours.
    """
    try:
        name = next(line[3:] for line in own_group.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = groups / name.strip("/")
    rooms = [_room(each) for each in (group, *group.parents) if each.is_relative_to(groups)]
    return [room for room in rooms if room is not None]


def _room(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        parts = {name: int(value) for name, value in lines}
    except (OSError, ValueError):
        return None
    # pages of files on disk go when they must; those of shared memory are counted as files, and stay
    droppable = max(0, parts.get("file", 0) - parts.get("shmem", 0))
    return max(0, int(limit) - used + droppable)
