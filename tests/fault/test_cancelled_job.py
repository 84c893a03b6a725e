"""A job that is stopped, or killed, while much of it is under way: everything that it held comes back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.client.sessions import drop_session
from tests.support.left_behind import all_held
from tests.support.shared_memory import room_for_regions
from tests.support.sites import InProcesses, Site, Sites, eventually, start_gateways

pytestmark = pytest.mark.timeout(300)

LAYOUT = {"a": ["guest:1"], "b": ["host:2"]}

SESSION_SECONDS = 3.0
"""`timeouts.session` where that is what brings everything back."""

STOP_SECONDS = 10.0
"""In which a job that was stopped has to have given everything back."""

PAYLOAD_BYTES = 16 << 20
LARGE_PAYLOAD_BYTES = 352 << 20
"""Three of these are the gigabyte that is under way when a job is cancelled."""

# Three payloads one way and one the other. The host keeps the first that it pulls; of the others one goes to disk, for
# there is room for two. Then both wait for what never comes.
TASK = """
import select, sys
from fedrdma_fate.client.client import GatewayClient
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from fedrdma_fate.wire.frames import Party

address, session, role, length, whole = sys.argv[1:]
length = int(length)
parties = {"guest": Party("guest", "1"), "host": Party("host", "2")}
me = parties.pop(role)
(other,) = parties.values()
client = GatewayClient(address, session, me, mode="fedrdma-e")

def body(name):
    return (name * 2048)[:4096].encode() * (length // 4096)

def push(name):
    lease = client.lease(length)
    lease.buffer[:] = body(name)
    lease.commit(name, "t", [other], "object")

def pull(name):
    received = client.get(name, "t", other, timeout=60)
    assert received.buffer == body(name), name
    return received

try:
    if role == "guest":
        push("m0")
        client.put_inline("small", "t", [other], "bytes", b"hello")
        client.get("begun", "t", other, timeout=60)
        print("begun", flush=True)
        push("m1")
        push("m2")
    else:
        push("w0")
        held = pull("m0")
        client.put_inline("begun", "t", [other], "bytes", b"")
    if whole:
        for name in ["w0"] if role == "guest" else ["m1", "m2"]:
            pull(name)
    while not whole:
        try:
            client.get("never", "t", other, timeout=1.0)
        except FedRDMAError as error:
            if error.code is not ErrorCode.PULL_TIMEOUT or select.select([sys.stdin], [], [], 0)[0]:
                raise
except FedRDMAError as error:
    sys.exit(str(error))
finally:
    client.leave()
"""


@contextlib.contextmanager
def gateways(directory: Path, length: int, lend: bool, session_seconds: float) -> Iterator[Sites]:
    """Two, with room for two payloads at the receiver and for three at the sender."""
    with (
        tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as memory,
        start_gateways(
            LAYOUT,
            directory,
            runner=InProcesses(),
            transport="auto" if lend else "tcp",
            shm={"lend": lend},
            memory={
                "directory": memory,
                "send_bytes": length * 7 // 2,
                "receive_bytes": length * 5 // 2,
                "ring_slots": 1,
                "ring_slot_bytes": "1MiB",
            },
            timeouts={"drain": 1.0, "session": session_seconds, "peer_silence": 5.0},
            # one chunk at a time, so that there is time to strike in the middle
            chunk="64KiB",
            link_enable="never",
        ) as sites,
    ):
        yield sites


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two gateways.

    Attributes:
        sites: they.
        length: of a payload, bytes.
        before: what they hold when no job runs.
    """

    sites: Sites
    length: int
    before: list[dict[str, Any]]


WAYS = [
    pytest.param((False, PAYLOAD_BYTES), id="tcp"),
    pytest.param((True, PAYLOAD_BYTES), id="lent"),
    pytest.param((False, LARGE_PAYLOAD_BYTES), id="tcp-1GB", marks=pytest.mark.sweep),
    pytest.param((True, LARGE_PAYLOAD_BYTES), id="lent-1GB", marks=pytest.mark.sweep),
]
"""Whether payloads are lent, and how long they are."""


@pytest.fixture(scope="module", params=WAYS)
def patient(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Sessions end by themselves only long after the test."""
    lend, length = request.param
    with gateways(tmp_path_factory.mktemp("patient"), length, lend, 3600.0) as sites:
        yield Pair(sites, length, before_any_job(sites, length))


@pytest.fixture(
    scope="module",
    params=[WAYS[0], *(pytest.param(*way.values, id=way.id, marks=pytest.mark.sweep) for way in WAYS[1:])],
)
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Sessions end by themselves."""
    lend, length = request.param
    with gateways(tmp_path_factory.mktemp("quick"), length, lend, SESSION_SECONDS) as sites:
        yield Pair(sites, length, before_any_job(sites, length))


@contextlib.contextmanager
def job(
    sites: Sites, session: str, length: int, *, whole: bool = False
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A task at each site.

    Args:
        sites: where they run.
        session: of the job.
        length: of a payload, bytes.
        whole: they pull all of it, and are done; else they wait until their standard input ends.
    """
    with contextlib.ExitStack() as stack:
        tasks = {}
        for name, role in (("a", "guest"), ("b", "host")):
            arguments = [sites[name].address, session, role, str(length), "whole" if whole else ""]
            tasks[name] = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TASK, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            stack.callback(tasks[name].kill)
        yield tasks


def run_whole(sites: Sites, session: str, length: int) -> None:
    """A job that nobody disturbs."""
    with job(sites, session, length, whole=True) as tasks:
        assert [task.wait(90) for task in tasks.values()] == [0, 0]


def before_any_job(sites: Sites, length: int) -> list[dict[str, Any]]:
    """What they hold when a job is over: the first leaves slots that are granted ahead of time."""
    run_whole(sites, "first", length)
    eventually(lambda: not any(held["sessions"] or held["transfers"] or held["tasks"] for held in all_held(sites)))
    return all_held(sites)


def wait_for_the_middle(pair: Pair, tasks: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """The host has pulled the first of the guest's, and the second is there, or nearly; the third is not."""
    assert tasks["a"].stdout is not None
    assert tasks["a"].stdout.readline() == b"begun\n"
    eventually(lambda: sum_of(pair.sites["b"], "message_bytes") >= pair.length, 60)


def sum_of(site: Site, what: str) -> int:
    return int(site.status()["mailbox"][what])


def kill(tasks: Sequence[subprocess.Popen[bytes]]) -> None:
    for task in tasks:
        task.kill()
    for task in tasks:
        task.wait(30)


def nothing_more(now: list[dict[str, Any]], before: list[dict[str, Any]]) -> bool:
    """Whether what is held is what was; less where slots granted ahead of time were called back for want of memory."""
    grants = [
        (each["pools"].pop("receive"), old["pools"].pop("receive")) for each, old in zip(now, before, strict=True)
    ]
    return now == before and all(each <= old for one, other in grants for each, old in zip(one, other, strict=True))


def comes_back(pair: Pair, until: float) -> None:
    """At a time, they hold no more than before."""
    while not nothing_more(now := all_held(pair.sites), copy.deepcopy(pair.before)):
        assert time.monotonic() < until, f"{now} instead of {pair.before}"
        time.sleep(0.05)


def test_a_job_that_is_stopped_gives_everything_back_in_ten_seconds_and_the_next_runs(patient: Pair) -> None:
    with job(patient.sites, "stopped", patient.length) as tasks:
        wait_for_the_middle(patient, tasks)
        stopped = time.monotonic()
        # as FATE Flow does it: each site kills its task, and has another process destroy the context
        kill([*tasks.values()])
        for site in patient.sites.values():
            with site.client("stopped") as client:
                client.leave()
    comes_back(patient, stopped + STOP_SECONDS)
    run_whole(patient.sites, "next", patient.length)


def test_a_job_that_is_dropped_gives_everything_back_in_ten_seconds_though_its_tasks_live(patient: Pair) -> None:
    with job(patient.sites, "dropped", patient.length) as tasks:
        wait_for_the_middle(patient, tasks)
        dropped = time.monotonic()
        drop_session(patient.sites["a"].address, "dropped")
        # what they wait for, or the next thing that they do, fails, and they end
        assert [task.wait(60) for task in tasks.values()] == [1, 1]
    comes_back(patient, dropped + STOP_SECONDS)
    run_whole(patient.sites, "after", patient.length)


@pytest.mark.parametrize("killed", ["ab", "a", "b"], ids=["all tasks", "who sends", "who receives"])
def test_a_job_whose_tasks_are_killed_gives_everything_back_within_the_session_time_out_and_the_next_runs(
    quick: Pair, killed: str
) -> None:
    with job(quick.sites, f"killed {killed}", quick.length) as tasks:
        wait_for_the_middle(quick, tasks)
        kill([tasks[name] for name in killed])
        # who lives is ended in order, and leaves the session
        for task in [task for name, task in tasks.items() if name not in killed]:
            assert task.stdin is not None
            task.stdin.close()
            assert task.wait(60) == 1
        last = time.monotonic()
    # the time-out, a round of questions to the other site, and what a disk takes that is still writing what came last
    comes_back(quick, last + SESSION_SECONDS + STOP_SECONDS)
    run_whole(quick.sites, f"after {killed}", quick.length)
