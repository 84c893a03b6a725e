"""`fedrdma bench protocols --stress`: what is refused, what it does to hosts, and what is shown of it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from fedrdma_fate.bench.protocols import stress
from fedrdma_fate.bench.protocols.loopback import Loopback
from fedrdma_fate.bench.protocols.models import Model
from fedrdma_fate.bench.protocols.results import read_measurement, to_document, to_table
from fedrdma_fate.bench.protocols.rows import select_protocol_rows
from fedrdma_fate.bench.protocols.runner import measure
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.protocols.stress import Stress, busy_core, core_of, parse_stress
from fedrdma_fate.bench.wan.testbed import TestbedRun
from fedrdma_fate.bench.wan.wan_link import WanLink
from fedrdma_fate.cli.bench_protocols import describe_setting
from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from tests.support.sites import eventually

LINK = WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500)
SETTING = ProtocolSetting(LINK, 2, Model("1MB", 1_000_000), stress=Stress(cpu=False, flows="silos"))
ROUND = {
    "seconds": 0.5,
    "fedcomm_seconds": 0.5,
    "silo_seconds": [0.5, 0.5],
    "down_seconds": [0.2, 0.2],
    "resent_bytes": 5,
    "tcp_resent_bytes": 7,
    "sent_bytes": 0,
    "received_bytes": 0,
    "missing_down_bytes": 0,
    "missing_up_bytes": 0,
    "dropped": 0,
}
LIMIT_SECONDS = 120.0


class Told:
    """Hosts of which the server says this."""

    def __init__(self, rounds: list[dict[str, Any]]) -> None:
        self.rounds, self.program = rounds, [""]

    def run_all(self, program: Any, memory_bytes: int) -> TestbedRun:
        del memory_bytes
        self.program = list(program)
        return TestbedRun(f"[0] {json.dumps(self.rounds)}\n", {"lost": {}, "overflowed": {}}, 1.0)


@pytest.fixture
def stressor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the place of stress-ng, which writes down its process and its cores, and stays."""
    program = tmp_path / "stress-ng"
    program.write_text(
        f"#!/bin/sh\necho $$ $(taskset -cp $$ | sed 's/.*: //') $@ >> {tmp_path}/seen\nexec sleep 3600\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(stress, "find_program", lambda _: str(program))
    return tmp_path / "seen"


# --- what is asked ---


def test_nothing_is_stressed_that_is_not_asked_for() -> None:
    assert parse_stress(None, "silos", 1, loopback=False) is None
    assert parse_stress("net", "server", 1, loopback=False) == Stress(cpu=False, flows="server")


@pytest.mark.parametrize("kind", ["cpu", "both"])
def test_a_busy_core_is_refused_in_virtual_time_which_has_no_cpu(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"--stress {kind}: in virtual time .* --loopback") as refused:
        parse_stress(kind, "silos", 4, loopback=False)
    assert refused.value.code is ErrorCode.CONFIG_BAD_VALUE


def test_without_stress_ng_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "find_program", lambda _: None)
    with pytest.raises(ConfigError, match=r"needs stress-ng: .*scripts\.lib\.stress_ng.*apt-get install stress-ng"):
        parse_stress("cpu", "silos", 4, loopback=True)
    with pytest.raises(ConfigError, match="stress-ng is gone"), busy_core(core_of(1), 1.0):
        pass


def test_flows_between_silos_need_two_of_them() -> None:
    with pytest.raises(ConfigError, match="--stress net: a flow goes between two silos"):
        parse_stress("net", "silos", 1, loopback=False)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--flows=server"], 2, "--flows are those of --stress net"),
        (["--stress=cpu", "--loopback", "--flows=silos"], 2, "--flows are those of --stress net"),
        (["--stress=disk"], 2, "disk"),
        (["--stress=cpu"], 1, "--loopback"),
        (["--stress=net", "--silos=4,1"], 1, "two silos"),
    ],
)
def test_what_cannot_be_stressed_is_refused_before_anything_starts(
    arguments: list[str], status: int, said: str
) -> None:
    done = CliRunner().invoke(main, ["bench", "protocols", *arguments])
    assert done.exit_code == status
    assert said in done.output


# --- what it does ---


def test_a_silo_has_one_core_with_a_busy_program_that_ends_with_it(tmp_path: Path, stressor: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    (tmp_path / "hosts_program.py").write_text(
        "import os, pathlib, time\n"
        f"seen, me = pathlib.Path({str(stressor)!r}), os.environ['TESTBED_HOST']\n"
        "while not seen.exists() or len(seen.read_text().splitlines()) < 2:\n"
        "    time.sleep(0.01)\n"
        f"pathlib.Path({str(tmp_path)!r}, f'cores-{{me}}').write_text(str(sorted(os.sched_getaffinity(0))))\n"
    )
    Loopback(tmp_path, 2, LIMIT_SECONDS, busy_cores=True).run_all(["hosts_program"], 0)
    assert json.loads((tmp_path / "cores-0").read_text()) == cores, "the server is left alone"
    lines = [line.split() for line in stressor.read_text().splitlines()]
    for number in (1, 2):
        assert json.loads((tmp_path / f"cores-{number}").read_text()) == [core_of(number)]
    assert sorted(line[1] for line in lines) == sorted(str(core_of(number)) for number in (1, 2))
    assert all(line[2:5] == ["--cpu", "1", "--timeout"] for line in lines)
    assert sorted(os.sched_getaffinity(0)) == cores, "and so is who started them"
    eventually(lambda: not any(psutil.pid_exists(int(line[0])) for line in lines))


def test_flows_are_asked_of_the_program_and_a_busy_core_is_not(stressor: Path) -> None:
    del stressor
    (row,) = select_protocol_rows(["tcp-cubic"])
    both = parse_stress("both", "server", 1, loopback=True)
    assert row.program(dataclasses.replace(SETTING, stress=both), 1)[-2:] == ["--flows", "server"]
    for alone in (None, Stress(cpu=True, flows=None)):
        assert "--flows" not in row.program(dataclasses.replace(SETTING, stress=alone), 1)


# --- what is shown ---


def test_what_another_flow_had_is_shown_and_tcp_s_count_of_what_was_sent_again_is_not_believed() -> None:
    cubic, ours = select_protocol_rows(["tcp-cubic", "fedrdma-x/udp"])
    told = [{**ROUND, "flow_bps": 9e6}, {**ROUND, "flow_bps": 11e6}]
    measured = [measure(row, SETTING, Told(told), 2) for row in (cubic, ours)]
    assert [one.resent_bytes for one in measured] == [None, 10], "the kernel counts the flows' segments, too"
    table = to_table(SETTING, measured)
    assert table.columns[-1] == "another flow, Mbit/s"
    assert table.rows[0][-1] == "10.0"
    assert "with flows between silos" in table.title
    document = to_document(SETTING, measured, {})
    assert document["stress"] == {"cpu": False, "flows": "silos"}
    assert read_measurement(json.loads(json.dumps(dataclasses.asdict(measured[0])))) == measured[0]


def test_without_stress_nothing_of_it_is_shown() -> None:
    (row,) = select_protocol_rows(["tcp-cubic"])
    calm = dataclasses.replace(SETTING, stress=None)
    measured = measure(row, calm, Told([ROUND]), 1)
    assert measured.resent_bytes == 7
    assert "another flow, Mbit/s" not in to_table(calm, [measured]).columns
    assert "stress" not in to_document(calm, [measured], {})


def test_what_was_measured_without_stress_is_measured_again_with_it() -> None:
    kinds = (None, Stress(cpu=False, flows="silos"), Stress(cpu=False, flows="server"), Stress(cpu=True, flows=None))
    told = [json.dumps(describe_setting(dataclasses.replace(SETTING, stress=one), "tcp-cubic")) for one in kinds]
    assert len(set(told)) == len(kinds)
