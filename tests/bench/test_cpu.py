"""`fedrdma bench cpu`: that it sends what it says, and counts processor time and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from fedrdma_fate.bench.cpu import loopback
from fedrdma_fate.bench.cpu.control import BODIES
from fedrdma_fate.bench.cpu.loopback import Loopback
from fedrdma_fate.bench.cpu.results import CpuRow, digest_seconds, measure, to_document, to_table
from fedrdma_fate.bench.cpu.sealing import WAYS
from fedrdma_fate.core.x.receiver import XReceiver
from fedrdma_fate.core.x.sender import XSender
from fedrdma_fate.wire.errors import FedRDMAError

KIB = 1 << 10


def test_every_chunk_goes_through_both_engines_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    take = XReceiver.on_chunk

    def on_chunk(machine: XReceiver, immediate: int, *rest: float) -> object:
        seen.append(immediate & 0xFFFFF)
        return take(machine, immediate, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(XReceiver, "on_chunk", on_chunk)
    cost = Loopback(64 * KIB, 300, 1e9).run()
    assert sorted(seen) == list(range(300))
    assert 0 < cost.send_seconds < 0.1
    assert 0 < cost.receive_seconds < 0.1


def test_time_is_charged_to_the_side_that_spends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    post = XSender._send
    extra = 0.0005

    def slow_send(*arguments: object) -> None:
        until = time.thread_time() + extra
        while time.thread_time() < until:
            pass
        post(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(XSender, "_send", slow_send)
    cost = Loopback(64 * KIB, 100, 1e9).run()
    assert cost.send_seconds >= extra
    assert cost.receive_seconds < extra


def test_a_transfer_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "_MOST_TURNS", 20)
    with pytest.raises(FedRDMAError, match="does not end"):
        Loopback(64 * KIB, 100, 1e9).run()


def test_rates_follow_from_costs_and_the_receiver_pays_for_the_digest() -> None:
    row = CpuRow(chunk_bytes=125_000, send_seconds=1e-5, receive_seconds=2e-6, digest_seconds=8e-6)
    assert row.send_bps == pytest.approx(100e9)
    assert row.receive_bps == pytest.approx(100e9)
    document = to_document([row])
    assert document == {
        "rows": [
            {
                "chunk_bytes": 125_000,
                "send_seconds": 1e-5,
                "receive_seconds": 2e-6,
                "digest_seconds": 8e-6,
                "send_bps": row.send_bps,
                "receive_bps": row.receive_bps,
            }
        ]
    }
    assert to_table([row]).rows[0][-1] == "100.0 Gbit/s"


def test_larger_chunks_cost_more_to_digest() -> None:
    memory = memoryview(bytearray(8 << 20))
    assert digest_seconds(memory, 1 << 20) > digest_seconds(memory, 16 * KIB) > 0


def test_sizes_are_measured_in_their_order_and_told() -> None:
    told: list[str] = []
    rows = measure([4 << 20, 1 << 20], 1, told.append)
    assert [row.chunk_bytes for row in rows] == [4 << 20, 1 << 20]
    assert len(told) == 2


def test_the_command_prints_a_document_for_programs() -> None:
    command = [sys.executable, "-m", "fedrdma_fate.cli.main", "bench", "cpu", "--repeat", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["rows"][0]["chunk_bytes"] == 16 * KIB
    assert [(row["cipher"], row["seal"]) for row in document["sealing"]] == list(WAYS)
    assert all(row["seal_rate"] > 0 and row["open_rate"] > 0 for row in document["sealing"])
    assert [row["body_bytes"] for row in document["control"]] == list(BODIES)
    assert all(row["off_seconds"] > 0 and row["mtls_seconds"] > 0 for row in document["control"])
