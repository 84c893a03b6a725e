"""A broker that is killed in a round of `fedrdma bench protocols`: its row fails, the next goes on, nothing is left."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedrdma_fate.bench.protocols.brokers import amqp_problem, fate_rabbitmq_problem, mqtt_problem
from fedrdma_fate.bench.protocols.loopback import Loopback
from fedrdma_fate.bench.protocols.models import Model
from fedrdma_fate.bench.protocols.results import read_measurement
from fedrdma_fate.bench.protocols.rows import select_protocol_rows
from fedrdma_fate.bench.protocols.runner import run_protocols
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from tests.support.repository import ROOT

SIZE = 1_200_000
"""Bytes of a model: two of FATE's slices."""
SILOS, ROUNDS = 2, 3
LIMIT_SECONDS = 300.0
KILLING = """
import threading
import psutil
from deploy.softroce.programs.exchange import __main__ as program, rounds

counted, looks = rounds.counted, []

def kill():
    for child in psutil.Process().children():
        if child.name() in ("beam.smp", "mosquitto"):
            child.kill()

def counting():
    looks.append(1)
    # the server's second round begins after half a second; silos that have its model compute for one
    if len(looks) == 3:
        threading.Timer(1.0, kill).start()
    return counted()

rounds.counted = counting
program.main()
"""
"""The program, but a host that has a broker kills it in its second round."""


class Killing:
    """Hosts of which the server kills its broker; what runs is noted."""

    def __init__(self, hosts: Loopback, home: Path) -> None:
        self.hosts, self.home = hosts, home
        self.arguments: list[Sequence[str]] = []

    def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
        (self.home / "killing_program.py").write_text(KILLING)
        self.arguments.append(program[1:])
        return self.hosts.run_all(["killing_program", *program[1:]], memory_bytes)


def skipped_by(find_problem: Callable[[int], str | None]) -> Any:
    problem = find_problem(SIZE)
    return pytest.mark.skipif(problem is not None, reason=f"the row {problem}")


@pytest.fixture
def home() -> Iterator[Path]:
    """Of a short name: sockets are made there."""
    with tempfile.TemporaryDirectory(prefix="killed-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mqtt-0", marks=skipped_by(mqtt_problem)),
        pytest.param("mqtt-2", marks=skipped_by(mqtt_problem)),
        pytest.param("amqp-fanout", marks=skipped_by(amqp_problem)),
        pytest.param("fate-rabbitmq", marks=[pytest.mark.fate, skipped_by(fate_rabbitmq_problem)]),
    ],
)
def test_a_row_whose_broker_is_killed_fails_with_what_was_not_delivered_and_the_next_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # all that is started has its files there, the broker too
    monkeypatch.setenv("TMPDIR", str(home))
    monkeypatch.setattr(tempfile, "tempdir", None)
    setting = ProtocolSetting(
        WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500), SILOS, Model("small", SIZE), loopback=True
    )
    hosts = Killing(Loopback(home, SILOS, LIMIT_SECONDS), home)
    rows = [*select_protocol_rows([name]), *select_protocol_rows(["tcp-serial"])]
    log: Any = KeptMeasurements(None, {}, lambda _, row: {"row": row}, read_measurement)
    sweep = run_protocols([setting], rows, lambda _: hosts, ROUNDS, log, lambda _: None)
    (run,) = sweep.runs
    assert [one.name for one in run.measurements] == ["tcp-serial"]
    assert "of round 2 were not delivered" in run.failures[name]
    assert [one.pid for one in psutil.process_iter() if str(home) in _told(one)] == []


def _told(process: psutil.Process) -> str:
    """With what it was started."""
    try:
        return f"{process.cmdline()} {process.environ()}"
    except psutil.Error:
        return ""
