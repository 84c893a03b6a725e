"""FedComm's model as a job of FATE between hosts: the same weights by FATE's RabbitMQ backend and by this project."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.softroce.programs.counters import Counters
from deploy.softroce.programs.exchange.interface import MEETING
from fedrdma_fate.bench.protocols.brokers import fate_rabbitmq_problem
from fedrdma_fate.fate.aggregation import hook
from tests.support.repository import ROOT

fate_training = pytest.importorskip(
    "deploy.softroce.programs.fate_training", exc_type=ImportError, reason="FATE or pika is missing"
)

partners = pytest.importorskip("examples.cifar10_vgg.fedavg", exc_type=ImportError, reason="FATE is missing").partners

PATIENCE_SECONDS = 280.0
PROGRAM = ("-m", "deploy.softroce.programs.fate_training")
CLIENT = {
    "accuracy": 0.5,
    "parameters": "a",
    "running_means": "b",
    "exchanged": [[11.0, 13.0], [14.0, 15.5]],
    "losses": [2.0, 1.5],
}

pytestmark = [pytest.mark.fate, pytest.mark.timeout(600)]


def job(home: Path, federation: str, *more: str, silos: int = 2) -> list[tuple[int, str, str]]:
    """Status, output and errors of each host."""
    place = home / federation.replace("/", "-")
    place.mkdir()
    told = {
        "TESTBED_HOSTS": ",".join(f"127.0.0.{number}" for number in range(1, silos + 2)),
        "TESTBED_RATE": "",
        MEETING: str(place / "meeting"),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(place),
    }
    command = [sys.executable, *PROGRAM, federation, "--train", "vgg5", *more]
    kept = {name: value for name, value in os.environ.items() if name != "TESTBED_NETDEV"}
    hosts = []
    for number in range(silos + 1):
        with (place / f"said-{number}").open("wb") as said, (place / f"errors-{number}").open("wb") as errors:
            hosts.append(
                subprocess.Popen(
                    command,
                    env={**kept, **told, "TESTBED_HOST": str(number)},
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=errors,
                    start_new_session=True,
                )
            )
    try:
        statuses = [host.wait(PATIENCE_SECONDS) for host in hosts]
    finally:
        end(hosts)
    return [
        (status, (place / f"said-{number}").read_text(), (place / f"errors-{number}").read_text())
        for number, status in enumerate(statuses)
    ]


def end(hosts: Sequence[subprocess.Popen[bytes]]) -> None:
    """With FATE's workers."""
    for host in hosts:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(host.pid, signal.SIGKILL)
        host.wait()


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short name: sockets are made there."""
    return tmp_path_factory.mktemp("j")


def pictures(home: Path) -> str:
    made = [sys.executable, "-m", "examples.cifar10_vgg", "stand-in", str(home / "pictures"), "--train", "80"]
    subprocess.run(made, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return str(home / "pictures")


# half a minute where nothing else runs: three processes that import FATE, twice, and RabbitMQ
@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.skipif(fate_rabbitmq_problem(0) is not None, reason=f"FATE's RabbitMQ backend {fate_rabbitmq_problem(0)}")
def test_both_federations_come_to_the_same_weights_to_the_bit(home: Path) -> None:
    told: list[dict[str, Any]] = []
    data = pictures(home)
    for federation in ("fedrdma-x/tcp", "fate-rabbitmq"):
        done = job(home, federation, "--data", data)
        assert [status for status, _, _ in done] == [0, 0, 0], [errors[-2000:] for _, _, errors in done]
        told.append(json.loads(done[0][1]))
    ours, theirs = told
    assert ours["parameters"] == theirs["parameters"]
    for one in told:
        assert len(one["round_seconds"]) == 1
        assert 0 < one["round_seconds"][0] <= one["seconds"]


# --- what is told ---


def test_a_round_is_from_the_first_that_has_trained_to_the_last_that_has_the_average() -> None:
    late = {**CLIENT, "exchanged": [[10.0, 12.0], [14.5, 17.0]]}
    told = fate_training.summary([CLIENT, late], 9.0, Counters(5, 0, 7))
    assert told["round_seconds"] == [3.0, 3.0]
    assert told["seconds"] == 8.0
    assert (told["sent_bytes"], told["received_bytes"], told["parameters"]) == (5, 7, "a")


def test_clients_that_end_with_different_models_fail_the_job() -> None:
    with pytest.raises(SystemExit, match="clients ended with 2 different models"):
        fate_training.summary([CLIENT, {**CLIENT, "parameters": "c"}], 9.0, Counters(5, 0, 7))


def test_what_is_missing_of_each_round_is_told_as_the_aggregation_logs_it() -> None:
    aggregate = SimpleNamespace(kept=3, elements=1000)
    holes = fate_training.HolesOfRounds()
    with holes.listening():
        hook._tell("model", "1", {("guest", "1"): 5, ("host", "2"): 0}, 2000, aggregate)
        hook._tell("model", "2", {}, 2000, SimpleNamespace(kept=0, elements=1000))
    hook._tell("model", "3", {}, 2000, aggregate)
    assert holes.rounds == [(0.25, 0.3), (0.0, 0.0)]


def test_each_aggregator_with_each_tolerance_is_a_job_of_its_own_that_has_a_meeting_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TESTBED_HOST", "0")
    monkeypatch.setenv("TESTBED_HOSTS", "127.0.0.1,127.0.0.2")
    monkeypatch.setenv(MEETING, str(tmp_path / "meeting"))
    meetings: list[Path] = []

    def take_part(host: Any, job: Any) -> dict[str, Any]:
        meetings.append(host.meeting)
        return {"rounds": job.rounds}

    monkeypatch.setattr(fate_training, "take_part", take_part)
    fate_training.main(
        ["fedrdma-x/udp", "--rounds", "3", "--tolerance", "0", "0.01", "--aggregator", "plaintext", "secure_aggregate"]
    )
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    pairs = [(one["aggregator"], one["tolerance"], one["rounds"]) for one in told]
    assert pairs == [
        (aggregator, tolerance, 3) for aggregator in ("plaintext", "secure_aggregate") for tolerance in (0.0, 0.01)
    ]
    assert len(set(meetings)) == 4


def test_nothing_may_be_missing_over_rabbitmq(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fate_training.main(["fate-rabbitmq", "--tolerance", "0", "0.01"])
    assert "--tolerance: by gateways alone" in capsys.readouterr().err


def test_there_is_one_guest_and_the_server_is_the_arbiter() -> None:
    assert fate_training.parties_of(3) == [("arbiter", "0"), ("guest", "1"), ("host", "2"), ("host", "3")]


def test_seeded_masks_cancel_in_pairs() -> None:
    assert [partners([1, 2, 4], rank) for rank in (1, 2, 4)] == [[2], [1], []]
