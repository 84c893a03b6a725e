"""A job of FATE Flow that is stopped, or whose tasks are killed, while its updates are under way: all comes back.

One job and a half: what FATE Flow does to a task's processes, and when, only it can show. For longer, with all of them:
`scripts/test --sweeps --only fate -- -k stopped_job --stop-bytes 1GB`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedrdma_fate.quantities import parse_size
from tests.support.connections import pace, strike
from tests.support.fate_flow import FateFlow, running_fate_flow
from tests.support.left_behind import all_held
from tests.support.shared_memory import room_for_regions
from tests.support.sites import InProcesses, Sites, eventually, runner_of, start_gateways

pytestmark = [pytest.mark.fate, pytest.mark.slow, pytest.mark.timeout(1800)]

JOB = Path(__file__).parent / "jobs" / "homo_nn.py"
LAYOUT = {"guest-9999": ["guest:9999"], "host-10000": ["host:10000"], "arbiter-10000": ["arbiter:10000"]}
CLIENTS = ["guest-9999", "host-10000"]

PARAMETER_BYTES = 16
"""Of a masked update: FATE masks in fixed point of twice the width of a double."""

UNDER_WAY_SECONDS = 60.0
"""That the updates take: long after the job is stopped, on any machine."""

STOP_SECONDS = 10.0
"""In which a job that was stopped has to have given everything back."""

SESSION_SECONDS = 60.0
"""`timeouts.session`, within which one has whose tasks were killed."""

START_SECONDS = 600.0
"""For the tasks of a job to come so far: each of three starts four interpreters that import FATE."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Gateways and FATE Flow.

    Attributes:
        sites: the gateways.
        flow: the server.
        total_bytes: of the updates of both clients.
        before: what the gateways hold when no job runs.
    """

    sites: Sites
    flow: FateFlow
    total_bytes: int
    before: list[dict[str, Any]]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """FATE Flow's HTTP interface, as `flow` uses it; None where there is no such thing."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.flow.port}/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer).get("data")


@pytest.fixture(scope="module")
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hooks_in_children: None
) -> Iterator[Place]:
    """Samples are there, and no job."""
    del hooks_in_children
    directory = tmp_path_factory.mktemp("stopped")
    total_bytes = parse_size(request.config.getoption("stop_bytes"))
    with (
        tempfile.TemporaryDirectory(dir=room_for_regions(), prefix="test-of-fedrdma-") as memory,
        start_gateways(
            LAYOUT,
            directory / "gateways",
            runner=InProcesses(START_SECONDS),
            transport="tcp",
            memory={
                "directory": memory,
                "send_bytes": total_bytes // len(CLIENTS) + (16 << 20),
                # a part of it is reserved for each peer
                "receive_bytes": total_bytes * 5 // 4 + (64 << 20),
                "ring_slots": 1,
                "ring_slot_bytes": "1MiB",
            },
            timeouts={"session": SESSION_SECONDS},
        ) as sites,
        running_fate_flow(
            directory / "flow", {"gateways": {site.config["parties"][0]: site.address for site in sites.values()}}
        ) as flow,
    ):
        place = Place(sites, flow, total_bytes, [])
        with job(place, "--data", str(directory), "--upload-only") as upload:
            ended_well(upload, place)
        eventually(lambda: not any(held["sessions"] for held in all_held(sites)), 2 * SESSION_SECONDS)
        yield dataclasses.replace(place, before=all_held(sites))


@contextlib.contextmanager
def job(place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A client that submits a job and waits for its end."""
    command = [str(place.flow.python), str(JOB), "--port", str(place.flow.port), *arguments]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, env=place.flow.environment, stdout=said, stderr=said, text=True) as client,
    ):
        try:
            yield client
        finally:
            client.kill()


def ended_well(client: subprocess.Popen[str], place: Place) -> None:
    assert client.wait(START_SECONDS) == 0, place.flow.logs()


def slow_down(place: Place) -> None:
    """From now on updates take long, by the connections that there are."""
    rate = int(place.total_bytes / len(CLIENTS) / UNDER_WAY_SECONDS)
    for name in CLIENTS:
        process = runner_of(place.sites).processes[name]
        assert strike(process.pid, lambda *_ports: True, lambda each: pace(each, rate))


def until_updates_are_under_way(place: Place, client: subprocess.Popen[str]) -> str:
    """Both clients have pushed theirs, and nothing of it has come; the job's id."""

    def under_way() -> int:
        assert client.poll() is None, place.flow.logs()
        return sum(place.sites[name].pool("send")["leased_bytes"] for name in CLIENTS)

    eventually(lambda: under_way() >= place.total_bytes, START_SECONDS)
    (running,) = place.ask("job/query?status=running")[:1]
    return str(running["job_id"])


def comes_back(place: Place, until: float) -> None:
    while (now := all_held(place.sites)) != place.before:
        assert time.monotonic() < until, f"{now} instead of {place.before}"
        time.sleep(0.1)


def updates(place: Place) -> tuple[str, str]:
    """Arguments of a job whose two updates are as long as is asked for together."""
    return "--hidden", str(math.ceil(math.sqrt(place.total_bytes / len(CLIENTS) / PARAMETER_BYTES)))


def test_a_job_that_is_stopped_gives_everything_back_in_ten_seconds(place: Place) -> None:
    stop_one(place)


# tests/fault/test_cancelled_job.py has the next job, without FATE, at gateways that hold what they held before
@pytest.mark.sweep
def test_after_a_job_that_was_stopped_the_next_runs(place: Place) -> None:
    stop_one(place)
    with job(place) as after:
        ended_well(after, place)


def stop_one(place: Place) -> None:
    slow_down(place)
    with job(place, *updates(place)) as client:
        stopped = until_updates_are_under_way(place, client)
        place.ask("job/stop", {"job_id": stopped})
        comes_back(place, time.monotonic() + STOP_SECONDS)
        assert client.wait(START_SECONDS) != 0


def of_guest(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [task for task in tasks if task["role"] == "guest"]


def of_all(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return tasks


@pytest.mark.sweep
@pytest.mark.parametrize("chosen", [of_guest, of_all], ids=["one task", "all tasks"])
def test_a_job_whose_tasks_are_killed_gives_everything_back_within_the_session_time_out(
    place: Place, chosen: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> None:
    slow_down(place)
    with job(place, *updates(place)) as client:
        struck = until_updates_are_under_way(place, client)
        for task in chosen(place.ask(f"job/task/query?job_id={struck}&status=running")):
            entrypoint = psutil.Process(int(task["run_pid"]))
            for process in [*entrypoint.children(recursive=True), entrypoint]:
                process.kill()
        comes_back(place, time.monotonic() + SESSION_SECONDS)
        assert client.wait(START_SECONDS) != 0
