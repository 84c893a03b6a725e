"""`fedrdma bench wan` as a user runs it: two rows over one link of the testbed, and a short sweep."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from tests.support.testbed import why_no_testbed

pytestmark = [pytest.mark.nic, pytest.mark.xdist_group("bench wan")]

PAYLOAD_BYTES = 8_000_000


def bench_wan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "wan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One run; its document, and what it wrote."""
    missing = why_no_testbed()
    if missing is not None:
        pytest.skip(missing)
    output = tmp_path_factory.mktemp("output") / "new"
    link = ("--rate", "1gbit", "--rtt", "20ms", "--buffer", "4MB", "--loss", "1%")
    rows = ("--rows", "tcp-bbr,fedrdma-x", "--repeat", "2", "--json", "--output", str(output))
    done = bench_wan(*link, "--size", "8MB", *rows)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), output


def test_the_document_has_the_link_the_payload_and_every_row(run: tuple[dict[str, Any], Path]) -> None:
    document, _ = run
    assert document["link"] == {"rate_bps": 10**9, "rtt_s": 0.02, "buffer_bytes": 4_000_000, "loss": 0.01}
    assert document["payload_bytes"] == PAYLOAD_BYTES
    assert [row["name"] for row in document["rows"]] == ["tcp-bbr", "fedrdma-x"]
    assert document["failures"] == {}


def test_shares_follow_from_virtual_seconds_and_no_row_beats_the_link(run: tuple[dict[str, Any], Path]) -> None:
    for row in run[0]["rows"]:
        assert row["goodput_share"] == pytest.approx(PAYLOAD_BYTES * 8 / row["seconds"] / 1e9)
        assert 0.1 < row["goodput_share"] < 1
        # half a round trip and the payload at the link's rate
        assert row["first_seconds"] > 0.01 + 0.064


def test_lost_packets_are_counted_and_what_they_held_is_sent_again(run: tuple[dict[str, Any], Path]) -> None:
    for row in run[0]["rows"]:
        assert row["lost_packets"] > 0
        assert 0 < row["resent_bytes"] < PAYLOAD_BYTES
        assert row["sent_bytes"] > PAYLOAD_BYTES + row["resent_bytes"]


def test_the_bottleneck_holds_what_the_sender_is_ahead_by_and_no_more_than_its_buffer(
    run: tuple[dict[str, Any], Path],
) -> None:
    for row in run[0]["rows"]:
        # two packets at least wait behind each other
        assert 8_400 < row["queue_bytes"] <= 4_000_000
        assert 8_400 < row["first_queue_bytes"] <= 4_000_000


def test_report_plots_and_document_are_written(run: tuple[dict[str, Any], Path]) -> None:
    document, output = run
    written = {path.name for path in output.iterdir()}
    plots = {"bench-wan-goodput.png", "bench-wan-resent.png"}
    assert written == {"bench-wan.json", "bench-wan.html", "bench-wan.measured.jsonl", *plots}
    assert json.loads((output / "bench-wan.json").read_text()) == document


def test_a_sweep_goes_over_every_link_and_a_rerun_has_nothing_left_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = why_no_testbed()
    if missing is not None:
        pytest.skip(missing)
    rows = ["tcp-cubic"] + (["iperf3-cubic"] if shutil.which("iperf3") else [])
    links = ("--rate", "1gbit,2gbit", "--rtt", "5ms", "--buffer", "bdp", "--size", "8MB", "--rows", ",".join(rows))
    options = (*links, "--repeat", "1", "--json", "--output", str(tmp_path / "output"))
    done = bench_wan(*options)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [run["link"]["buffer_bytes"] for run in runs] == [625_000, 1_250_000]
    for run in runs:
        assert [row["name"] for row in run["rows"]] == rows
        assert all(0.05 < row["goodput_share"] < 1 for row in run["rows"])
    # what would be booted says so
    booted, kernel = tmp_path / "booted", tmp_path / "kernel"
    kernel.write_text(f"#!/bin/sh\ntouch '{booted}'\nexit 1\n")
    kernel.chmod(0o755)
    monkeypatch.setenv("FEDRDMA_TESTBED_KERNEL", str(kernel))
    assert bench_wan(*options).stdout == done.stdout
    assert not booted.exists()


def test_a_row_that_the_testbed_cannot_run_is_named_with_the_reason() -> None:
    missing = why_no_testbed()
    if missing is not None:
        pytest.skip(missing)
    # a buffer below one packet
    done = bench_wan("--buffer", "1kB", "--rows", "fedrdma-x", "--json")
    assert done.returncode == 1
    assert "fedrdma-x was not measured: " in done.stderr
    assert "a buffer of 1000 bytes does not hold one packet" in done.stderr
    assert json.loads(done.stdout)["rows"] == []
