"""The processes of a run: started, watched, measured, and ended together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

LAST_LINES = 20
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05


class JobFailedError(Exception):
    """The run cannot go on; the message says why and where to look."""


class BadInputError(JobFailedError):
    """The run cannot start for what the user gave it; nothing was left behind."""


@dataclasses.dataclass(slots=True)
class Child:
    """A process of the run.

    Attributes:
        name: for people and file names.
        process: the process.
        log: where its output goes.
        ends_by: the signal that ends it in order.
        peak_rss_bytes: peak resident memory seen so far, shared memory that it touched included.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ends_by: signal.Signals = signal.SIGTERM
    peak_rss_bytes: int = 0


class Children:
    """All processes of a run; none outlives the `with` block."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self.peak_total_bytes = 0

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(self._children)

    def start(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], root: Path) -> Child:
        """Start a process with its output in a log file.

        It gets a process group of its own: an interrupt at the terminal reaches the job alone, which then ends all
        others in order, with what they have forked.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=root,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def wait(self, child: Child) -> int:
        """Wait until one process ends; its exit status."""
        while child.process.poll() is None:
            self.measure()
            time.sleep(_POLL_SECONDS)
        return child.process.returncode

    def forget(self, child: Child) -> None:
        """Watch a process that has ended no longer."""
        self._children.remove(child)

    def check(self, may_end: Sequence[Child] = ()) -> None:
        """Make sure that all run; those in `may_end` may also have ended well.

        Raises:
            JobFailedError: naming the process that ended, its log and the last lines there.
        """
        for child in self._children:
            status = child.process.poll()
            if status is not None and (status != 0 or child not in may_end):
                raise JobFailedError(describe_end(child))

    def measure(self, shared_bytes: int = 0) -> None:
        """Take the memory of all processes now.

        Args:
            shared_bytes: shared memory of the run; counts once in the sum, where every process that touched it counts
                it in its own.
        """
        private, libraries = 0, 0
        for child in self._children:
            with contextlib.suppress(OSError):
                memory = read_memory(child.process.pid)
                child.peak_rss_bytes = max(child.peak_rss_bytes, memory.get("VmHWM", 0))
                private += memory.get("RssAnon", 0)
                libraries = max(libraries, memory.get("RssFile", 0))
        self.peak_total_bytes = max(self.peak_total_bytes, private + libraries + shared_bytes)

    def stop(self, children: Sequence[Child]) -> None:
        """End processes: politely, and after a while by force. Those that have ended are left alone."""
        running = [child for child in children if child.process.poll() is None]
        for child in running:
            _signal_group(child, child.ends_by)
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
        for child in running:
            # also where the process itself has gone: its workers share its group
            _signal_group(child, signal.SIGKILL)
            child.process.wait()


def _signal_group(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process.pid, number)


def read_memory(pid: int) -> dict[str, int]:
    """The memory lines of /proc/PID/status (peak, private, file-backed, …), bytes; none for a process that has ended.

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {name.rstrip(":"): int(size) * 1024 for name, size, _ in fields}


def describe_end(child: Child) -> str:
    """How a process ended, the path of its log and the last lines there."""
    status = child.process.returncode
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
    hint = " The kernel kills for memory in this way." if status == -signal.SIGKILL else ""
    lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    return "\n".join([f"{child.name} {how}.{hint}", f"Its log: {child.log}", *(f"  | {line}" for line in lines)])
