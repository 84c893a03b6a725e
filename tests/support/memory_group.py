"""A control group whose memory a test can cut short, of either version."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sites import eventually

ROOT = Path("/sys/fs/cgroup")
SPARE_BYTES = 256 << 10
"""Above what is in use when the group gets its limit: some pages, which whoever works there has used up at once."""

GONE_SECONDS = 60.0

_UNLIMITED = {"memory.max": "max", "memory.limit_in_bytes": "-1"}


class MemoryGroup:
    """One that is there for a test."""

    def __init__(self, path: Path, limit: str) -> None:
        """
        Args:
            path: of the group.
            limit: the file that has its limit: `memory.max` or `memory.limit_in_bytes`.
        """
        self._path = path
        self._limit = limit

    def command(self, *command: str) -> list[str]:
        """A command that runs in it, with all that it starts."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._path / "cgroup.procs"), *command]

    @property
    def killed(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        name = "memory.events" if self._limit == "memory.max" else "memory.oom_control"
        counts = dict(line.split() for line in (self._path / name).read_text().splitlines())
        return int(counts["oom_kill"])

    def cut_short(self) -> None:
        """Hardly more than is in use."""
        name = "memory.current" if self._limit == "memory.max" else "memory.usage_in_bytes"
        used = int((self._path / name).read_text())
        # of version 1: the kernel says EBUSY where more has come into use meanwhile
        with contextlib.suppress(OSError):
            (self._path / self._limit).write_text(str(used + SPARE_BYTES))

    def remove(self) -> bool:
        """Remove it; False while something is in it."""
        try:
            self._path.rmdir()
        except OSError:
            return False
        return True

    def free(self) -> None:
        """As much as there is."""
        (self._path / self._limit).write_text(_UNLIMITED[self._limit])


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Make one; the test is skipped where that cannot be."""
    made = _made(ROOT / "memory", "memory.limit_in_bytes") or _made(ROOT, "memory.max")
    if made is None:
        pytest.skip(
            f"no control group with a limit of memory can be made in {ROOT}; as root, where it is shown, it can"
        )
    try:
        yield made
    finally:
        # what was killed in it may not have gone yet
        eventually(made.remove, GONE_SECONDS)


def _made(parent: Path, limit: str) -> MemoryGroup | None:
    path = parent / f"test-of-fedrdma-{secrets.token_hex(4)}"
    try:
        path.mkdir()
    except OSError:
        return None
    group = MemoryGroup(path, limit)
    if os.access(path / limit, os.W_OK):
        return group
    group.remove()
    return None
