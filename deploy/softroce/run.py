"""`scripts/testbed run`: a program on every host of a fresh testbed."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deploy.softroce.errors import TestbedError
from deploy.softroce.job import Job, Program
from deploy.softroce.queues import Peaks, sampling_seconds
from deploy.softroce.schedule import Change, steps
from deploy.softroce.uml import ROOT, Guest
from deploy.softroce.wan import DROPPERS, NETDEV, Host, Wan, plan
from fedrdma_fate.bench.wan.shaping import CrossTraffic

ShowLine = Callable[[int, str, str], None]
"""Called with a host, `stdout` or `stderr`, and a line with its end, as the programs print them."""

TIMED_OUT = 124
"""Exit status of a run that was stopped, as of timeout(1)."""

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "rdma": "iproute2", "bridge": "iproute2", "mount": "mount"}
_UNLIMITED_BPS = 10**10
"""What cross traffic takes a link without a rate for."""
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What is to be run.

    Attributes:
        commands: one for each host.
        output: directory that the guest may write to; None: one that is thrown away.
        timeout: seconds of wall time, from the boot on.
        silence: seconds without a line from any program after which nothing is expected any more.
        environment: of every program, beside what tells it who it is.
        watch_queues: find out how full the bottlenecks' buffers get.
        changes: of the WAN while the programs run.
        cross: flows that another host sends to host 1 meanwhile; None: none.
    """

    commands: tuple[tuple[str, ...], ...]
    wan: Wan
    kernel: Path
    virtual_time: bool
    memory_bytes: int
    timeout: float
    output: Path | None
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    watch_queues: bool = False
    changes: tuple[Change, ...] = ()
    cross: CrossTraffic | None = None
    silence: float = math.inf

    def __post_init__(self) -> None:
        if self.output is not None and "," in str(self.output.resolve()):
            raise ValueError(f"{self.output}: a directory with a comma in its name cannot be shared with the guest")
        if self.watch_queues and self.wan.rate is None:
            raise ValueError("without a rate there is no bottleneck whose buffer could be watched")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        statuses: exit status by host, of those that ended; 128 and the signal's number where one ended a program.
        timed_out: the run was stopped because its time was over, or it was silent for too long.
        lost: packets of each host that the WAN lost, as it was asked to (`--loss`), and packets for it that a link of
            its own lost.
        overflowed: packets that did not fit into the bottleneck's buffer in front of each host, or behind it where it
            has a rate of its own.
        policed: packets that the policer in front of each host had no tokens for.
        queues: most bytes seen in the bottleneck's buffer in front of each host, where they were watched, in windows of
            time: when one ended, by the guest's monotonic clock, and the bytes.
    """

    statuses: Mapping[int, int]
    timed_out: bool
    lost: Mapping[int, int] = dataclasses.field(default_factory=dict)
    overflowed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    policed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    queues: Mapping[int, Peaks] = dataclasses.field(default_factory=dict)

    @property
    def status(self) -> int:
        """TIMED_OUT, or the first status by host that is not zero, or zero."""
        if self.timed_out:
            return TIMED_OUT
        return next((status for _, status in sorted(self.statuses.items()) if status), 0)


def missing_tools() -> dict[str, str]:
    """Programs that the guest needs and this machine lacks, with their Debian packages."""
    path = f"{os.environ.get('PATH', '')}:{_ADMIN_PATH}"
    return {tool: package for tool, package in _TOOLS.items() if shutil.which(tool, path=path) is None}


def host_environment(host: Host, run: Run, output: Path) -> dict[str, str]:
    """The environment of a host's program: the run's, and who it is."""
    return {
        **_repeatable(run),
        **run.environment,
        "PATH": f"{run.environment.get('PATH', '/usr/bin:/bin')}:{_ADMIN_PATH}",
        "TESTBED_HOST": str(host.index),
        "TESTBED_HOSTS": ",".join(Host(index).address for index in range(len(run.commands))),
        "TESTBED_ADDRESS": host.address,
        "TESTBED_DEVICE": host.device,
        "TESTBED_NETDEV": NETDEV,
        "TESTBED_OUT": str(output),
        "TESTBED_RATE": "" if run.wan.rate is None else str(run.wan.rate),
        "TESTBED_RTT": f"{run.wan.rtt_ns / 1e9:g}",
        "TESTBED_PERIOD": f"{_period_ns(run) / 1e9:.9f}",
        "TESTBED_VIRTUAL_TIME": str(int(run.virtual_time)),
    }


def _repeatable(run: Run) -> dict[str, str]:
    """What makes programs do the same in every boot in virtual time, unless the caller says otherwise.

    Python orders sets by a hash that has another seed in every process. In another order a program looks at the clock
    more or less often, each look takes virtual time, and full buffers make much of that.
    """
    return {"PYTHONHASHSEED": "0"} if run.virtual_time else {}


def _period_ns(run: Run) -> int:
    """After which the path is as it was before, where it changes by itself, by its trace or else by cross traffic."""
    if run.wan.trace is not None and run.wan.trace.repeat_ns is not None:
        return run.wan.trace.repeat_ns
    return 0 if run.cross is None else run.cross.on_ns + run.cross.off_ns


def execute(run: Run, show: ShowLine) -> Outcome:
    """Boot, run a program on every host, tell what they print, take everything down.

    Raises:
        TestbedError: a tool is missing, or the guest failed.
        ValueError: the network cannot be as asked for.
    """
    missing = missing_tools()
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise TestbedError(f"missing on this machine: {', '.join(missing)}.", f"apt-get install {packages}")
    if run.output is not None:
        run.output.mkdir(parents=True, exist_ok=True)
        return _execute(run, run.output.resolve(), show)
    with tempfile.TemporaryDirectory(prefix="fedrdma-testbed-out-") as output:
        return _execute(run, Path(output).resolve(), show)


def _execute(run: Run, output: Path, show: ShowLine) -> Outcome:
    hosts = [Host(index) for index in range(len(run.commands))]
    programs = tuple(
        Program(host.namespace, command, host_environment(host, run, output))
        for host, command in zip(hosts, run.commands, strict=True)
    )
    count = len(hosts) + (run.cross is not None)
    programs += tuple(_cross_programs(run))
    network = dataclasses.replace(plan(run.wan, count), steps=steps(run.wan, count, run.changes))
    sampling = _sampling_seconds(run)
    job = Job(network, programs, str(Path.cwd()), real_time=not run.virtual_time, sample_seconds=sampling)
    statuses: dict[int, int] = {}
    counted: dict[str, dict[int, Any]] = {}
    deadline = time.monotonic() + run.timeout
    with Guest(run.kernel, job, output, memory_bytes=run.memory_bytes, virtual_time=run.virtual_time) as guest:
        try:
            for event in guest.events(deadline, run.silence):
                if event["event"] == "line":
                    show(event["host"], event["stream"], event["text"])
                elif event["event"] == "exit":
                    statuses[event["host"]] = event["status"]
                elif event["event"] == "counted":
                    counted = {name: _by_host(event[name]) for name in {*DROPPERS.values(), "queues"}}
        except TimeoutError:
            return Outcome(statuses, timed_out=True)
    return Outcome(statuses, timed_out=False, **counted)


def _cross_programs(run: Run) -> Iterator[Program]:
    """Cross traffic: the host behind the last one sends, host 1 takes."""
    if run.cross is None:
        return
    sender, receiver = Host(len(run.commands)), Host(1)
    times = f"{run.cross.on_ns / 1e9:.9f}", f"{run.cross.off_ns / 1e9:.9f}"
    # four times what is under way where the queue is full: the link is the limit, not the sockets
    buffer = str(4 * int((run.wan.rate or _UNLIMITED_BPS) * run.wan.rtt_ns // (8 * 10**9) + run.wan.buffer_bytes))
    module = (sys.executable, "-m", "deploy.softroce.programs.cross_traffic")
    path = f"{os.environ.get('PATH', '/usr/bin:/bin')}:{_ADMIN_PATH}"
    environment = {**_repeatable(run), "PATH": path, "PYTHONPATH": str(ROOT)}
    taking = (*module, "take", receiver.address, buffer)
    sending = (*module, "send", receiver.address, str(run.cross.flows), *times, buffer)
    for host, command in ((receiver, taking), (sender, sending)):
        yield Program(host.namespace, command, environment, background=True)


def _sampling_seconds(run: Run) -> float | None:
    if not run.watch_queues or run.wan.rate is None:
        return None
    hosts = (Host(index) for index in range(len(run.commands)))
    links = [(rate, run.wan.buffer_of(host)) for host in hosts if (rate := run.wan.rate_to(host)) is not None]
    if run.wan.trace is not None:
        links.append((run.wan.rate, run.wan.buffer_bytes))
    return min(sampling_seconds(rate, buffer_bytes) for rate, buffer_bytes in links)


def _by_host(counts: Mapping[str, Any]) -> dict[int, Any]:
    return {int(host): count for host, count in counts.items()}
