"""`fedrdma bench paper` as a user runs it: small versions of a table and a figure, in the testbed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT
from tests.support.testbed import why_no_testbed

pytestmark = pytest.mark.nic


def bench_paper(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "paper", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=ROOT)


def documents(*arguments: str) -> dict[str, Any]:
    missing = why_no_testbed()
    if missing is not None:
        pytest.skip(missing)
    done = bench_paper(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_both_modes_keep_to_the_formula_and_a_short_delay_line_drops_what_the_papers_network_did(
    tmp_path: Path,
) -> None:
    output = tmp_path / "new"
    options = ("--rates", "10gbit", "--size", "16MB", "--x-size", "0", "--network", "emulated", "--output", str(output))
    document = documents("table2", *options)
    (row,) = document["rows"]
    sent = {(one["mode"], one["chunk_bytes"]): one for one in row["transfers"] if not one["link_enable"]}
    for mode in ("fedrdma", "fedrdma-e"):
        one = sent[mode, 4_000_000]
        assert one["goodput_bps"] == pytest.approx(one["predicted_bps"], rel=0.05)
        assert one["dropped_packets"] == 0
    assert sent["fedrdma-e", 12_000_000]["dropped_packets"] > 0
    assert row["best_chunk"] == 4_000_000
    assert {path.name for path in output.iterdir()} == {f"paper-table2.{ending}" for ending in ("json", "html", "png")}


def test_a_round_is_made_of_real_transfers() -> None:
    # in the other network a path holds 1,000 packets, which fedrdma-x takes a while to find out
    options = ("--size", "8MB", "--repeat", "3", "--compute", "10", "--network", "buffered")
    document = documents("figure7", *options)
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["grpc", "fedrdma", "fedrdma-e", "fedrdma-x"]
    for row in rows.values():
        # no faster than the link
        assert row["communication_seconds"] > 2 * document["model_bytes"] * 8 / 10e9
        assert row["total_seconds"] == pytest.approx(row["communication_seconds"] + 10)
    assert rows["fedrdma-x"]["communication_saved"] > 0
