"""The example as a user runs it: real FATE-LLM jobs of three silos, over our backend and over FATE's own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import words_of
from tests.support.rdma import usable_ports
from tests.support.repository import ROOT

CLIENTS = ("guest:9999", "host:10000")
PARTIES = (*CLIENTS, "arbiter:10000")

pytestmark = [pytest.mark.fate, pytest.mark.timeout(300)]

on_shared_runs = pytest.mark.xdist_group("example")
"""Of tests that look at `standalone` or `ours`, which are run once for all of them."""


def command(output: Path, *options: str) -> list[str]:
    script = str(ROOT / "examples/gpt2_advertisegen/run.py")
    return [sys.executable, script, "--preset", "tiny", "--json", "--output", str(output), *options]


def run_job(output: Path, *options: str) -> dict[str, Any]:
    """Run the job to its end; its summary."""
    done = subprocess.run(command(output, *options), capture_output=True, text=True, check=False, cwd=output.parent)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary == json.loads((output / "summary.json").read_text(encoding="utf-8"))
    return summary


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Full tuning over FATE's standalone federation."""
    return run_job(tmp_path_factory.mktemp("standalone") / "run", "--federation", "standalone")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Full tuning over our backend, and where it wrote."""
    output = tmp_path_factory.mktemp("fedrdma") / "run"
    return run_job(output), output


@on_shared_runs
def test_the_loss_falls_at_every_client_and_on_rows_held_out(standalone: dict[str, Any]) -> None:
    for party in CLIENTS:
        first, last = standalone["losses"][party]
        assert last < first - 0.2
        first, last = standalone["held_out_losses"][party]
        assert last < first


@on_shared_runs
def test_clients_send_16_bytes_a_parameter_and_get_8_back_in_each_round(standalone: dict[str, Any]) -> None:
    parameters = standalone["model"]["trainable"]
    for party in CLIENTS:
        for sent, got in zip(
            standalone["round_bytes_pushed"][party], standalone["round_bytes_got"][party], strict=True
        ):
            assert sent == pytest.approx(16 * parameters, rel=0.02)
            assert got == pytest.approx(8 * parameters, rel=0.02)


@on_shared_runs
def test_both_clients_end_with_one_model(standalone: dict[str, Any]) -> None:
    assert len(set(standalone["model_sha256"].values())) == 1


@on_shared_runs
def test_the_model_over_our_backend_is_fate_s_own_bit_by_bit(
    standalone: dict[str, Any], ours: tuple[dict[str, Any], Path]
) -> None:
    assert ours[0]["model_sha256"] == standalone["model_sha256"]
    assert ours[0]["losses"] == standalone["losses"]


@on_shared_runs
def test_every_byte_that_fate_pushed_was_delivered_by_our_gateways(ours: tuple[dict[str, Any], Path]) -> None:
    summary, _ = ours
    assert summary["bytes_outside_backend"] == 0
    assert sum(summary["bytes_pushed"].values()) == sum(summary["bytes_delivered"].values()) > 0


@on_shared_runs
def test_seconds_and_memory_are_told_for_every_party_and_gateway(ours: tuple[dict[str, Any], Path]) -> None:
    summary, _ = ours
    for party in PARTIES:
        for number in range(2):
            assert 0 < summary["communication_seconds"][party][number] < summary["round_seconds"][party][number]
    gateways = {"gateway-guest", "gateway-host", "gateway-arbiter"}
    assert set(summary["peak_memory_bytes"]) == {*PARTIES, *gateways}
    assert all(peak > 10_000_000 for peak in summary["peak_memory_bytes"].values())


@on_shared_runs
def test_the_run_leaves_a_report_with_plots_and_no_pools(ours: tuple[dict[str, Any], Path]) -> None:
    _, output = ours
    assert "data:image/png;base64," in (output / "report.html").read_text(encoding="utf-8")
    assert (output / "loss.png").read_bytes().startswith(b"\x89PNG")
    # where the gateways' regions meet
    assert not list(output.glob("gateways-*"))


def test_a_killed_silo_ends_the_job_with_its_name_and_log_and_leaves_no_process(tmp_path: Path) -> None:
    output = tmp_path / "run"
    job = subprocess.Popen(
        command(output, "--federation", "standalone", "--rounds", "500"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        family = wait_for_silos(job, output)
        host = next(process for process in family if "host-10000" in " ".join(words_of(process)))
        host.send_signal(signal.SIGKILL)
        _, complaint = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode == 1
    assert "host-10000 was killed by SIGKILL" in complaint
    assert str(output / "logs" / "host-10000.log") in complaint
    assert not psutil.wait_procs(family, timeout=60)[1]


def wait_for_silos(job: subprocess.Popen[str], output: Path) -> list[psutil.Process]:
    """All processes of the job, once its clients train."""
    deadline = time.monotonic() + 240
    events = [output / "silos" / silo / "events.jsonl" for silo in ("guest-9999", "host-10000")]
    while not all(path.is_file() and "round-begin" in path.read_text(encoding="utf-8") for path in events):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline, "the silos did not start"
        time.sleep(0.1)
    return psutil.Process(job.pid).children(recursive=True)


def check_model(output: Path, reference: dict[str, Any], *options: str) -> None:
    summary = run_job(output, *options)
    assert summary["model_sha256"] == reference["model_sha256"], options
    assert summary["bytes_outside_backend"] == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@on_shared_runs
def test_another_mode_gives_the_model_of_fate_s_standalone_federation(
    tmp_path: Path, standalone: dict[str, Any]
) -> None:
    check_model(tmp_path / "run", standalone, "--mode", "fedrdma-x", "--transport", "tcp")


# modes differ below what FATE sees, where tests/conformance has each on every transport; adapters, beside standalone as
# here, are in tests/nic/test_verbs_fate_job.py
@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_every_mode_over_every_transport_gives_the_model_of_fate_s_standalone_federation(
    tmp_path: Path, tuning: str
) -> None:
    reference = run_job(tmp_path / "standalone", "--tuning", tuning, "--federation", "standalone")
    for mode in ("grpc", "fedrdma", "fedrdma-e", "fedrdma-x"):
        for transport in ("auto",) if mode == "grpc" else ("tcp", "shm"):
            options = ("--tuning", tuning, "--mode", mode, "--transport", transport)
            check_model(tmp_path / f"{mode}-{transport}", reference, *options)


def test_data_that_is_not_there_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "run"
    done = subprocess.run(
        command(output, "--data", str(tmp_path)), capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "FR103" in done.stderr
    assert "train.json" in done.stderr
    assert not output.exists()


def test_verbs_where_there_is_no_device_ends_the_job_and_says_so(tmp_path: Path) -> None:
    if usable_ports():
        pytest.skip(f"this host has an RDMA device: {usable_ports()[0].preference.device}")
    done = subprocess.run(
        command(tmp_path / "run", "--transport", "verbs"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "[FR501] no verbs data path: " in done.stderr


def test_an_output_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine", encoding="utf-8")
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
