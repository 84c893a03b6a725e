"""The runner, with baselines that do one thing right or wrong; no gateway, no FATE."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil
import pytest

from fedrdma_fate.bench.baselines import raw_udp
from fedrdma_fate.bench.baselines.disk import Disk
from fedrdma_fate.bench.baselines.interface import RowError, Schedule
from fedrdma_fate.bench.baselines.memcpy import Memcpy
from fedrdma_fate.bench.baselines.raw_tcp import RawTcp
from fedrdma_fate.bench.baselines.raw_udp import RawUdp, RawUdpReceiver, RawUdpSender
from fedrdma_fate.bench.payload import PayloadArrays
from fedrdma_fate.bench.results import Measurement
from fedrdma_fate.bench.runner import measure, run_rows
from tests.support.toy_baselines import (
    LARGE,
    PAUSE,
    SMALL,
    DamagingReceiver,
    DyingSender,
    FailingOpen,
    FailingSender,
    FileBaseline,
    HoardingReceiver,
    HoardingSender,
    StaleReceiver,
)

SLACK = 4 * 2**20


def quietly(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def children() -> set[int]:
    found = set()
    for one in psutil.Process().children(recursive=True):
        # one may end meanwhile
        with contextlib.suppress(psutil.NoSuchProcess):
            if "resource_tracker" not in " ".join(one.cmdline()):
                found.add(one.pid)
    return found


def test_a_row_has_one_time_a_repeat_from_the_start_of_the_put_to_the_end_of_the_get() -> None:
    row = measure(FileBaseline(HoardingSender, HoardingReceiver), LARGE, 3, quietly)
    assert row.name == "file"
    assert len(row.seconds) == len(row.put_seconds) == len(row.cpu_seconds) == 3
    # lower bounds alone: on a busy machine a put may return later than what it made available was got
    assert all(put >= PAUSE for put in row.put_seconds)
    assert all(whole >= 2 * PAUSE for whole in row.seconds)
    assert all(cpu > 0 for cpu in row.cpu_seconds)


def test_memory_beyond_the_payload_is_next_to_nothing_where_nothing_is_copied() -> None:
    row = measure(FileBaseline(), LARGE, 1, quietly)
    assert row.extra_bytes_sender < SLACK
    assert row.extra_bytes_receiver < SLACK


def test_a_senders_copy_of_the_payload_is_charged_to_the_sender() -> None:
    row = measure(FileBaseline(sender=HoardingSender), LARGE, 1, quietly)
    assert abs(row.extra_bytes_sender - LARGE.total_bytes) < SLACK
    assert row.extra_bytes_receiver < SLACK


def test_a_receivers_copy_of_the_payload_is_charged_to_the_receiver() -> None:
    row = measure(FileBaseline(receiver=HoardingReceiver), LARGE, 1, quietly)
    assert row.extra_bytes_sender < SLACK
    assert abs(row.extra_bytes_receiver - LARGE.total_bytes) < SLACK


def test_memory_is_watched_as_well_where_there_is_no_warm_up() -> None:
    schedule = Schedule(warm_ups=0, most_repeats=1)
    row = measure(FileBaseline(sender=HoardingSender, schedule=schedule), LARGE, 3, quietly)
    assert len(row.seconds) == 1
    assert abs(row.extra_bytes_sender - LARGE.total_bytes) < SLACK


def test_shared_memory_that_the_service_reports_is_added() -> None:
    row = measure(FileBaseline(), SMALL, 1, quietly)
    assert row.extra_bytes_sender % 2**12 == 1
    assert row.extra_bytes_receiver % 2**12 == 2


def test_the_service_is_asked_whether_the_row_is_what_it_claims() -> None:
    measure(FileBaseline(), SMALL, 1, quietly)
    assert Path("checked").exists()


def test_ends_are_closed_and_workspace_and_processes_are_gone_afterwards() -> None:
    baseline = FileBaseline()
    measure(baseline, SMALL, 1, quietly)
    assert {"sender-closed", "receiver-closed"} <= baseline.left_behind
    assert baseline.workspace is not None
    assert not baseline.workspace.exists()
    assert not children()


def test_progress_is_told() -> None:
    told: list[str] = []
    measure(FileBaseline(), SMALL, 2, told.append)
    assert told == [
        "file: starting",
        "file: first message, 1 of 1",
        "file: warm-up, 1 of 1",
        "file: timed, 1 of 2",
        "file: timed, 2 of 2",
    ]


@pytest.mark.parametrize(
    ("baseline", "reason"),
    [
        (FileBaseline(receiver=DamagingReceiver), "what arrived in iteration 2 is not what was sent"),
        (FileBaseline(receiver=StaleReceiver), "what arrived in iteration 3 is not what was sent"),
        (FileBaseline(sender=FailingSender), "the sender: the cable is cut at 1 by first message"),
        (FileBaseline(sender=DyingSender), "the sender's process ended with status 7"),
        (FileBaseline(sender=FailingOpen), "the sender: no cable at all in fedrdma"),
    ],
    ids=["damaged", "stale", "failing", "dying", "not opening"],
)
def test_a_row_that_goes_wrong_says_how_and_leaves_nothing(baseline: FileBaseline, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        measure(baseline, LARGE, 1, quietly)
    assert str(caught.value) == f"{reason}\nthe cable says so too"
    assert baseline.workspace is not None
    assert not baseline.workspace.exists()
    assert not children()


def test_the_other_rows_are_measured_when_one_goes_wrong() -> None:
    measurements, failures = run_rows([FileBaseline(sender=FailingSender), Memcpy()], SMALL, 1, quietly)
    assert [row.name for row in measurements] == ["memcpy"]
    assert failures.keys() == {"file"}
    assert "the cable is cut" in failures["file"]


@pytest.mark.parametrize("baseline", [Memcpy(), RawTcp(), RawUdp(), Disk()], ids=lambda baseline: baseline.name)
def test_references_move_the_payload_with_no_memory_of_their_own(baseline: Memcpy | RawTcp | RawUdp | Disk) -> None:
    row: Measurement = measure(baseline, LARGE, 2, quietly)
    assert len(row.seconds) == 2
    assert row.extra_bytes_sender < SLACK
    assert row.extra_bytes_receiver < SLACK


def test_a_datagram_that_raw_udp_loses_fails_the_row_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_udp, "_SILENCE_SECONDS", 0.05)
    payload = PayloadArrays(SMALL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving:
        receiving.bind(("127.0.0.1", 0))
        sender = RawUdpSender(receiving.getsockname()[1], window_bytes=1 << 20)
        receiver = RawUdpReceiver(receiving, SMALL.total_bytes, window_bytes=1 << 20)
        with contextlib.closing(sender), contextlib.closing(receiver):
            with pytest.raises(RowError, match="a datagram was lost"):
                sender.put(0, payload)
            with pytest.raises(RowError, match="a datagram was lost"):
                # longer than what was sent
                receiver.get(0, LARGE)
