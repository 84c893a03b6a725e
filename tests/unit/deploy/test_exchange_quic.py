"""QUIC by aioquic: the row between processes on loopback, and what both ends do with what is not right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.softroce.programs.exchange.__main__ import ends_of
from fedrdma_fate.bench.baselines.quic import Quic
from fedrdma_fate.bench.payload import plain_bytes
from fedrdma_fate.bench.protocols.brokers import prefer_aioquic, quic_problem
from fedrdma_fate.bench.protocols.loopback import Loopback
from fedrdma_fate.bench.protocols.models import Model
from fedrdma_fate.bench.protocols.rows import select_protocol_rows
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.runner import measure, run_rows
from fedrdma_fate.bench.wan.wan_link import WanLink
from tests.support.quic_cases import SIZE
from tests.support.repository import ROOT

PATIENCE_SECONDS = 100.0
QUIC = pytest.mark.skipif(quic_problem() is not None, reason=f"QUIC {quic_problem()}")
OK = f"{SIZE} bytes"
SETTING = ProtocolSetting(WanLink(20_000_000, 2_000_000, 126_600, 0.0, mtu_bytes=1500), 4, Model("1MB", 1_000_000))


@QUIC
@pytest.mark.parametrize("protocol", ["quic", "quic-cubic"])
def test_models_go_down_to_every_silo_and_come_back_from_each(protocol: str) -> None:
    program = ["deploy.softroce.programs.exchange", protocol, "200000", "2", "--computing-seconds", "0"]
    done = Loopback(ROOT, 2, PATIENCE_SECONDS).run_all(program, 0)
    rounds = json.loads(done.stdout.removeprefix("[0] "))
    assert len(rounds) == 2
    for one in rounds:
        # each compares what came with what was sent, byte by byte
        assert len(one["silo_seconds"]) == len(one["down_seconds"]) == 2
        assert (one["missing_down_bytes"], one["missing_up_bytes"], one["dropped"]) == (0, 0, 0)
        assert one["fedcomm_seconds"] <= one["seconds"]


def test_the_row_is_known_without_importing_anything_of_quic() -> None:
    before = list(sys.path)
    assert ends_of("quic").server
    assert sys.path == before


def test_the_row_is_left_out_where_aioquic_has_no_directory_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (row,) = select_protocol_rows(["quic"])
    assert ".venv/bin/python -m scripts.lib.aioquic" in (row.problem(SETTING) or "")
    with pytest.raises(SystemExit, match="no aioquic"):
        prefer_aioquic()
    (tmp_path / "lib/aioquic/aioquic").mkdir(parents=True)
    (tmp_path / "lib/aioquic/aioquic/__init__.py").touch()
    assert row.problem(SETTING) is None
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert [prefer_aioquic(), "/elsewhere"] == sys.path == [str(tmp_path / "lib/aioquic"), "/elsewhere"]


@QUIC
@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("forged_token", ["ConnectionError: this is no silo", OK]),
        ("short_token", ["ConnectionError: this is no silo", OK]),
        ("no_such_silo", ["ConnectionError: this is no silo", OK]),
        ("silo_twice", ["ConnectionError: this silo is there already"]),
        ("another_server", ["ConnectionError: no connection to the server"]),
        ("too_long", [f"ConnectionError: a message of more than {SIZE} bytes"] * 2),
        ("two_at_once", ["ConnectionError: a message on stream 10, where the one before is not whole"] * 2),
        ("broken_off", ["ConnectionError: the peer broke a message off"] * 2),
        ("hangs_up", ["ConnectionError: the other host hung up"] * 2),
        ("losing", ["True True 0"]),
    ],
)
def test_what_is_not_right_ends_that_connection_with_its_reason_and_what_is_lost_comes_again(
    case: str, says: list[str]
) -> None:
    command = [sys.executable, "-m", "tests.support.quic_cases", case]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == says, done.stderr


@QUIC
def test_a_payload_goes_between_two_parties_whole_and_the_runner_s_own_path_stays_as_it_was() -> None:
    before = list(sys.path)
    row = measure(Quic(), plain_bytes(1_000_000), 2, lambda _: None)
    assert len(row.seconds) == 2
    assert sys.path == before


def test_without_aioquic_the_row_of_payloads_is_left_out_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    measured, failures = run_rows([Quic()], plain_bytes(1000), 1, lambda _: None)
    assert not measured
    assert "-m scripts.lib.aioquic" in failures["aioquic"]
