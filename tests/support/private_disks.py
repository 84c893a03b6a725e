"""Small file systems that a test can fill and only its processes see: by a mount namespace of theirs, or in a guest."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_BLOCK_BYTES = 1 << 16

_MNT_DETACH = 2
"""Of <sys/mount.h>."""


class PrivateDisks:
    """File systems in memory; `enter` begins a command that sees them.

    Attributes:
        enter: what to put before a command; it keeps its process id.
    """

    def __init__(self, root: Path = Path("/"), enter: Sequence[str] = ()) -> None:
        """
        Args:
            root: under which this process sees them.
            enter: what to put before a command.
        """
        self._root = root
        self.enter = list(enter)

    def fill(self, directory: Path) -> None:
        """Take all the room that there is in one of them."""
        with self._filler(directory).open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            for length in (_BLOCK_BYTES, 1):
                with contextlib.suppress(OSError):
                    while filler.write(bytes(length)):
                        pass

    def clear(self, directory: Path) -> None:
        """Give back what `fill` took."""
        self._filler(directory).unlink(missing_ok=True)

    def _filler(self, directory: Path) -> Path:
        return self._root / directory.resolve().relative_to("/") / "filler"


@contextlib.contextmanager
def private_disks(sizes: Mapping[Path, str]) -> Iterator[PrivateDisks | None]:
    """Mount file systems, by their directory and size; None where this user may not."""
    mounts = [f"mount -t tmpfs -o size={size} none '{directory}'" for directory, size in sizes.items()]
    # it ends when its standard input does, so with us
    script = " && ".join([*mounts, "echo ready", "exec cat"])
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script]
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        yield None
        return
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        try:
            enter = ["nsenter", "--target", str(holder.pid), "--user", "--mount", "--preserve-credentials"]
            root = Path("/proc") / str(holder.pid) / "root"
            yield PrivateDisks(root, enter) if holder.stdout.readline() == b"ready\n" else None
        finally:
            holder.kill()


@contextlib.contextmanager
def disks_of_guest(sizes: Mapping[Path, str]) -> Iterator[PrivateDisks]:
    """The same in a guest, where a test is root: this process and all that it starts see them.

    By the system call: the set-uid `mount` of a machine is nobody's in the guest of an ordinary user, and runs as that.

    Raises:
        OSError: they cannot be mounted.
    """
    with contextlib.ExitStack() as stack:
        for directory, size in sizes.items():
            _call("mount", b"none", bytes(directory), b"tmpfs", 0, f"size={size}".encode())
            # even where a process that has not ended yet still has a file there
            stack.callback(_call, "umount2", bytes(directory), _MNT_DETACH)
        yield PrivateDisks()


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
