"""`fedrdma bench protocols --loopback`: hosts as plain processes, their end, and what CPU and memory are shown."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from deploy.softroce.programs.exchange.interface import MadeModels
from deploy.softroce.programs.exchange.usage import Usage as HostUsage
from deploy.softroce.programs.exchange.usage import summary, usage
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.protocols import loopback
from fedrdma_fate.bench.protocols.loopback import Loopback
from fedrdma_fate.bench.protocols.models import Model
from fedrdma_fate.bench.protocols.results import Usage, read_measurement, to_document, to_table
from fedrdma_fate.bench.protocols.rows import select_protocol_rows
from fedrdma_fate.bench.protocols.runner import measure, run_protocols
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli.main import main

SETTING = ProtocolSetting(
    WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500), 1, Model("1MB", 1_000_000), loopback=True
)
USED = {"server_cpu_seconds": 0.002, "silos_cpu_seconds": 0.004, "broker_cpu_seconds": 0.006, "broker_peak_bytes": 7e6}
ROUND = {
    "seconds": 0.5,
    "fedcomm_seconds": 0.5,
    "silo_seconds": [0.5],
    "down_seconds": [0.2],
    "resent_bytes": 0,
    "tcp_resent_bytes": 0,
    "sent_bytes": 0,
    "received_bytes": 0,
    "missing_down_bytes": 0,
    "missing_up_bytes": 0,
    "dropped": 0,
    "usage": USED,
}
LIMIT_SECONDS = 120.0


def hosts(tmp_path: Path, program: str, silos: int = 1, limit: float = LIMIT_SECONDS) -> Loopback:
    (tmp_path / "hosts_program.py").write_text(program)
    return Loopback(tmp_path, silos, limit)


class Told:
    """Hosts of which the server says this."""

    def __init__(self, rounds: list[dict[str, Any]]) -> None:
        self.rounds, self.programs = rounds, [""]

    def run_all(self, program: Any, memory_bytes: int) -> TestbedRun:
        del memory_bytes
        self.programs.append(program[1])
        return TestbedRun(f"[0] {json.dumps(self.rounds)}\n", {"lost": {}, "overflowed": {}}, 1.0)


# --- hosts ---


def test_each_host_has_an_address_of_loopback_and_what_the_server_prints_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_NETDEV", "of another")
    program = (
        "import os, sys\n"
        "print(os.environ['TESTBED_HOST'], os.environ['TESTBED_HOSTS'], 'TESTBED_NETDEV' in os.environ, sys.argv[1])\n"
    )
    done = hosts(tmp_path, program, silos=2).run_all(["hosts_program", "asked"], 0)
    assert done.stdout == "[0] 0 127.0.0.1,127.0.0.2,127.0.0.3 False asked\n"


@pytest.mark.parametrize("how", ["a host fails", "the limit is over"])
def test_when_a_host_fails_or_the_limit_is_over_nothing_of_any_is_left(tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    program = (
        "import os, pathlib, subprocess, sys, time\n"
        f"pids, fails = pathlib.Path({str(pids)!r}), {how == 'a host fails'}\n"
        "me = os.environ['TESTBED_HOST']\n"
        "child = subprocess.Popen(['sleep', '3600'])\n"
        "(pids / f'{me}.part').write_text(f'{os.getpid()} {child.pid}')\n"
        "(pids / f'{me}.part').rename(pids / me)\n"
        "while fails and me == '1' and not (pids / '0').exists():\n"
        "    time.sleep(0.01)\n"
        "if fails and me == '1':\n"
        "    sys.exit('of round 2, 7 bytes were not delivered')\n"
        "time.sleep(3600)\n"
    )
    # the hosts are there long before the longer, and the shorter may be over before
    limit = LIMIT_SECONDS if how == "a host fails" else 3.0
    said = "host 1: of round 2, 7 bytes were not delivered" if how == "a host fails" else "did not end within 3 s"
    with pytest.raises(RowError, match=said):
        hosts(tmp_path, program, limit=limit).run_all(["hosts_program"], 0)
    started = [int(pid) for one in pids.iterdir() for pid in one.read_text().split()]
    left = [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert left == []


@pytest.mark.parametrize("ends", [True, False])
def test_who_found_another_gone_leaves_it_the_word_where_that_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    monkeypatch.setattr(loopback, "_WHO_LEFT_SECONDS", LIMIT_SECONDS if ends else 0.1)
    pid = tmp_path / "pid"
    # the other ends when the first is no process any more: somebody has looked at it
    program = (
        "import os, pathlib, sys, time\n"
        f"pid, ends = pathlib.Path({str(pid)!r}), {ends}\n"
        "if os.environ['TESTBED_HOST'] == '1':\n"
        "    pid.with_suffix('.part').write_text(str(os.getpid()))\n"
        "    pid.with_suffix('.part').rename(pid)\n"
        "    sys.exit('host 0 has left')\n"
        "while not ends or not pid.exists() or pathlib.Path('/proc', pid.read_text()).exists():\n"
        "    time.sleep(0.01)\n"
        "sys.exit('the broker does not start')\n"
    )
    said = "host 0: the broker does not start" if ends else "host 1: host 0 has left"
    with pytest.raises(RowError, match=said):
        hosts(tmp_path, program).run_all(["hosts_program"], 0)


# --- what they used ---


def test_a_broker_s_time_and_memory_are_its_own(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    broker = tmp_path / "mosquitto"
    shutil.copy(Path(shell).resolve(), broker)
    before = usage()
    count = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done; read x"
    with subprocess.Popen([broker, "-c", count], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = usage().since(before)
        process.kill()
    assert used.broker_seconds > 0.01
    assert used.broker_peak_bytes > 100_000
    assert before.broker_peak_bytes == 0


def test_in_a_testbed_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_NETDEV", "eth0")
    assert usage() == HostUsage(0.0, 0.0, 0)


def test_what_a_round_cost_is_the_mean_without_the_checking_of_models() -> None:
    server, silo = HostUsage(2.0, 4.0, 100).without(0.5), HostUsage(1.0, 2.0, 50)
    assert summary(server, [silo, silo], 2) == {
        "server_cpu_seconds": 0.75,
        "silos_cpu_seconds": 1.0,
        "broker_cpu_seconds": 4.0,
        "broker_peak_bytes": 200,
    }
    assert HostUsage(1.0, 0.0, 0).without(2.0).own_seconds == 0.0
    made = MadeModels(0, 1_000_000)
    assert made.cpu_seconds() == 0
    made.prepare(0)
    making = made.cpu_seconds()
    assert making > 0
    made.take(made.own(0), 0, 0, whole=False)
    assert made.cpu_seconds() == making, "nothing was made or compared"
    made.take(made.own(0), 0, 0)
    assert made.cpu_seconds() > making
    with pytest.raises(SystemExit, match="came as something else"):
        made.take(bytes(1_000_000), 0, 0)


# --- what is shown ---


def test_cpu_is_shown_over_what_went_down_and_up_and_said_to_be_of_real_time() -> None:
    (row,) = select_protocol_rows(["tcp-cubic"])
    measured = measure(row, SETTING, Told([ROUND, ROUND]), 2)
    assert measured.usage == Usage(**USED)  # type: ignore[arg-type]
    table = to_table(SETTING, [measured])
    assert "real time" in table.title
    assert "loopback" in table.title
    assert table.rows[0][2:7] == ("1.00", "2.00", "3.00", "6.00", "7.00 MB")
    document = to_document(SETTING, [measured], {})
    assert document["clock"] == "real"
    assert "link" not in document
    assert read_measurement(json.loads(json.dumps(dataclasses.asdict(measured)))) == measured


@pytest.mark.parametrize("name", ["tcp-cubic", "fedrdma-x/tcp", "fedrdma-x/shm"])
def test_on_loopback_nobody_knows_what_was_sent_again(name: str) -> None:
    (row,) = select_protocol_rows([name])
    assert measure(row, SETTING, Told([ROUND]), 1).resent_bytes is None


def test_a_server_that_does_not_say_what_it_used_fails_its_row() -> None:
    (row,) = select_protocol_rows(["tcp-cubic"])
    without = {name: value for name, value in ROUND.items() if name != "usage"}
    for rounds in ([without], [{**ROUND, "usage": {}}], []):
        with pytest.raises(RowError, match="the server did not say"):
            measure(row, SETTING, Told(rounds), 1)


def test_each_row_of_amqp_has_a_broker_of_its_own() -> None:
    rows = [
        dataclasses.replace(row, find_problem=lambda _: None)
        for row in select_protocol_rows(["amqp-fanout", "amqp-confirm"])
    ]
    told = Told([ROUND])
    log: Any = KeptMeasurements(None, {}, lambda _, row: {"row": row}, read_measurement)
    sweep = run_protocols([SETTING], rows, lambda _: told, 1, log, lambda _: None)
    assert told.programs[1:] == ["amqp-fanout", "amqp-confirm"]
    assert not sweep.failures


@pytest.mark.parametrize("option", ["--rate=1mbit", "--network=4g", "--loss=5%", "--nic-rate=1gbit", "--seed=2"])
def test_options_of_the_network_are_refused_with_loopback(option: str) -> None:
    done = CliRunner().invoke(main, ["bench", "protocols", "--loopback", option])
    assert done.exit_code == 2
    assert f"without {option.partition('=')[0]}" in done.output
