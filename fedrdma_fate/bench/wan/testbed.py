"""Runs programs on two hosts of the testbed, which belongs to the repository and not to the installed package."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.wan.wan_link import LARGEST_RDMA_PACKET_BYTES, WanLink
from fedrdma_fate.wire.errors import ErrorCode, TransportError

_TESTBED = "deploy.softroce"
_MARK = Path("deploy", "softroce", "__main__.py")
_SENDER, _RECEIVER = "0", "1"
_STOP_SECONDS = 20.0
"""The testbed keeps to its limit, and ends when it is asked to; one that takes so much longer is killed."""
_TIMED_OUT = 124
"""Exit status of a program that the testbed has ended at its limit, timeout(1)'s."""
_OWN_PREFIX = "testbed: "
_PROBLEM = "error: "
_SEPARATOR = "; "
_TRACE = "trace"
_FROM_A_HOST = re.compile(r"\[(\d+)\] ")
_FAILED_HOST = re.compile(r"testbed: host (\d+) ended with status ")


def find_checkout(named: Path | None = None) -> Path:
    """The repository: as named, or that which this package is a part of, or that of the working directory.

    Raises:
        TransportError: TESTBED_UNAVAILABLE when it has no testbed.
    """
    candidates = [named] if named else [Path(__file__).resolve().parents[3], Path.cwd(), *Path.cwd().parents]
    for candidate in candidates:
        if (candidate / _MARK).is_file():
            return candidate.resolve()
    where = f"{named} holds" if named else "the installed package and the working directory hold"
    raise TransportError(
        ErrorCode.TESTBED_UNAVAILABLE,
        f"{where} no testbed (deploy/softroce).",
        "Run it in a clone of the repository, or name one with --checkout.",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class TestbedRun:
    """What came of a program on all hosts.

    Attributes:
        stdout: what they printed, each line with its host before it.
        counts: the testbed's report: by what is counted, by host.
        wall_seconds: that it took, with the boot.
    """

    __test__ = False
    """Not a test case, whatever its name says to pytest."""

    stdout: str
    counts: Mapping[str, Mapping[str, Any]]
    wall_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class HostRun:
    """What came of a program on two hosts.

    Attributes:
        printed: by host 0, the lines of its standard output.
        lost_packets: that the WAN lost of what host 0 sent.
        overflowed_packets: that did not fit into the buffer in front of host 1.
        policed_packets: that the policer in front of host 1 dropped.
        wall_seconds: that it took, with the boot.
        queue: most bytes seen in the buffer in front of host 1, in windows of time: when one ended, by the guest's
            clock, and the bytes.
        rdma_packet_bytes: of payload that an RDMA packet carries over the link.
    """

    printed: Sequence[str]
    lost_packets: int
    overflowed_packets: int
    wall_seconds: float
    queue: Sequence[tuple[float, int]] = ()
    rdma_packet_bytes: int = LARGEST_RDMA_PACKET_BYTES
    policed_packets: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Testbed:
    """Two hosts and a link, in virtual time; made afresh for every run.

    Attributes:
        checkout: the repository.
        link: between the hosts.
        seed: of the losses.
        kernel: as `scripts/testbed run` takes it.
        limit_seconds: of wall time for one run.
        more: further options of `scripts/testbed run`.
    """

    __test__ = False
    """Not a test case, whatever its name says to pytest."""

    checkout: Path
    link: WanLink
    seed: int
    kernel: str
    limit_seconds: float
    more: tuple[str, ...] = ()

    def check(self) -> None:
        """Find out whether there is a kernel to boot.

        Raises:
            TransportError: TESTBED_UNAVAILABLE: there is none.
        """
        done = self._start("kernel", "--kernel", self.kernel)
        if done.returncode:
            problem, *remedy = reason(done.returncode, done.stderr).split(_SEPARATOR)
            raise TransportError(ErrorCode.TESTBED_UNAVAILABLE, f"the testbed: {problem}", " ".join(remedy))

    def run(self, program: Sequence[str], memory_bytes: int) -> HostRun:
        """Run a module with arguments on both hosts, to the end.

        Raises:
            RowError: a host's program or the testbed failed, or it took too long; with what it said last.
        """
        done = self.run_all(program, memory_bytes)
        return HostRun(
            printed=list(lines_of(_SENDER, done.stdout)),
            lost_packets=done.counts["lost"].get(_SENDER, 0),
            overflowed_packets=done.counts["overflowed"].get(_RECEIVER, 0),
            wall_seconds=done.wall_seconds,
            queue=[(ended, size) for ended, size in done.counts["queues"].get(_RECEIVER, [])],
            rdma_packet_bytes=self.link.rdma_packet_bytes,
            policed_packets=done.counts["policed"].get(_RECEIVER, 0),
        )

    def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
        """Run a module with arguments on all hosts that there are, to the end.

        Raises:
            RowError: as `run` does.
        """
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fedrdma-bench-wan-") as directory:
            report = Path(directory, "report.json")
            options = self._options(memory_bytes, report)
            if self.link.rate_trace is not None:
                Path(directory, _TRACE).write_text(self.link.rate_trace.to_text())
            done = self._start("run", *options, "--", sys.executable, "-m", *program, limit=self.limit_seconds)
            if done.returncode:
                raise RowError(reason(done.returncode, done.stderr))
            counts = json.loads(report.read_text())
        return TestbedRun(done.stdout, counts, time.monotonic() - started)

    def _options(self, memory_bytes: int, report: Path) -> list[str]:
        options: dict[str, object] = {
            "--rtt": f"{self.link.rtt_ns}ns",
            "--buffer": self.link.buffer_bytes,
            "--loss": f"{self.link.loss * 100:.9f}%",
            "--seed": self.seed,
            "--kernel": self.kernel,
            "--memory": memory_bytes,
            "--timeout": self.limit_seconds,
            "--report": report,
        }
        if self.link.rate_trace is None:
            options["--rate"] = f"{self.link.rate_bps}bit"
        else:
            options["--rate-trace"] = report.with_name(_TRACE)
        if self.link.jitter_ns:
            options["--jitter"] = f"{self.link.jitter_ns}ns"
        if self.link.slot_ns:
            options["--slots"] = f"{self.link.slot_ns}ns"
        if self.link.back_slot_ns is not None:
            options["--back-slots"] = f"{self.link.back_slot_ns}ns"
        if self.link.burst_packets > 1:
            options["--burst"] = self.link.burst_packets
        if self.link.delay_packets is not None:
            options["--delay-packets"] = self.link.delay_packets
        if self.link.mtu_bytes is not None:
            options["--mtu"] = self.link.mtu_bytes
        if self.link.policer is not None:
            options["--policer"] = self.link.policer
        if self.link.cross is not None:
            options["--cross"] = self.link.cross
        if self.link.nic_rate_bps is not None:
            options["--nic-rate"] = f"{self.link.nic_rate_bps}bit"
        if self.link.back_rate_bps is not None:
            options["--back-rate"] = f"{self.link.back_rate_bps}bit"
        if self.link.back_loss is not None:
            options["--back-loss"] = f"{self.link.back_loss * 100:.9f}%"
        reordering = ["--reorder"] if self.link.reorders else []
        shaped = (str(part) for option in options.items() for part in option)
        return ["--virtual-time", "--watch-queues", *reordering, *shaped, *self.more]

    def _start(self, *arguments: str, limit: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run the testbed's command line to its end, or stop it, and its guest with it."""
        paths = [str(self.checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", _TESTBED, *arguments],
            cwd=self.checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            # it keeps to the limit itself; this is for one that does not
            stdout, stderr = process.communicate(timeout=None if limit is None else limit + _STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RowError(f"the testbed did not end within {limit:g} s") from error
        finally:
            _end(process)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def lines_of(host: str, text: str) -> Iterator[str]:
    """What one host printed, out of what all did."""
    prefix = f"[{host}] "
    return (line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix))


def reason(status: int, errors: str) -> str:
    """Why a run failed: what the first host that failed, or complained, said last, else the testbed's own words.

    Args:
        status: the testbed's exit status, not zero.
        errors: what it and the hosts printed on standard error.
    """
    complaining = [match[1] for line in errors.splitlines() if (match := _FROM_A_HOST.match(line))]
    hosts = [*_FAILED_HOST.findall(errors), *sorted(set(complaining), key=int)]
    for host in () if status == _TIMED_OUT else hosts:
        said = [line for line in lines_of(host, errors) if line.strip()]
        if said:
            return f"host {host}: {said[-1].strip()}"
    own = [line.strip() for line in errors.splitlines() if line.strip() and not _FROM_A_HOST.match(line)]
    problems = [number for number, line in enumerate(own) if _PROBLEM in line]
    told = _SEPARATOR.join(line.removeprefix(_OWN_PREFIX) for line in own[problems[-1] if problems else 0 :])
    return told.split(_PROBLEM, 1)[-1] or f"the testbed ended with status {status}"
