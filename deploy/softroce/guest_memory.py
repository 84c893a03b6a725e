"""Where a guest's memory lies: a file in a tmpfs with room for all of it.

User Mode Linux keeps its memory in a file of the first tmpfs among $TMPDIR, $TMP, $TEMP and /dev/shm, and a guest that
finds no room there dies in the middle of its work. Containers have 64 MB of /dev/shm unless they are told otherwise, so
where there is too little, the guest gets a tmpfs of its own, in a mount namespace that ends with it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from deploy.softroce.errors import TestbedError

SHARED = Path("/dev/shm")  # noqa: S108 - mounted anew for each guest
_VARIABLES = ("TMPDIR", "TMP", "TEMP")
_MOUNT_OWN = 'mount -t tmpfs -o "size=$1,mode=1777" tmpfs "$2" && shift 2 && exec "$@"'
_TRY_SECONDS = 10.0
"""A namespace is made in milliseconds; one that is not after this never is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a guest's memory goes.

    Attributes:
        prefix: what its command starts with.
        environment: of its kernel.
    """

    prefix: tuple[str, ...]
    environment: Mapping[str, str]


def find_place(memory_bytes: int, environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc")) -> Place:
    """A place for a guest with this much memory.

    Raises:
        TestbedError: there is none.
    """
    chosen = first_tmpfs(environment, (proc / "self" / "mounts").read_text())
    # where there is no tmpfs at all, the kernel takes /tmp
    if chosen is None or (free := shutil.disk_usage(chosen).free) >= memory_bytes:
        return Place((), environment)
    rest = {name: value for name, value in environment.items() if name not in _VARIABLES}
    for unshare in (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount")):
        prefix = own_tmpfs(unshare, memory_bytes)
        if _works([*prefix, "true"]):
            return Place(prefix, rest)
    mebibytes = -(-memory_bytes // 2**20)
    raise TestbedError(
        f"the guest's memory of {mebibytes} MiB has no room: {chosen} has {free // 2**20} MiB free, and a tmpfs of its "
        "own cannot be mounted here.",
        f"Enlarge it:  mount -o remount,size={mebibytes}m {chosen}\n"
        f"in a container, start it with a larger one:  --shm-size={mebibytes}m",
    )


def own_tmpfs(unshare: tuple[str, ...], memory_bytes: int) -> tuple[str, ...]:
    """What puts a command into a mount namespace with a tmpfs for it alone."""
    return (*unshare, "sh", "-c", _MOUNT_OWN, "sh", str(memory_bytes), str(SHARED))


def first_tmpfs(environment: Mapping[str, str], mounts: str) -> Path | None:
    """The directory whose tmpfs the kernel takes for a guest's memory.

    Args:
        environment: names directories for temporary files.
        mounts: /proc/self/mounts.
    """
    named = [Path(environment[name]) for name in _VARIABLES if environment.get(name)]
    kinds = {_path(fields[1]): fields[2] for line in mounts.splitlines() if len(fields := line.split()) > 2}
    for directory in (*named, SHARED):
        place = directory.resolve()
        holder = next((each for each in (place, *place.parents) if each in kinds), None)
        if holder is not None and kinds[holder] == "tmpfs" and directory.is_dir():
            return directory
    return None


def _path(field: str) -> Path:
    """A path of /proc/self/mounts, which has spaces and the like in octal."""
    return Path(re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), field))


def _works(command: list[str]) -> bool:
    try:
        done = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TRY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
