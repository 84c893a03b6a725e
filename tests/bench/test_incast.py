"""`fedrdma bench incast` as a user runs it: two silos and an arbiter in the testbed."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.repository import ROOT
from tests.support.testbed import why_no_testbed

pytestmark = [pytest.mark.nic, pytest.mark.xdist_group("bench incast")]


def bench_incast(rows: str) -> dict[str, Any]:
    """The document of one run, up and down."""
    missing = why_no_testbed()
    if missing is not None:
        pytest.skip(missing)
    asked = f"--silos 2 --rate 200mbit --buffer 100kB --size 500kB --rounds 2 --rows {rows} --down --json"
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "incast", *asked.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_round_ends_when_the_last_silo_has_the_aggregate_and_never_before_the_least() -> None:
    check(bench_incast("fedrdma-x"))


@pytest.mark.sweep
@pytest.mark.parametrize("row", ["fedrdma-x-udp", "tcp-cubic", "tcp-bbr", "tcp-reno", "grpc"])
def test_so_it_does_by_every_other_way(row: str) -> None:
    check(bench_incast(row))


def check(document: dict[str, Any]) -> None:
    """Whether the document can be true."""
    (row,) = document["rows"]
    assert len(row["round_seconds"]) == 2
    # headers beside RDMA's: a hundredth more or less
    assert min(row["round_seconds"]) > 0.99 * document["least_seconds"]
    assert row["missing_share"] == 0
    for one in row["rounds"]:
        assert max(one["silo_seconds"]) <= one["up_seconds"]
        # a payload at the rate of a silo's link, and half a round trip
        assert one["seconds"] - one["up_seconds"] > 0.02 + 0.01
        # silos that share the rate queue little more than a packet each, and no less than one in all
        assert 4_096 < one["queue_bytes"] <= 100_000
        assert one["sent_bytes"] > 2 * 2 * 500_000
