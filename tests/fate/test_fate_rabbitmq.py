"""FATE's own RabbitMQ backend in the program `exchange`: real rounds where there is a broker, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from deploy.softroce.programs.exchange.__main__ import take_part
from deploy.softroce.programs.exchange.interface import MEETING, Host, MadeModels, Options, model_of
from fedrdma_fate.bench.protocols.brokers import fate_rabbitmq_problem
from fedrdma_fate.bench.rabbitmq import Broker

fate_rabbitmq = pytest.importorskip(
    "deploy.softroce.programs.exchange.fate_rabbitmq", exc_type=ImportError, reason="FATE or pika is missing"
)
fate_parties = pytest.importorskip("deploy.softroce.programs.exchange.fate_parties", exc_type=ImportError)

SIZE = 1_200_000
"""Bytes of a model: two of FATE's slices."""
PATIENCE_SECONDS = 240.0
EARLY_SECONDS = 0.5
"""In which a silo that does not wait would have asked."""

pytestmark = [pytest.mark.fate, pytest.mark.timeout(600)]
RABBITMQ = pytest.mark.skipif(
    fate_rabbitmq_problem(SIZE) is not None, reason=f"FATE's RabbitMQ backend {fate_rabbitmq_problem(SIZE)}"
)


PROGRAM = ("-m", "deploy.softroce.programs.exchange")
WITHOUT_A_BROKER = """
import psutil
from deploy.softroce.programs.exchange import __main__ as program, fate_parties

take = fate_parties.take

def late(party, sender, number, models):
    if number == 1:
        for child in psutil.Process().children():
            if child.name() == "beam.smp":
                child.kill()
                child.wait()
    return take(party, sender, number, models)

fate_parties.take = late
program.main()
"""
"""The program, but who waits for a model in its second round has killed its broker: the server alone has one."""


def started(
    home: Path, arguments: Sequence[str], silos: int = 1, program: Sequence[str] = PROGRAM
) -> list[subprocess.Popen[bytes]]:
    """The program on a server and silos, each with a group of processes of its own; they write to files."""
    command = [sys.executable, *program, *arguments, "--computing-seconds", "0"]
    addresses = ",".join(f"127.0.0.{number}" for number in range(1, silos + 2))
    told = {"TESTBED_HOSTS": addresses, "TESTBED_RATE": "", MEETING: str(home / "meeting")}
    made = []
    for host in map(str, range(silos + 1)):
        environment = {**os.environ, **told, "TESTBED_HOST": host}
        environment.pop("TESTBED_NETDEV", None)
        with (home / f"said-{host}").open("wb") as said, (home / f"errors-{host}").open("wb") as errors:
            made.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    cwd=Path(__file__).parents[2],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=errors,
                    start_new_session=True,
                )
            )
    return made


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """FATE's workers, too."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@RABBITMQ
def test_models_go_down_to_a_silo_and_come_back_beside_plain_amqp_by_the_same_broker(tmp_path: Path) -> None:
    processes = started(tmp_path, ["fate-rabbitmq,amqp-fanout", str(SIZE), "2"])
    try:
        statuses = [process.wait(PATIENCE_SECONDS) for process in processes]
    finally:
        end(processes)
    assert statuses == [0, 0], (tmp_path / "errors-0").read_text() + (tmp_path / "errors-1").read_text()
    by_fate, by_amqp = [json.loads(line) for line in (tmp_path / "said-0").read_text().splitlines()]
    assert [len(by_fate), len(by_amqp)] == [2, 2]
    for one in by_fate:
        assert one["fedcomm_seconds"] <= one["seconds"]
        assert (one["missing_down_bytes"], one["missing_up_bytes"], one["dropped"]) == (0, 0, 0)


@RABBITMQ
def test_each_host_has_a_broker_and_models_go_from_one_to_the_other(tmp_path: Path) -> None:
    processes = started(tmp_path, ["fate-rabbitmq-replication", str(SIZE), "2"], silos=2)
    try:
        statuses = [process.wait(PATIENCE_SECONDS) for process in processes]
    finally:
        end(processes)
    assert statuses == [0, 0, 0], [(tmp_path / f"errors-{host}").read_text() for host in range(3)]
    (by_fate,) = [json.loads(line) for line in (tmp_path / "said-0").read_text().splitlines()]
    assert [(one["missing_down_bytes"], one["missing_up_bytes"]) for one in by_fate] == [(0, 0)] * 2


@RABBITMQ
def test_a_broker_that_is_killed_in_a_round_fails_it_at_every_host_and_nothing_is_left_running(tmp_path: Path) -> None:
    asked = ["fate-rabbitmq", str(SIZE), "3"]
    processes = started(tmp_path, asked, silos=2, program=("-c", WITHOUT_A_BROKER))
    try:
        statuses = [process.wait(PATIENCE_SECONDS) for process in processes]
        left = [one for one in psutil.pids() if of_these(one, processes)]
    finally:
        end(processes)
    said = [(tmp_path / f"errors-{host}").read_text() for host in range(3)]
    assert statuses == [1, 1, 1], said
    assert f"{SIZE:,} bytes of round 2 were not delivered" in said[0]
    assert left == []


def of_these(pid: int, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Whether a process is in the group of one of them."""
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid) in [process.pid for process in processes]
    return False


# --- a party that is not right ---


def party(**does: Any) -> Any:
    return SimpleNamespace(**does)


def fails(*_: object) -> Any:
    raise ConnectionResetError


def test_what_fate_fails_with_is_told_of_with_the_round_and_the_bytes() -> None:
    said = r"FATE's backend failed \(ConnectionResetError\): 7 bytes of round 3 were not delivered"
    with pytest.raises(SystemExit, match=said):
        fate_parties.take(party(get=fails), 1, 2, MadeModels(0, 7))
    with pytest.raises(SystemExit, match=said):
        fate_parties.give(party(put=fails), bytes(7), 2)


def test_something_else_than_a_model_ends_the_round() -> None:
    with pytest.raises(SystemExit, match="host 1 sent no model in round 3"):
        fate_parties.take(party(get=lambda _: [1, 2]), 1, 2, MadeModels(0, 7))
    with pytest.raises(SystemExit, match="of what host 1 sent in round 3, 7 bytes came as something else"):
        fate_parties.take(party(get=lambda _: model_of(2, 2, 7)), 1, 2, MadeModels(0, 7))
    assert fate_parties.take(party(get=lambda _: model_of(1, 2, 7)), 1, 2, MadeModels(0, 7)).missing_bytes == 0


def test_a_party_that_waits_for_ever_ends_its_process_with_what_was_not_delivered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given_up = threading.Event()
    statuses: list[int] = []

    def exit_(status: int) -> None:
        statuses.append(status)
        given_up.set()

    monkeypatch.setattr(fate_parties, "NEVER_SECONDS", 0.01)
    monkeypatch.setattr(fate_parties.os, "_exit", exit_)
    waiting = party(put=lambda *_: given_up.wait(PATIENCE_SECONDS))
    fate_parties.give(waiting, bytes(7), 2)
    assert statuses == [1]
    assert "FATE did nothing in 0.01 s: 7 bytes of round 3 were not delivered" in capfd.readouterr().err


def test_who_gives_up_leaves_no_worker_that_holds_its_output_open() -> None:
    program = (
        "import multiprocessing, time\n"
        "from deploy.softroce.programs.exchange import fate_parties\n"
        "multiprocessing.get_context('fork').Process(target=time.sleep, args=(3600,)).start()\n"
        "fate_parties._give_up('nothing came')\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (1, "nothing came\n")


def test_silos_ask_for_queues_once_the_server_has_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_early, made = threading.Event(), threading.Event()

    def get(_: str) -> bytes:
        if not made.is_set():
            asked_early.set()
        return b""

    class Hosts(list[Any]):
        def put(self, *_: object) -> None:
            # as long as a silo that does not wait would take
            asked_early.wait(EARLY_SECONDS)
            made.set()

    warm = SimpleNamespace(hosts=Hosts([party(get=get)] * 2), arbiter=party(get=get, put=lambda *_: None))

    @contextlib.contextmanager
    def joined(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(sub_ctx=lambda _: warm)

    monkeypatch.setattr(fate_parties, "joined", joined)
    monkeypatch.setattr(fate_rabbitmq, "broker_of", lambda *_: contextlib.nullcontext(Broker("127.0.0.1", 1, 2, "", 0)))
    asked = Options("fate-rabbitmq", 0, 0, broker=Broker("127.0.0.1", 1, 2, "", 0))
    hosts = [Host(number, ("127.0.0.1",) * 3, tmp_path / "meeting") for number in range(3)]
    with ThreadPoolExecutor(3) as pool:
        for part in [pool.submit(lambda host: list(take_part(host, asked)), host) for host in hosts]:
            part.result(PATIENCE_SECONDS)
    assert made.is_set()
    assert not asked_early.is_set()
