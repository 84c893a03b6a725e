"""The same program on plain processes of this machine, in real time: what a protocol costs CPU and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.protocols.stress import busy_core, core_of, on_core
from fedrdma_fate.bench.wan.testbed import TestbedRun

_LOOK_AGAIN_SECONDS = 0.05
"""Between two looks at whether a host has ended."""
_WHO_LEFT_SECONDS = 5.0
"""In which a host that others have seen leaving has said why, and ends: it closes its line before all else."""
_HAS_LEFT = re.compile(r"host ([0-9]+) has left$")
"""What a host says last that found another gone."""
_END_SECONDS = 10.0
"""In which what was killed is gone: nobody may wait for what a host has left behind."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loopback:
    """A server and silos, each a process with an address of loopback.

    Attributes:
        checkout: the repository, which has the program.
        silos: beside the server.
        limit_seconds: for one run.
        busy_cores: each silo has one core, and a program that keeps it busy.
    """

    checkout: Path
    silos: int
    limit_seconds: float
    busy_cores: bool = False

    def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
        """Run a module with arguments at all hosts, to the end. Nothing of them is left, however they end.

        Raises:
            RowError: a host failed, with what it said last, or it took too long.
        """
        del memory_bytes
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fedrdma-bench-loopback-") as name:
            home = Path(name)
            with self._started(program, home) as hosts:
                self._wait(hosts, home, began + self.limit_seconds)
            printed = [f"[0] {line}\n" for line in (home / "said-0").read_text(errors="replace").splitlines()]
        return TestbedRun("".join(printed), {"lost": {}, "overflowed": {}}, time.monotonic() - began)

    @contextlib.contextmanager
    def _started(self, program: Sequence[str], home: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
        addresses = ",".join(f"127.0.0.{number}" for number in range(1, self.silos + 2))
        paths = [str(self.checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TESTBED_")},
            "PYTHONPATH": os.pathsep.join(paths),
            "TESTBED_HOSTS": addresses,
            "TESTBED_RATE": "",
            "TESTBED_MEETING": str(home / "meeting"),
        }
        with contextlib.ExitStack() as stack:
            hosts = []
            for number in range(self.silos + 1):
                said, errors = (stack.enter_context((home / f"{kind}-{number}").open("wb")) for kind in _FILES)
                with contextlib.ExitStack() as started:
                    if number and self.busy_cores:
                        stack.enter_context(busy_core(core_of(number), self.limit_seconds + _END_SECONDS))
                        started.enter_context(on_core(core_of(number)))
                    host = subprocess.Popen(
                        [sys.executable, "-m", *program],
                        cwd=self.checkout,
                        env={**environment, "TESTBED_HOST": str(number)},
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=errors,
                        # so that what it starts is found
                        start_new_session=True,
                    )
                stack.callback(_end, host)
                hosts.append(host)
            yield hosts

    def _wait(self, hosts: Sequence[subprocess.Popen[bytes]], home: Path, deadline: float) -> None:
        while None in (ended := [host.poll() for host in hosts]):
            if any(ended):
                break
            if time.monotonic() > deadline:
                raise RowError(f"the hosts did not end within {self.limit_seconds:g} s")
            time.sleep(_LOOK_AGAIN_SECONDS)
        for number, host in enumerate(hosts):
            if host.returncode:
                why = f"host {number}: {self._said(home, number, host)}"
                if (left := _HAS_LEFT.search(why)) is not None and (gone := int(left.group(1))) < len(hosts):
                    # its own words say more, where it still has the time for them
                    its = self._said_in_the_end(home, gone, hosts[gone])
                    why = why if its is None else f"host {gone}: {its}"
                raise RowError(why)

    def _said(self, home: Path, number: int, host: subprocess.Popen[bytes]) -> str:
        lines = (home / f"errors-{number}").read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"it ended with status {host.returncode}"

    def _said_in_the_end(self, home: Path, number: int, host: subprocess.Popen[bytes]) -> str | None:
        """Of a host that has left; None: it does not end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.wait(_WHO_LEFT_SECONDS)
            return self._said(home, number, host)
        return None


_FILES = ("said", "errors")


def _end(host: subprocess.Popen[bytes]) -> None:
    """With all that it has started; returns when nothing of it is left."""
    gone_by = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        while time.monotonic() < gone_by:
            os.killpg(host.pid, signal.SIGKILL)
            time.sleep(_LOOK_AGAIN_SECONDS)
    host.wait()
