"""Boots a User Mode Linux guest that sees this machine's files, and follows what it says."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.softroce.errors import GuestError
from deploy.softroce.guest_memory import find_place
from deploy.softroce.job import Job

Event = dict[str, Any]

POWER_OFF_SECONDS = 5.0
ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1

_INIT = """\
#!/bin/sh
# first process of the guest: everything writable for as long as the guest lives, then the guest program
PATH={tools}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mount -t proc proc /mnt/root/proc
mount -t sysfs sysfs /mnt/root/sys
mount -t devtmpfs devtmpfs /mnt/root/dev
mkdir -p /mnt/root/dev/shm /mnt/root/dev/pts
mount -t tmpfs tmpfs /mnt/root/dev/shm
mount -t devpts devpts /mnt/root/dev/pts
mount -t tmpfs tmpfs /mnt/root/run
ln -sf /proc/self/fd /mnt/root/dev/fd
{shared}
cd {root} && chroot /mnt/root /bin/sh -c {guest}
sync
echo o > /proc/sysrq-trigger
sleep 60
"""


def init_script(job_file: Path, shared: Path) -> str:
    """The guest's first process, as a shell script.

    Args:
        job_file: the `Job`, at its path on this machine; beside it lies `bin`, with programs to use before others.
        shared: a directory of this machine that the guest may write to, at the same path.
    """
    guest = shlex.join([sys.executable, "-S", "-m", "deploy.softroce.guest", str(job_file)])
    mount = shlex.join(["mount", "-t", "hostfs", "none", "-o", str(shared), f"/mnt/root{shared}"])
    guest = f"cd {shlex.quote(str(ROOT))} && PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 exec {guest}"
    tools = shlex.quote(str(job_file.parent / "bin"))
    return _INIT.format(tools=tools, shared=mount, root=shlex.quote(str(ROOT)), guest=shlex.quote(guest))


def kernel_command(kernel: Path, directory: Path, *, memory_bytes: int, virtual_time: bool, channel: int) -> list[str]:
    """The command that boots a guest.

    Args:
        directory: in which `init` lies and the kernel, started there, keeps its own files.
        channel: file descriptor that becomes the guest's second console.
    """
    return [
        str(kernel),
        f"mem={memory_bytes // 2**20}M",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        # the kernel takes quotes off; it would cut at a space otherwise
        f'init="{directory / "init"}"',
        # its control socket lies in there: by no more of a path than a socket may have
        "uml_dir=.",
        "umid=guest",
        "con=null",
        "con0=null,fd:1",
        f"con1=null,fd:{channel}",
        "seccomp=on",
        # neighbour discovery would put packets of its own on the wire, at random times
        "ipv6.disable=1",
        *(["time-travel=inf-cpu"] if virtual_time else []),
    ]


class Guest:
    """One boot. Use as a context manager: nothing of the guest is left when it ends.

    Raises:
        TestbedError: there is no room for its memory, or the kernel could not be started.
    """

    def __init__(self, kernel: Path, job: Job, shared: Path, *, memory_bytes: int, virtual_time: bool) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fedrdma-testbed-"))
        self._log = self._directory / "kernel.log"
        self._finished = False
        reading, writing = os.pipe()
        self._channel = os.fdopen(reading, "rb", buffering=0)
        try:
            job.write(self._directory / "job.json")
            _provide_mount(self._directory / "bin")
            init = self._directory / "init"
            init.write_text(init_script(self._directory / "job.json", shared))
            init.chmod(0o755)
            command = kernel_command(
                kernel, self._directory, memory_bytes=memory_bytes, virtual_time=virtual_time, channel=writing
            )
            place = find_place(memory_bytes)
            self._process = self._boot([*place.prefix, *command], place.environment, writing)
        except BaseException:
            self._tidy()
            raise
        finally:
            os.close(writing)

    def _boot(self, command: list[str], environment: Mapping[str, str], channel: int) -> subprocess.Popen[bytes]:
        try:
            with self._log.open("wb") as log:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[channel],
                    cwd=self._directory,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except OSError as error:
            raise GuestError(f"{command[0]} does not start: {error.strerror}", "scripts/testbed kernel") from error

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(POWER_OFF_SECONDS if self._finished else 0)
        # the processes of the guest are processes of this machine, in one group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._tidy()

    def events(self, deadline: float, silence: float = math.inf) -> Iterator[Event]:
        """What the guest says, until all its programs have ended.

        Args:
            deadline: by `time.monotonic()`.
            silence: seconds without a word from it that are too long.

        Raises:
            TimeoutError: the deadline passed first, or it was silent for too long.
            GuestError: the guest failed; with the end of its kernel's log.
        """
        for line in self._lines(deadline, silence):
            event: Event = json.loads(line)
            if event["event"] == "failed":
                raise GuestError(f"the guest could not be set up: {event['message']}")
            if event["event"] == "done":
                self._finished = True
                return
            yield event
        log = self._log.read_text(errors="replace").splitlines()[-15:]
        raise GuestError("the guest went down before its programs ended.", "\n".join(["its last words:", *log]))

    def _lines(self, deadline: float, silence: float) -> Iterator[bytes]:
        pending = b""
        while True:
            patience = min(deadline - time.monotonic(), silence)
            waiting = None if patience == math.inf else max(0.0, patience)
            ready, _, _ = select.select([self._channel], [], [], waiting)
            if not ready:
                raise TimeoutError
            block = self._channel.read(65536)
            if not block:
                return
            *lines, pending = (pending + block).split(b"\n")
            yield from lines

    def _tidy(self) -> None:
        self._channel.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def _provide_mount(directory: Path) -> None:
    """A `mount` that runs as whoever calls it.

    The machine's has the set-uid bit; a guest in a user namespace sees it owned by nobody, and would run it as that.
    """
    directory.mkdir()
    mount = shutil.which("mount")
    if mount is not None:
        shutil.copyfile(mount, directory / "mount")
        (directory / "mount").chmod(0o755)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
