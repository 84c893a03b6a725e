"""`fedrdma bench protocols --train` as a user runs it, and FedComm's model in a job of FATE's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.bench.protocols.brokers import quic_problem
from tests.support.repository import ROOT

ROUNDS = 4
LOOPBACK = f"--train vgg5 --loopback --silos 2 --rounds {ROUNDS} --rows tcp-serial,fedrdma-x/tcp --json"


@pytest.mark.timeout(240)
def test_a_model_learns_and_our_row_s_weights_are_tcp_s_to_the_bit() -> None:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "protocols", *LOOPBACK.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row["rounds"] for row in json.loads(done.stdout)["rows"]}
    digests = [[one["digest"] for one in rounds] for rounds in rows.values()]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == ROUNDS
    assert rows["tcp-serial"][-1]["accuracy"] > 0.5


@pytest.mark.sweep
@pytest.mark.skipif(quic_problem() is not None, reason=f"QUIC {quic_problem()}")
@pytest.mark.timeout(420)
def test_by_quic_weights_are_tcp_s_to_the_bit_in_programs_that_import_torch_and_aioquic() -> None:
    asked = "--train vgg5 --loopback --silos 1 --rounds 1 --rows tcp-serial,quic --json"
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "protocols", *asked.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, second = (row["rounds"][0]["digest"] for row in json.loads(done.stdout)["rows"])
    assert first == second


# two minutes on a busy machine: FATE's trainers, beside the masks of its secure aggregation
@pytest.mark.sweep
@pytest.mark.fate
@pytest.mark.timeout(300)
def test_fate_averages_the_parameters_and_leaves_each_client_its_running_means(tmp_path: Path) -> None:
    asked = [
        *("--parties", "guest:9999", "host:10000", "arbiter:10000", "--rounds", "1", "--log_level", "WARNING"),
        *("--pictures", str(tmp_path / "pictures"), "--results", str(tmp_path / "results"), f"--data_dir={tmp_path}"),
    ]
    made = [sys.executable, "-m", "examples.cifar10_vgg", "stand-in", str(tmp_path / "pictures"), "--train", "200"]
    subprocess.run(made, check=True, cwd=ROOT)
    command = [sys.executable, "-m", "examples.cifar10_vgg.fate_job", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told: list[dict[str, Any]] = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert len(told) == 2
    assert len({one["parameters"] for one in told}) == 1
    assert len({one["running_means"] for one in told}) == 2
