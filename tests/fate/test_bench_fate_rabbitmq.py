"""FATE's own RabbitMQ backend as a row of `fedrdma bench fate`: a payload that comes, a broker that dies."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from fedrdma_fate.bench.baselines.fate_rabbitmq import (
    BrokerService,
    FateRabbitMq,
    PatientReceiver,
    QueueMaker,
    Way,
)
from fedrdma_fate.bench.baselines.interface import Baseline, Service
from fedrdma_fate.bench.baselines.memcpy import Memcpy
from fedrdma_fate.bench.payload import plain_bytes
from fedrdma_fate.bench.protocols.brokers import fate_rabbitmq_problem
from fedrdma_fate.bench.rabbitmq import Broker
from fedrdma_fate.bench.runner import run_rows
from tests.support.repository import ROOT

PAYLOAD = plain_bytes(3 * 2**20)
PATIENCE_SECONDS = 30.0

pytestmark = [pytest.mark.fate, pytest.mark.xdist_group("bench fate"), pytest.mark.timeout(600)]
RABBITMQ = pytest.mark.skipif(
    fate_rabbitmq_problem(PAYLOAD.total_bytes) is not None,
    reason=f"FATE's RabbitMQ backend {fate_rabbitmq_problem(PAYLOAD.total_bytes)}",
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """All that is started has its files there."""
    with tempfile.TemporaryDirectory(prefix="rows-", dir="/tmp", ignore_cleanup_errors=True) as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(name)


def started_in(home: Path) -> list[int]:
    """Processes that have something of theirs there."""
    return [one.pid for one in psutil.process_iter() if one.pid != os.getpid() and str(home) in _told(one)]


def _told(process: psutil.Process) -> str:
    try:
        return str(process.cmdline())
    except psutil.Error:
        return ""


@RABBITMQ
@pytest.mark.parametrize("replicating", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.sweep])])
def test_a_payload_comes_whole_and_no_broker_is_left(home: Path, replicating: bool) -> None:
    row = FateRabbitMq(replicating=replicating)
    measured, failures = run_rows([row], PAYLOAD, 1, lambda _: None)
    assert failures == {}
    assert [one.name for one in measured] == [row.name]
    assert started_in(home) == []


class Killed(FateRabbitMq):
    """Its broker is killed once the first message has come."""

    @contextlib.contextmanager
    def start(self, workspace: Path, largest_bytes: int) -> Iterator[Service]:
        with super().start(workspace, largest_bytes) as service:
            broker = psutil.Process(service.sender_helpers[0])
            service.check = broker.kill  # type: ignore[method-assign]
            yield service


@RABBITMQ
def test_a_broker_that_is_killed_fails_its_row_and_the_next_goes_on(home: Path) -> None:
    rows: list[Baseline] = [Killed(), Memcpy()]
    measured, failures = run_rows(rows, PAYLOAD, 1, lambda _: None)
    assert [one.name for one in measured] == ["memcpy"]
    assert list(failures) == ["fate-rabbitmq"]
    assert failures["fate-rabbitmq"].startswith(("the sender", "the receiver"))
    assert started_in(home) == []


# --- without a broker ---


def test_without_rabbitmq_the_row_is_left_out_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrdma_fate.bench.protocols.brokers.find_rabbitmq", lambda: None)
    monkeypatch.setattr("fedrdma_fate.bench.protocols.brokers.missing_module", lambda *_: None)
    measured, failures = run_rows([FateRabbitMq(), FateRabbitMq(replicating=True)], PAYLOAD, 1, lambda _: None)
    assert measured == []
    assert list(failures) == ["fate-rabbitmq", "fate-rabbitmq-replication"]
    assert all("apt-get install rabbitmq-server" in said for said in failures.values())


def test_a_broker_that_does_not_start_fails_the_row_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def broken(*_: object) -> Iterator[Broker]:
        raise SystemExit("RabbitMQ does not start: no room on the disk")
        yield

    monkeypatch.setattr("fedrdma_fate.bench.baselines.fate_rabbitmq.fate_rabbitmq_problem", lambda _: None)
    monkeypatch.setattr("fedrdma_fate.bench.baselines.fate_rabbitmq.running_rabbitmq", broken)
    _, failures = run_rows([FateRabbitMq()], PAYLOAD, 1, lambda _: None)
    assert failures == {"fate-rabbitmq": "RabbitMQ does not start: no room on the disk"}


def test_what_the_brokers_say_of_errors_is_told_last_lines_first_of_all_no_others(tmp_path: Path) -> None:
    said = tmp_path / "broker.said"
    said.write_text("[info] it starts\n" + "".join(f"[error] {number}\n" for number in range(9)))
    one = Broker("127.0.0.1", 1, 2, "", 0, str(said))
    gone = Broker("127.0.0.1", 1, 2, "", 1, str(tmp_path / "nowhere"))
    service = BrokerService(tmp_path, Way("s", "replication", {"sender": one, "receiver": gone}, tmp_path / "made"))
    assert service.complaints().splitlines() == [f"The broker: [error] {number}" for number in range(4, 9)]
    assert (service.sender_helpers, service.receiver_helpers) == ((0,), (1,))


def test_the_receiver_asks_once_the_sender_has_made_the_queues(tmp_path: Path) -> None:
    made, asked = tmp_path / "made", threading.Event()
    puts: list[object] = []

    def get(_: str) -> list[Any]:
        assert made.exists()
        asked.set()
        return []

    context = SimpleNamespace(
        indexed_ctx=lambda _: SimpleNamespace(
            guest=SimpleNamespace(get=get), hosts=SimpleNamespace(put=lambda *what: puts.append(what))
        )
    )
    waiting = threading.Thread(target=PatientReceiver(context, made).get, args=(1, PAYLOAD))
    waiting.start()
    QueueMaker(context, made).put(1, SimpleNamespace(arrays=[]))  # type: ignore[arg-type]
    waiting.join(PATIENCE_SECONDS)
    assert asked.is_set()
    assert puts == [("payload", [])]
