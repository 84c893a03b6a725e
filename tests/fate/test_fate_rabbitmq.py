"""FATE's own RabbitMQ backend in the program `exchange`: real rounds where there is a broker, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.softroce.programs.exchange.interface import MEETING, model_of
from fedrdma_fate.bench.protocols.brokers import fate_rabbitmq_problem

fate_rabbitmq = pytest.importorskip(
    "deploy.softroce.programs.exchange.fate_rabbitmq", exc_type=ImportError, reason="FATE or pika is missing"
)

SIZE = 1_200_000
"""Bytes of a model: two of FATE's slices."""
PATIENCE_SECONDS = 240.0

pytestmark = [pytest.mark.fate, pytest.mark.timeout(600)]
RABBITMQ = pytest.mark.skipif(
    fate_rabbitmq_problem(SIZE) is not None, reason=f"FATE's RabbitMQ backend {fate_rabbitmq_problem(SIZE)}"
)


def started(home: Path, arguments: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """The program on a server and a silo, each with a group of processes of its own; they write to files."""
    command = [sys.executable, "-m", "deploy.softroce.programs.exchange", *arguments, "--computing-seconds", "0"]
    told = {"TESTBED_HOSTS": "127.0.0.1,127.0.0.2", "TESTBED_RATE": "", MEETING: str(home / "meeting")}
    made = []
    for host in ("0", "1"):
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


# --- a party that is not right ---


def party(**does: Any) -> Any:
    return SimpleNamespace(**does)


def fails(*_: object) -> Any:
    raise ConnectionResetError


def test_what_fate_fails_with_is_told_of_with_the_round_and_the_bytes() -> None:
    said = r"FATE's backend failed \(ConnectionResetError\): 7 bytes of round 3 were not delivered"
    with pytest.raises(SystemExit, match=said):
        fate_rabbitmq.take(party(get=fails), 1, 2, 7)
    with pytest.raises(SystemExit, match=said):
        fate_rabbitmq.give(party(put=fails), bytes(7), 2)


def test_something_else_than_a_model_ends_the_round() -> None:
    with pytest.raises(SystemExit, match="host 1 sent no model in round 3"):
        fate_rabbitmq.take(party(get=lambda _: [1, 2]), 1, 2, 7)
    with pytest.raises(SystemExit, match="of what host 1 sent in round 3, 7 bytes came as something else"):
        fate_rabbitmq.take(party(get=lambda _: model_of(2, 2, 7)), 1, 2, 7)
    assert fate_rabbitmq.take(party(get=lambda _: model_of(1, 2, 7)), 1, 2, 7).missing_bytes == 0


def test_a_party_that_waits_for_ever_ends_its_process_with_what_was_not_delivered(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given_up = threading.Event()
    statuses: list[int] = []

    def exit_(status: int) -> None:
        statuses.append(status)
        given_up.set()

    monkeypatch.setattr(fate_rabbitmq, "NEVER_SECONDS", 0.01)
    monkeypatch.setattr(fate_rabbitmq.os, "_exit", exit_)
    waiting = party(put=lambda *_: given_up.wait(PATIENCE_SECONDS))
    fate_rabbitmq.give(waiting, bytes(7), 2)
    assert statuses == [1]
    assert "FATE did nothing in 0.01 s: 7 bytes of round 3 were not delivered" in capfd.readouterr().err
