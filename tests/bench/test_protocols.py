"""`fedrdma bench protocols` as a user runs it: two silos and a server in the testbed; its gateways on loopback, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from psutil import process_iter

from deploy.softroce.programs.exchange.interface import MEETING
from fedrdma_fate.bench.protocols.models import VGG5_BYTES
from fedrdma_fate.bench.wan.rows import find_program
from tests.support.repository import ROOT
from tests.support.testbed import why_no_testbed

SIZE = 200_000
ADDRESSES = ("127.0.0.1", "127.0.0.2")


def documents(asked: str) -> list[dict[str, Any]]:
    """Of one run, by setting."""
    missing = why_no_testbed()
    if missing is not None:
        pytest.skip(missing)
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "protocols", *asked.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    runs: list[dict[str, Any]] = result.get("runs", [result])
    return runs


def bench_protocols(rows: str, more: str = "") -> dict[str, Any]:
    """The document of one run."""
    (result,) = documents(f"--silos 2 --network 4g --model {SIZE} --rounds 2 --rows {rows} {more}")
    return result


@pytest.mark.nic
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("bench protocols")
def test_fedcomm_s_model_goes_over_its_4g_in_what_the_link_takes_and_later_where_packets_are_lost() -> None:
    runs = documents("--silos 4 --network 4g --model vgg5 --loss 0,5% --rounds 1 --rows tcp-cubic")
    clean, lossy = (row for run in runs for row in run["rows"])
    assert clean["missing_bytes"] == lossy["missing_bytes"] == 0
    # docs/results/protocols.md; two boots without loss differ by a millisecond
    assert clean["seconds"] == pytest.approx(4.891, rel=0.002)
    assert clean["fedcomm_seconds"] < clean["seconds"] < lossy["seconds"]
    assert 1.05 < clean["sent_over_payload"] < lossy["sent_over_payload"]
    assert 1.05 < clean["received_over_payload"] < 1.1
    assert clean["lost_packets"] == 0
    assert lossy["lost_packets"] > 0


@pytest.mark.nic
@pytest.mark.sweep
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("bench protocols")
def test_on_that_4g_our_row_is_little_behind_tcp_that_serves_all_at_once_without_loss_and_with_it() -> None:
    runs = documents(
        "--silos 4 --network 4g --model vgg5 --loss 0,5% --rounds 1 --rows tcp-cubic,tcp-bbr,fedrdma-x/udp"
    )
    clean, lossy = ({row["name"]: row for row in run["rows"]} for run in runs)
    # the goals are 1.03 and 1.05; a round of another boot differs by 2 %
    assert clean["fedrdma-x/udp"]["seconds"] < 1.05 * clean["tcp-cubic"]["seconds"]
    assert lossy["fedrdma-x/udp"]["seconds"] < 1.07 * lossy["tcp-bbr"]["seconds"]
    assert clean["fedrdma-x/udp"]["resent_bytes"] < 0.02 * 8 * VGG5_BYTES


@pytest.mark.nic
@pytest.mark.sweep
@pytest.mark.xdist_group("bench protocols")
def test_one_silo_after_the_other_and_all_at_once_deliver_everything_in_no_less_than_the_link_takes() -> None:
    rows = bench_protocols("tcp-serial,tcp-cubic")["rows"]
    assert [row["name"] for row in rows] == ["tcp-serial", "tcp-cubic"]
    for row in rows:
        assert row["missing_bytes"] == 0
        # the server's link carries both models up
        assert row["seconds"] > 2 * SIZE * 8 / 20e6
        assert row["fedcomm_seconds"] < row["seconds"]
        assert row["sent_over_payload"] > 1
        assert row["received_over_payload"] > 1


@pytest.mark.nic
@pytest.mark.sweep
@pytest.mark.xdist_group("bench protocols")
@pytest.mark.parametrize("row", ["udp-indexed", "grpc-stream", "quic", "grpc/grpc", "fedrdma-x/udp", "fedrdma-x/verbs"])
def test_so_it_does_by_every_other_way(row: str) -> None:
    (measured,) = bench_protocols(row)["rows"]
    assert measured["missing_bytes"] == 0
    assert measured["seconds"] > 2 * SIZE * 8 / 20e6


@pytest.mark.nic
@pytest.mark.sweep
@pytest.mark.xdist_group("bench protocols")
@pytest.mark.parametrize("flows", ["silos", "server"])
def test_beside_other_flows_models_arrive_whole_and_flows_have_a_part_of_the_link(flows: str) -> None:
    (measured,) = bench_protocols("tcp-cubic", f"--stress net --flows {flows}")["rows"]
    assert measured["missing_bytes"] == 0
    assert 0 < measured["flow_bps"] < 20e6
    assert measured["resent_bytes"] is None


@pytest.mark.skipif(find_program("stress-ng") is None, reason="stress-ng is not on this machine")
def test_beside_a_busy_core_models_arrive_whole_in_real_time_and_it_is_idle_again() -> None:
    asked = f"--loopback --silos 1 --model {SIZE} --rounds 1 --rows tcp-serial --stress cpu --limit 1234 --json"
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "protocols", *asked.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["clock"], result["stress"]) == ("real", {"cpu": True, "flows": None})
    (measured,) = result["rows"]
    assert measured["missing_bytes"] == 0
    assert not any(
        "--cpu 1 --timeout 1244s" in " ".join(one.info["cmdline"] or ()) for one in process_iter(["cmdline"])
    )


def test_on_loopback_a_row_says_what_it_cost_in_real_time() -> None:
    rows = ["tcp-serial", "udp-indexed", "fedrdma-x/tcp", "fedrdma-x/shm"]
    asked = f"--loopback --silos 1 --model {SIZE} --rounds 2 --rows {','.join(rows)} --json"
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "protocols", *asked.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["clock"] == "real"
    assert [row["name"] for row in result["rows"]] == rows
    for row in result["rows"]:
        assert row["usage"]["silos_cpu_seconds"] > 0
        assert row["usage"]["broker_cpu_seconds"] == row["usage"]["broker_peak_bytes"] == 0


def test_a_gateway_s_models_arrive_whole_between_plain_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.softroce.programs.exchange", "fedrdma-x/tcp", str(SIZE), "1"]
    common = {**os.environ, "TESTBED_HOSTS": ",".join(ADDRESSES), MEETING: str(tmp_path / "meeting")}
    hosts = [
        subprocess.Popen(
            [*command, "--computing-seconds", "0"],
            env={**common, "TESTBED_HOST": str(number), "TESTBED_RATE": "", "TESTBED_RTT": "0"},
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for number in range(2)
    ]
    try:
        printed = [host.communicate(timeout=200)[0] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert [host.returncode for host in hosts] == [0, 0]
    (one,) = json.loads(printed[0])
    assert one["missing_up_bytes"] == 0
    assert len(one["silo_seconds"]) == 1
