"""The runner, with rivals that do one thing right or wrong; no gateway, no FATE."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from fedrdma_fate.bench.baselines.interface import RowError, Schedule
from fedrdma_fate.bench.baselines.memcpy import Memcpy
from fedrdma_fate.bench.baselines.raw_tcp import RawTcp
from fedrdma_fate.bench.results import Measurement
from fedrdma_fate.bench.runner import measure, run_rows
from tests.support.toy_baselines import (
    LARGE,
    SMALL,
    DamagingReceiver,
    DyingSender,
    FailingOpen,
    FailingSender,
    FileRival,
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
    found = psutil.Process().children(recursive=True)
    return {one.pid for one in found if "resource_tracker" not in " ".join(one.cmdline())}


def test_a_row_has_one_time_a_repeat_and_its_put_is_part_of_it() -> None:
    row = measure(FileRival(), LARGE, 3, quietly)
    assert row.name == "file"
    assert len(row.seconds) == len(row.put_seconds) == len(row.cpu_seconds) == 3
    assert all(0 < put <= whole for put, whole in zip(row.put_seconds, row.seconds, strict=True))
    assert all(cpu > 0 for cpu in row.cpu_seconds)


def test_memory_beyond_the_payload_is_next_to_nothing_where_nothing_is_copied() -> None:
    row = measure(FileRival(), LARGE, 1, quietly)
    assert row.extra_bytes_sender < SLACK
    assert row.extra_bytes_receiver < SLACK


def test_a_senders_copy_of_the_payload_is_charged_to_the_sender() -> None:
    row = measure(FileRival(sender=HoardingSender), LARGE, 1, quietly)
    assert abs(row.extra_bytes_sender - LARGE.total_bytes) < SLACK
    assert row.extra_bytes_receiver < SLACK


def test_a_receivers_copy_of_the_payload_is_charged_to_the_receiver() -> None:
    row = measure(FileRival(receiver=HoardingReceiver), LARGE, 1, quietly)
    assert row.extra_bytes_sender < SLACK
    assert abs(row.extra_bytes_receiver - LARGE.total_bytes) < SLACK


def test_memory_is_watched_as_well_where_there_is_no_warm_up() -> None:
    schedule = Schedule(warm_ups=0, most_repeats=1)
    row = measure(FileRival(sender=HoardingSender, schedule=schedule), LARGE, 3, quietly)
    assert len(row.seconds) == 1
    assert abs(row.extra_bytes_sender - LARGE.total_bytes) < SLACK


def test_shared_memory_that_the_service_reports_is_added() -> None:
    row = measure(FileRival(), SMALL, 1, quietly)
    assert row.extra_bytes_sender % 2**12 == 1
    assert row.extra_bytes_receiver % 2**12 == 2


def test_the_service_is_asked_whether_the_row_is_what_it_claims() -> None:
    measure(FileRival(), SMALL, 1, quietly)
    assert Path("checked").exists()


def test_ends_are_closed_and_workspace_and_processes_are_gone_afterwards() -> None:
    rival = FileRival()
    measure(rival, SMALL, 1, quietly)
    assert {"sender-closed", "receiver-closed"} <= rival.left_behind
    assert rival.workspace is not None
    assert not rival.workspace.exists()
    assert not children()


def test_progress_is_told() -> None:
    told: list[str] = []
    measure(FileRival(), SMALL, 2, told.append)
    assert told == [
        "file: starting",
        "file: first message, 1 of 1",
        "file: warm-up, 1 of 1",
        "file: timed, 1 of 2",
        "file: timed, 2 of 2",
    ]


@pytest.mark.parametrize(
    ("rival", "reason"),
    [
        (FileRival(receiver=DamagingReceiver), "what arrived in iteration 2 is not what was sent"),
        (FileRival(receiver=StaleReceiver), "what arrived in iteration 3 is not what was sent"),
        (FileRival(sender=FailingSender), "the sender: the cable is cut at 1 by first message"),
        (FileRival(sender=DyingSender), "the sender's process ended with status 7"),
        (FileRival(sender=FailingOpen), "the sender: no cable at all in fedrdma"),
    ],
    ids=["damaged", "stale", "failing", "dying", "not opening"],
)
def test_a_row_that_goes_wrong_says_how_and_leaves_nothing(rival: FileRival, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        measure(rival, LARGE, 1, quietly)
    assert str(caught.value) == f"{reason}\nthe cable says so too"
    assert rival.workspace is not None
    assert not rival.workspace.exists()
    assert not children()


def test_the_other_rows_are_measured_when_one_goes_wrong() -> None:
    measurements, failures = run_rows([FileRival(sender=FailingSender), Memcpy()], SMALL, 1, quietly)
    assert [row.name for row in measurements] == ["memcpy"]
    assert failures.keys() == {"file"}
    assert "the cable is cut" in failures["file"]


@pytest.mark.parametrize("rival", [Memcpy(), RawTcp()], ids=lambda rival: rival.name)
def test_references_move_the_payload_with_no_memory_of_their_own(rival: Memcpy | RawTcp) -> None:
    row: Measurement = measure(rival, LARGE, 2, quietly)
    assert len(row.seconds) == 2
    assert row.extra_bytes_sender < SLACK
    assert row.extra_bytes_receiver < SLACK
