"""Rows of `fedrdma bench protocols` that one machine alone has, and those by a broker that runs already."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deploy.softroce.programs.exchange.__main__ import parse_options
from fedrdma_fate.bench.protocols import brokers
from fedrdma_fate.bench.protocols.models import Model
from fedrdma_fate.bench.protocols.rows import (
    ProtocolRow,
    all_protocol_rows,
    by_running,
    select_protocol_rows,
    usual_protocol_rows,
)
from fedrdma_fate.bench.protocols.running import RunningBroker, parse_running
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli import bench_protocols as command
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

NETWORK = ProtocolSetting(WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500), 2, Model("1kB", 1000))
LOOPBACK = dataclasses.replace(NETWORK, loopback=True)
OSX = RunningBroker("10.0.0.1", 9370)
"""Nobody connects to it."""


def row(name: str, **running: RunningBroker) -> ProtocolRow:
    (found,) = by_running(select_protocol_rows([name]), {f"--{option}": one for option, one in running.items()})
    return found


def names(rows: Sequence[ProtocolRow]) -> set[str]:
    return {one.name for one in rows}


def bench_protocols(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "protocols", *arguments])


@pytest.fixture
def listening() -> Iterator[RunningBroker]:
    """Something that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield RunningBroker("127.0.0.1", server.getsockname()[1])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rows that loopback was asked to run, which says nothing of them."""
    made: list[str] = []

    @dataclasses.dataclass
    class Hosts:
        checkout: Path
        silos: int
        limit_seconds: float
        busy_cores: bool = False

        def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
            del memory_bytes
            made.append(" ".join(program))
            return TestbedRun("", {"lost": {}, "overflowed": {}}, 0.0)

    def provide(*_: Any) -> None:
        """Nothing."""

    monkeypatch.setattr(command, "Loopback", Hosts)
    monkeypatch.setattr(command, "provide_brokers", provide)
    monkeypatch.setattr(brokers, "missing_module", lambda *_: None)
    return made


@pytest.mark.parametrize(
    ("text", "is_at"),
    [
        ("10.0.0.1:9370", RunningBroker("10.0.0.1", 9370, 8080)),
        ("broker.site-a:6650:8081", RunningBroker("broker.site-a", 6650, 8081)),
    ],
)
def test_a_running_broker_is_named_by_host_and_port_and_another_for_http(text: str, is_at: RunningBroker) -> None:
    assert parse_running("--osx", text) == is_at
    assert parse_options(["fate-osx", "1", "1", "--running", str(is_at)]).running == is_at


@pytest.mark.parametrize(
    "text", ["", "broker", "broker:", ":9370", "broker:0", "broker:65536", "a b:1", "x:1:0", "x:1:2:3"]
)
def test_what_names_no_broker_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_running("--pulsar", text)
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE
    assert "--pulsar" in str(refused.value)


def test_memory_is_shared_within_one_host_so_that_row_is_on_loopback_alone() -> None:
    assert "fedrdma-x/shm" in names(usual_protocol_rows(loopback=True))
    assert "fedrdma-x/shm" not in names(usual_protocol_rows())
    assert row("fedrdma-x/shm").problem(LOOPBACK) is None
    assert row("fedrdma-x/shm").problem(NETWORK) == (
        "is measured with --loopback alone: memory is shared within one host"
    )


def test_osx_and_pulsar_are_measured_by_a_broker_that_is_named(
    monkeypatch: pytest.MonkeyPatch, listening: RunningBroker
) -> None:
    monkeypatch.setattr(brokers, "missing_module", lambda *_: None)
    assert row("fate-osx").problem(LOOPBACK) == "needs a broker that runs: --osx HOST:PORT"
    assert row("fate-pulsar", osx=OSX).problem(LOOPBACK) == "needs a broker that runs: --pulsar HOST:PORT"
    there = row("fate-osx", osx=listening)
    assert there.problem(LOOPBACK) is None
    assert there.program(LOOPBACK, 2)[-2:] == ["--running", f"127.0.0.1:{listening.port}:8080"]
    assert str(there.problem(NETWORK)).startswith("is measured with --loopback alone")
    assert str(there.note(LOOPBACK)).startswith(f"the broker at 127.0.0.1:{listening.port} is not the command's")


def test_where_nobody_listens_the_row_is_left_out_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "missing_module", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = RunningBroker("127.0.0.1", server.getsockname()[1])
    assert row("fate-osx", osx=gone).problem(LOOPBACK) == f"no broker at 127.0.0.1:{gone.port}: Connection refused"


def test_pulsar_s_client_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str, package: str) -> str | None:
        return f"needs {package}" if module == "pulsar" else None

    monkeypatch.setattr(brokers, "missing_module", missing)
    assert row("fate-pulsar", pulsar=OSX).problem(LOOPBACK) == "needs pulsar-client==3.4.0"


def test_where_none_is_named_rows_by_running_brokers_are_left_out_in_one_line(asked: list[str]) -> None:
    done = bench_protocols("--loopback")
    assert not any("fate-osx" in one or "fate-pulsar" in one for one in asked)
    (line,) = (one for one in done.stderr.splitlines() if "want of a broker" in one)
    assert line.endswith(
        "left out for want of a broker that runs: fate-osx (--osx HOST:PORT), fate-pulsar (--pulsar HOST:PORT)"
    )


def test_a_named_one_is_measured_with_all_others_and_the_other_is_left_out(
    asked: list[str], listening: RunningBroker
) -> None:
    at = f"127.0.0.1:{listening.port}"
    done = bench_protocols("--loopback", "--osx", at)
    assert any("fate-osx" in one and one.endswith(f"--running {at}:8080") for one in asked)
    assert sum("--running" in one for one in asked) == 1
    assert "left out for want of a broker that runs: fate-pulsar (--pulsar HOST:PORT)" in done.stderr
    assert f"fate-osx, vgg5: the broker at {at} is not the command's" in done.stderr


def test_a_row_that_is_asked_for_without_its_broker_fails_with_the_option(asked: list[str]) -> None:
    done = bench_protocols("--loopback", "--rows", "fate-pulsar")
    assert (done.exit_code, asked) == (1, [])
    assert "needs a broker that runs: --pulsar HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--osx", "h:1"], 2, "--osx: a broker of this machine is reached with --loopback alone"),
        (["--loopback", "--pulsar", "nowhere"], 1, "[FR102] --pulsar: 'nowhere' is not HOST:PORT"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    asked: list[str], arguments: list[str], status: int, said: str
) -> None:
    done = bench_protocols(*arguments)
    assert (done.exit_code, asked) == (status, [])
    assert said in done.output


def test_no_other_row_is_changed_by_a_broker_that_runs() -> None:
    changed = [one for one in by_running(all_protocol_rows(), {"--osx": OSX}) if one.running is not None]
    assert names(changed) == {"fate-osx"}
