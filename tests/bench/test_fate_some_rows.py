"""`fedrdma bench fate` for some rows only: a small payload through real FATE contexts and real gateways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.fate, pytest.mark.xdist_group("bench fate")]

PAYLOAD_BYTES = 8 * 2**20
ROWS = ["memcpy", "raw-tcp", "fedrdma-e/shm"]


def bench_fate(*arguments: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "fate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    done = bench_fate("--bytes", "8MiB", "--rows", ",".join(ROWS), "--repeat", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


def test_the_document_has_the_rows_that_were_asked_for_and_every_key(document: dict[str, Any]) -> None:
    assert document.keys() == {"payload_bytes", "rows"}
    assert document["payload_bytes"] == PAYLOAD_BYTES
    assert [row["name"] for row in document["rows"]] == ROWS
    for row in document["rows"]:
        assert row.keys() == {
            "name",
            "seconds",
            "cpu_seconds",
            "extra_bytes_sender",
            "extra_bytes_receiver",
            "x_memcpy",
            "x_raw_tcp",
            "x_fate_standalone",
        }


def test_ratios_follow_from_the_seconds_and_are_null_without_their_reference(document: dict[str, Any]) -> None:
    seconds = {row["name"]: row["seconds"] for row in document["rows"]}
    assert all(value > 0 for value in seconds.values())
    for row in document["rows"]:
        assert row["x_memcpy"] == pytest.approx(row["seconds"] / seconds["memcpy"])
        assert row["x_raw_tcp"] == pytest.approx(row["seconds"] / seconds["raw-tcp"])
        assert row["x_fate_standalone"] is None


def test_one_unknown_row_stops_all_before_anything_is_measured_or_written(tmp_path: Path) -> None:
    output = tmp_path / "report"
    done = bench_fate("--bytes", "8MiB", "--rows", "memcpy,fedrdma-e/rdma", "--json", "--output", str(output))
    assert (done.returncode, done.stdout) == (1, "")
    assert "[FR102] there is no row 'fedrdma-e/rdma'." in done.stderr
    assert not output.exists()


@pytest.mark.timeout(300)
def test_a_small_message_that_goes_to_disk_is_measured_beside_the_disk() -> None:
    rows = ["disk", "fedrdma-e/tcp-durable"]
    done = bench_fate("--bytes", "1KiB", "--rows", ",".join(rows), "--repeat", "1", "--json", seconds=250)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["name"] for row in document["rows"]] == rows
    assert all(row["seconds"] > 0 for row in document["rows"])
