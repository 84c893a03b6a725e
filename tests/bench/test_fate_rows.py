"""`fedrdma bench fate` as a user runs it: real FATE parties, real gateways, a small payload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedrdma_fate.bench.baselines import all_baselines, usual_baselines
from fedrdma_fate.bench.baselines.gateways import GatewayPair
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.payload import plain_bytes
from fedrdma_fate.bench.runner import measure
from tests.support.processes import words_of

pytestmark = [pytest.mark.fate, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("bench fate")]

PAYLOAD_BYTES = 9_000_001
CHUNK_BYTES = 4 * 2**20
NUMBERS = {"seconds", "cpu_seconds", "x_memcpy", "x_raw_tcp", "x_fate_standalone"}
COUNTS = {"extra_bytes_sender", "extra_bytes_receiver"}
OURS = [
    "fedrdma-e/shm",
    "fedrdma-e/shm-copied",
    "fedrdma-e/tcp",
    "fedrdma-e/tcp-unkept",
    "fedrdma-e/tcp-durable",
    "fedrdma-e/tcp-integrity",
    "fedrdma-e/tcp-sealed",
    "fedrdma-x/shm",
    "fedrdma-x/tcp",
    "fedrdma-x/tcp-sealed",
    "fedrdma-x/udp",
    "fedrdma-x/udp-sealed",
    "fedrdma/shm",
    "fedrdma/tcp",
    "grpc/grpc",
]
SOME = ["fedrdma-e/shm", "fedrdma-x/tcp-sealed", "fedrdma/tcp", "grpc/grpc"]
"""Each mode, transport and kind of sealing once; all of them take minutes."""
IN_PLACE = ("fedrdma-e/shm", "fedrdma-e/tcp", "fedrdma-x/shm", "fedrdma-x/tcp")
STAGED = ("fedrdma/shm", "fedrdma/tcp")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "fate", *arguments]


def shared_memory_directories() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("bench-*")}


@pytest.fixture(
    scope="module", params=[SOME, pytest.param(OURS, marks=pytest.mark.sweep)], ids=["some rows", "all rows"]
)
def ours(request: pytest.FixtureRequest) -> list[str]:
    """Names of our rows that are run."""
    return list(request.param)


@pytest.fixture(scope="module")
def run(ours: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One run of some rows, or of all; its document, and what it wrote."""
    temporary = tmp_path_factory.mktemp("temporary")
    output = tmp_path_factory.mktemp("output") / "new"
    before = shared_memory_directories()
    choice = (
        [] if ours == OURS else ["--rows", ",".join(["memcpy", "raw-tcp", "raw-udp", "disk", *ours, "fate-standalone"])]
    )
    done = subprocess.run(
        command("--bytes", str(PAYLOAD_BYTES), "--repeat", "2", "--json", "--output", str(output), *choice),
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "TMPDIR": str(temporary)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(temporary.iterdir())
    assert shared_memory_directories() <= before
    return json.loads(done.stdout), output


@pytest.fixture(scope="module")
def rows(run: tuple[dict[str, Any], Path]) -> Mapping[str, dict[str, Any]]:
    return {row["name"]: row for row in run[0]["rows"]}


def test_the_rows_are_each_mode_and_transport_and_each_reference() -> None:
    references = ["memcpy", "raw-tcp", "raw-udp", "disk"]
    with_quic = ["memcpy", "raw-tcp", "raw-udp", "aioquic", "disk"]
    assert [baseline.name for baseline in usual_baselines()] == [*references, *OURS, "fate-standalone"]
    by_name = ["fate-rabbitmq", "fate-rabbitmq-replication"]
    assert [baseline.name for baseline in all_baselines()] == [*with_quic, *OURS, *by_name, "fate-standalone"]


def test_the_document_has_each_row(
    run: tuple[dict[str, Any], Path], rows: Mapping[str, dict[str, Any]], ours: list[str]
) -> None:
    assert run[0].keys() == {"payload_bytes", "rows"}
    assert run[0]["payload_bytes"] == PAYLOAD_BYTES
    assert list(rows) == ["memcpy", "raw-tcp", "raw-udp", "disk", *ours, "fate-standalone"]


def test_every_row_has_every_number(rows: Mapping[str, dict[str, Any]]) -> None:
    for row in rows.values():
        assert row.keys() == {"name", *NUMBERS, *COUNTS}
        assert all(isinstance(row[key], float) and row[key] > 0 for key in NUMBERS)
        assert all(isinstance(row[key], int) and row[key] >= 0 for key in COUNTS)


def test_ratios_are_made_with_the_references_of_the_same_run(rows: Mapping[str, dict[str, Any]]) -> None:
    for row in rows.values():
        for key, reference in (
            ("x_memcpy", "memcpy"),
            ("x_raw_tcp", "raw-tcp"),
            ("x_fate_standalone", "fate-standalone"),
        ):
            assert row[key] == pytest.approx(row["seconds"] / rows[reference]["seconds"])


def test_we_are_faster_than_fates_standalone_federation(rows: Mapping[str, dict[str, Any]], ours: list[str]) -> None:
    assert max(rows[name]["x_fate_standalone"] for name in ours) < 1


def test_writing_in_place_copies_nothing_beyond_the_two_slots(
    rows: Mapping[str, dict[str, Any]], ours: list[str]
) -> None:
    in_place = [rows[name] for name in IN_PLACE if name in ours]
    assert in_place
    for row in in_place:
        assert row["extra_bytes_sender"] < PAYLOAD_BYTES // 4
        assert row["extra_bytes_receiver"] < PAYLOAD_BYTES // 4


def test_fedrdma_stages_no_more_than_two_chunks(rows: Mapping[str, dict[str, Any]], ours: list[str]) -> None:
    staged = [rows[name] for name in STAGED if name in ours]
    assert staged
    for row in staged:
        assert row["extra_bytes_receiver"] < 2 * CHUNK_BYTES + PAYLOAD_BYTES // 4


def test_fates_standalone_federation_is_seen_to_copy_the_payload(rows: Mapping[str, dict[str, Any]]) -> None:
    assert rows["fate-standalone"]["extra_bytes_sender"] > PAYLOAD_BYTES


def test_report_plots_and_document_are_written(run: tuple[dict[str, Any], Path]) -> None:
    document, output = run
    written = {path.name for path in output.iterdir()}
    assert written == {"bench-fate.json", "bench-fate.html", "bench-fate-seconds.png", "bench-fate-memory.png"}
    assert json.loads((output / "bench-fate.json").read_text()) == document
    assert "fedrdma-e/shm" in (output / "bench-fate.html").read_text()


def gateways_below(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children(recursive=True) if "gateway" in words_of(one)]


def test_a_gateway_that_dies_fails_the_row_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def kill_a_gateway(what: str) -> None:
        if "timed, 1" in what:
            gateways_below(psutil.Process())[0].kill()

    with pytest.raises(RowError, match="the sender: \\[FR601\\] no gateway answers"):
        measure(GatewayPair("fedrdma-e", "tcp"), plain_bytes(PAYLOAD_BYTES), 1, kill_a_gateway)
    assert not gateways_below(psutil.Process())


def test_a_transport_that_is_not_to_be_had_fails_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = GatewayPair("fedrdma-e", "tcp")
    make_config = pair._config

    def other_transport(side: Any, control: str, largest_bytes: int) -> dict[str, Any]:
        return {**make_config(side, control, largest_bytes), "transport": "shm"}

    monkeypatch.setattr(pair, "_config", other_transport)
    with pytest.raises(RowError, match="the gateways chose shm"):
        measure(pair, plain_bytes(1000), 1, lambda _: None)


def start_and_wait_for_its_processes(temporary: Path) -> tuple[psutil.Popen, list[psutil.Process]]:
    running = psutil.Popen(
        command("--bytes", "1MB", "--rows", "fedrdma-e/shm", "--repeat", "1000"),
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    # two gateways, two parties, and the resource tracker of multiprocessing
    while len(family := running.children(recursive=True)) < 5:
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.05)
    return running, family


def test_sigterm_ends_gateways_and_parties_and_removes_their_files(tmp_path: Path) -> None:
    before = shared_memory_directories()
    running, family = start_and_wait_for_its_processes(tmp_path)
    running.terminate()
    running.communicate(timeout=60)
    assert running.returncode == 128 + 15
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert shared_memory_directories() <= before
    assert not list(tmp_path.iterdir())


def test_gateways_and_parties_end_even_when_the_benchmark_is_killed(tmp_path: Path) -> None:
    before = shared_memory_directories()
    running, family = start_and_wait_for_its_processes(tmp_path)
    running.kill()
    running.communicate(timeout=60)
    assert not psutil.wait_procs(family, timeout=60)[1]
    for name in shared_memory_directories() - before:
        # the gateways have removed their regions, which are what takes memory
        (Path("/dev/shm") / name).rmdir()
