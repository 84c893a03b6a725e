"""How many bytes a second tasks push and get by a gateway's port for other hosts, beside its unix socket.

`python -m tests.support.task_port_times [--megabytes 512] [--rounds 5]`: two gateways in processes of their own, with
certificates, and tasks that are processes too, all on this host. As Spark's workers do, each task connects, and moves
its share in messages of 8 MiB, one after the other. Socket and port take turns, round by round; what is pushed is at
the other gateway before it is got, so that neither has the gateways' own transfer in it. What is got is read once.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

from fedrdma_fate.fate.gateway_client import GatewayConnector
from fedrdma_fate.fate.tables import BATCH_BYTES
from tests.support.sites import PROCESS_READY_SECONDS, InProcesses, eventually, party
from tests.support.task_port import LAYOUT, TaskPorts, task_ports

A, B = party("guest:1"), party("host:2")
TASKS = (1, 4)
"""At a time."""
WARM_UPS = 1
"""Rounds in which the gateways' memory is touched for the first time."""
ARRIVED_SECONDS = 120.0
"""For what was pushed to be at the other gateway, on a busy machine."""


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What one task moves.

    Attributes:
        connector: how it gets to its gateway.
        names: of its messages.
    """

    connector: GatewayConnector
    names: tuple[str, ...]


def push(share: Share) -> None:
    """Push zeros, written into a slot each time."""
    body, client = bytes(BATCH_BYTES), share.connector.connect(brief=True)
    try:
        for name in share.names:
            lease = client.lease(len(body))
            lease.buffer[:] = body
            lease.commit(name, "t", [B], "object")
    finally:
        client.close()


def get(share: Share) -> None:
    """Get them, and read what came."""
    client = share.connector.connect(brief=True)
    try:
        for name in share.names:
            if len(bytes(client.get(name, "t", A, timeout=ARRIVED_SECONDS).buffer)) != BATCH_BYTES:
                raise SystemExit(f"{name} came in another length")
    finally:
        client.close()


def nothing(_number: int) -> None:
    """So that a process has started, and imported what it needs."""
    time.sleep(0.1)


@dataclasses.dataclass(frozen=True, slots=True)
class Took:
    """Of pushing or getting everything: seconds, and seconds of the gateway's process."""

    seconds: float
    gateway: float


def timed(pool: ProcessPoolExecutor, work: Callable[[Share], None], shares: list[Share], gateway: int) -> Took:
    """By tasks at a time, one for each share."""
    process = psutil.Process(gateway)
    before, started = sum(process.cpu_times()[:2]), time.perf_counter()
    list(pool.map(work, shares))
    return Took(time.perf_counter() - started, sum(process.cpu_times()[:2]) - before)


def connector(ports: TaskPorts, by: str, site: str, session: str) -> GatewayConnector:
    """Of tasks of a site, by the `socket` or by the `port`."""
    own = {"a": A, "b": B}[site]
    if by == "socket":
        return GatewayConnector(ports.sites[site].address, session, own, (A, B))
    return GatewayConnector("unix:///nowhere/gateway.sock", session, own, (A, B), tasks_access=str(ports.files[site]))


def measure(ports: TaskPorts, processes: dict[str, int], messages: int, rounds: int) -> list[str]:
    """Lines of the table."""
    lines = []
    for tasks in TASKS:
        found: dict[str, list[tuple[Took, Took]]] = {"socket": [], "port": []}
        with ProcessPoolExecutor(tasks, mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(nothing, range(tasks)))
            for number in range(rounds + WARM_UPS):
                for by, times in found.items():
                    session = f"{by}-{tasks}-{number}"
                    names = [f"m{each}" for each in range(messages)]
                    shares = {
                        site: [
                            Share(connector(ports, by, site, session), tuple(names[at::tasks])) for at in range(tasks)
                        ]
                        for site in ("a", "b")
                    }
                    pushed = timed(pool, push, shares["a"], processes["a"])
                    eventually(lambda: ports.sites["a"].pool("send")["slots"] == 0, ARRIVED_SECONDS)
                    got = timed(pool, get, shares["b"], processes["b"])
                    if number >= WARM_UPS:
                        times.append((pushed, got))
        lines += [_row(tasks, by, messages * BATCH_BYTES, times) for by, times in found.items()]
    return lines


def _row(tasks: int, by: str, total_bytes: int, times: list[tuple[Took, Took]]) -> str:
    told = []
    for each in zip(*times, strict=True):
        seconds = statistics.median(took.seconds for took in each)
        rates = sorted(total_bytes / took.seconds / 1e6 for took in each)
        gateway = statistics.median(took.gateway for took in each) / total_bytes * 1e9
        told.append(f"{total_bytes / seconds / 1e6:.0f} MB/s ({rates[0]:.0f} to {rates[-1]:.0f}) | {gateway:.2f} s")
    return f"| {tasks} | {by} | " + " | ".join(told) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512, help="that all tasks together move")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    messages = max(max(TASKS), given.megabytes * 1_000_000 // BATCH_BYTES)
    room = 2 * messages * BATCH_BYTES
    memory = {"send_bytes": room, "receive_bytes": room, "ring_slot_bytes": "1MiB"}
    runner = InProcesses(PROCESS_READY_SECONDS)
    with tempfile.TemporaryDirectory() as name, task_ports(Path(name), runner, LAYOUT, memory=memory) as ports:
        processes = {site: process.pid for site, process in runner.processes.items()}
        print("| tasks at a time | by | push | its gateway, for 1 GB | get | its gateway, for 1 GB |")
        print("|---|---|---|---|---|---|")
        print("\n".join(measure(ports, processes, messages, given.rounds)))


if __name__ == "__main__":
    main()
