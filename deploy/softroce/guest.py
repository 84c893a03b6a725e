"""Runs inside the guest: makes the network, runs a program on every host, tells the outside what happens."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from deploy.softroce.job import CHANNEL, Job, Program
from deploy.softroce.netem import set_netem
from deploy.softroce.queues import watched
from deploy.softroce.rate_trace import TracedBottlenecks
from deploy.softroce.wan import DROPPERS, Host, Plan, Step

LONGEST_LINE_BYTES = 64 * 1024
BEGAN = "TESTBED_BEGAN"
"""Where a program finds when all programs were started, by the clock that `time.monotonic` reads."""

_TAKE_BATCHES = ("ip", "tc", "bridge")

# `ip netns exec` gives the program a mount namespace too; shared memory shall not reach another host either
_OWN_SHARED_MEMORY = ("sh", "-c", '"$0" -t tmpfs tmpfs /dev/shm && exec "$@"')


class Channel:
    """The way out: one JSON object a line, from several threads."""

    def __init__(self, path: str) -> None:
        self._stream = open(path, "wb", buffering=0)  # noqa: SIM115  open as long as the guest runs
        tty.setraw(self._stream.fileno())
        self._lock = threading.Lock()

    def tell(self, event: str, **fields: object) -> None:
        line = memoryview(json.dumps({"event": event, **fields}).encode() + b"\n")
        with self._lock:
            while line:
                line = line[self._stream.write(line) or 0 :]


def build_network(plan: Plan) -> None:
    """Run the plan's commands in order.

    Raises:
        RuntimeError: one failed; with what it said.
    """
    set_queues(plan)


def set_queues(step: Plan | Step) -> None:
    """Run the commands in order, then set the delay lines.

    Raises:
        RuntimeError: a command failed; with what it said.
    """
    for tool, batch in itertools.groupby(step.commands, tool_of):
        _run_batch(tool, list(batch))
    for line in step.delay_lines:
        set_netem(line)


def tool_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The tool that a command is for, with the namespace that it works in: of equal ones, one process does many."""
    if command[0] not in _TAKE_BATCHES or command[:3] == ("ip", "netns", "exec"):
        return command
    return command[:3] if command[1] == "-n" else command[:1]


def _run_batch(tool: tuple[str, ...], batch: Sequence[tuple[str, ...]]) -> None:
    """Run commands of one tool, in a process of their own where it is only one.

    Raises:
        RuntimeError: one failed; with what it said.
    """
    if len(batch) == 1:
        result = subprocess.run(batch[0], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        failed = batch[0]
    else:
        lines = "".join(f"{shlex.join(command[len(tool) :])}\n" for command in batch)
        result = subprocess.run([*tool, "-batch", "-"], check=False, capture_output=True, text=True, input=lines)
        at = re.search(r"Command failed -:(\d+)", result.stderr)
        failed = batch[int(at[1]) - 1] if at else tool
    if result.returncode:
        raise RuntimeError(f"{shlex.join(failed)}: {(result.stderr or result.stdout).strip()}")


def dropped_packets() -> dict[str, dict[str, int]]:
    """What `count_drops` makes of all queues."""
    command = ["tc", "-s", "-j", "qdisc", "show"]
    result = subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return count_drops(json.loads(result.stdout))


def count_drops(queues: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How many packets were lost of what each host sent, overflowed its bottleneck's buffer, or were policed.

    Args:
        queues: as `tc -s -j qdisc show` tells of them.
    """
    counts: dict[str, dict[str, int]] = {name: {} for name in DROPPERS.values()}
    for queue in queues:
        netdev = re.fullmatch(r"([a-z]+)([0-9]+)", queue["dev"])
        meaning = DROPPERS.get((netdev[1], queue["kind"])) if netdev is not None else None
        if netdev is not None and meaning is not None:
            counts[meaning][netdev[2]] = counts[meaning].get(netdev[2], 0) + queue["drops"]
        if netdev is not None and (netdev[1], queue["kind"]) == ("delay", "tbf"):
            # netem counts what the queue inside it drops as dropped by itself
            counts["lost"][netdev[2]] = counts["lost"].get(netdev[2], 0) - queue["drops"]
    return counts


def prefer_network_threads() -> None:
    """A polling program on the guest's one CPU must not keep packets waiting."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().startswith(("kworker/u", "ksoftirqd")):
                os.sched_setscheduler(int(comm.parent.name), os.SCHED_FIFO, os.sched_param(1))


def run_programs(job: Job, channel: Channel) -> None:
    """Start every program, change the WAN when it is time to, wait for all programs."""
    began = time.monotonic()
    background = [_start(program, job.directory, began) for program in job.programs if program.background]
    for process in background:
        # what it says before it is ended is why it ended by itself
        threading.Thread(target=_follow_background, args=(process, channel), daemon=True).start()
    processes = [_start(program, job.directory, began) for program in job.programs if not program.background]
    threads = [
        threading.Thread(target=_follow, args=(index, process, channel)) for index, process in enumerate(processes)
    ]
    for thread in threads:
        thread.start()
    # what is left to do when the last program ends is left undone
    threading.Thread(target=_change, args=(job.plan.steps, began, channel), daemon=True).start()
    if job.plan.traced is not None:
        threading.Thread(target=_follow_trace, args=(job.plan.traced, began, channel), daemon=True).start()
    for thread in threads:
        thread.join()


def _follow_background(process: subprocess.Popen[bytes], channel: Channel) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()
    said = process.stderr.read().decode(errors="replace").strip().splitlines()
    channel.tell("failed", message=f"a program in the background ended with status {process.wait()}: {said[-1:]}")


def _change(steps: Sequence[Step], began: float, channel: Channel) -> None:
    try:
        for step in steps:
            time.sleep(max(0.0, began + step.at_ns / 1e9 - time.monotonic()))
            set_queues(step)
    except (OSError, RuntimeError) as error:
        channel.tell("failed", message=str(error))


def _follow_trace(traced: TracedBottlenecks, began: float, channel: Channel) -> None:
    try:
        traced.follow(began)
    except OSError as error:
        channel.tell("failed", message=str(error))


def _start(program: Program, directory: str, began: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            "ip",
            "netns",
            "exec",
            program.namespace,
            *_OWN_SHARED_MEMORY,
            shutil.which("mount") or "mount",
            *program.command,
        ],
        env={**program.environment, BEGAN: repr(began)},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _follow(host: int, process: subprocess.Popen[bytes], channel: Channel) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    errors = threading.Thread(target=_relay, args=(host, "stderr", process.stderr, channel))
    errors.start()
    _relay(host, "stdout", process.stdout, channel)
    errors.join()
    code = process.wait()
    channel.tell("exit", host=host, status=code if code >= 0 else 128 - code)


def _relay(host: int, stream: str, source: IO[bytes], channel: Channel) -> None:
    while line := source.readline(LONGEST_LINE_BYTES):
        channel.tell("line", host=host, stream=stream, text=line.decode(errors="replace"))


def main(path: str) -> None:
    channel = Channel(CHANNEL)
    try:
        job = Job.read(Path(path))
        build_network(job.plan)
        if job.real_time:
            prefer_network_threads()
        channel.tell("ready")
        ports = [Host(index).port for index in range(sum(not program.background for program in job.programs))]
        with watched(ports, job.sample_seconds) as watch:
            run_programs(job, channel)
        peaks = watch.peaks if watch else {}
        queues = {str(index): peaks[port] for index, port in enumerate(ports) if port in peaks}
        channel.tell("counted", **dropped_packets(), queues=queues)
        channel.tell("done")
    except (OSError, RuntimeError, ValueError, KeyError, subprocess.CalledProcessError) as error:
        channel.tell("failed", message=str(error))


if __name__ == "__main__":
    main(sys.argv[1])
