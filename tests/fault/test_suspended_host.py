"""A host that is suspended, and goes on: gateways, keepers and tasks all stand still, and nothing is lost or doubled.

As a laptop that is closed or a virtual machine that is moved; worse, for the clock goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.support.sites import InProcesses, Site, Sites, eventually, runner_of, start_gateways

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}
MESSAGES = 60
PEER_SILENCE = 2.0
SUSPENDED_SECONDS = 3 * PEER_SILENCE
"""Longer than any time-out of a peer that says nothing."""

END_SECONDS = 120.0

TASK = """
import hashlib, random, sys
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.frames import Party

address, role, mode, messages = sys.argv[1:5]
guest, host = Party("guest", "1"), Party("host", "2")

def body_of(number):
    # small ones, and ones that are several chunks
    chance = random.Random(number)
    return chance.randbytes(chance.choice((300, 70_000, 1_500_000)))

me = guest if role == "puts" else host
with GatewayClient(address, "suspended", me, mode=mode, connect_timeout=60) as client:
    for number in range(int(messages)):
        if role == "puts":
            body = body_of(number)
            lease = client.lease(len(body), timeout=100)
            lease.buffer[:] = body
            lease.commit(f"m{number}", "t", [host], "object")
        else:
            body = bytes(client.get(f"m{number}", "t", guest).buffer)
        print(number, hashlib.sha256(body).hexdigest(), flush=True)
    client.leave()
"""


WAYS = {"tcp": "fedrdma-x", "udp": "fedrdma-x", "shm": "grpc"}
"""A mode for each data path: what stands still is the same in all of them, and each takes a quarter of a minute."""


@pytest.fixture(params=WAYS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sites]:
    """Two gateways as processes."""
    with start_gateways(
        LAYOUT,
        tmp_path,
        runner=InProcesses(),
        transport=request.param,
        memory={"send_bytes": "16MiB", "receive_bytes": "8MiB", "ring_slots": 2, "ring_slot_bytes": "1MiB"},
        timeouts={"peer_silence": PEER_SILENCE, "connect": 3.0, "drain": 1.0},
    ) as running:
        yield running


@contextlib.contextmanager
def task(site: Site, role: str, mode: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One that puts, or gets, all messages, and writes down what it has done."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", TASK, site.address, role, mode, str(MESSAGES)], stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started: of a gateway, its keeper and whatever else."""
    try:
        parent = psutil.Process(pid)
    except psutil.NoSuchProcess:
        # the sender has put its last message, which waits at a gateway
        return []
    return [parent, *parent.children(recursive=True)]


@contextlib.contextmanager
def standing_still(processes: list[psutil.Process]) -> Iterator[None]:
    """All of them, one after the other; in another order, they go on."""
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        random.Random(1).shuffle(processes)
        for process in processes:
            process.resume()


def lines(output: Path) -> list[str]:
    return output.read_text().splitlines()


@pytest.mark.timeout(400)
def test_a_job_goes_on_when_all_of_it_was_suspended_in_the_middle(both: Sites, tmp_path: Path) -> None:
    mode = WAYS[both["a"].config["transport"]]
    gets, puts = tmp_path / "gets", tmp_path / "puts"
    with task(both["b"], "gets", mode, gets) as receiver, task(both["a"], "puts", mode, puts) as sender:
        for at in (5, MESSAGES // 2):
            _until(lambda at=at: len(lines(gets)) > at, {sender: puts, receiver: gets})  # type: ignore[misc]
            gateways = [runner_of(both).processes[name].pid for name in both]
            with standing_still([each for pid in (*gateways, sender.pid, receiver.pid) for each in family(pid)]):
                time.sleep(SUSPENDED_SECONDS)
        assert sender.wait(END_SECONDS) == 0, puts.read_text()
        assert receiver.wait(END_SECONDS) == 0, gets.read_text()
    assert len(lines(gets)) == MESSAGES
    assert lines(gets) == lines(puts)
    for site in both.values():
        eventually(lambda site=site: site.pool("send")["slots"] == 0, 60)  # type: ignore[misc]
        assert site.status()["mailbox"]["messages"] == 0


def _until(happened: Callable[[], bool], tasks: Mapping[subprocess.Popen[bytes], Path]) -> None:
    """While the tasks live, or have ended well."""

    def happened_or_failed() -> bool:
        return happened() or any(process.poll() for process in tasks)

    eventually(happened_or_failed, END_SECONDS)
    assert happened(), [output.read_text() for output in tasks.values()]
