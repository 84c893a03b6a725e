"""`fedrdma bench notices`: that each way is measured, and what is asked wrongly is told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fedrdma_fate.aggregate.skmsg import try_skmsg
from fedrdma_fate.bench.notices import WAYS
from fedrdma_fate.cli.main import main


def test_every_way_is_measured_for_every_size() -> None:
    outcome = CliRunner().invoke(main, ["bench", "notices", "--sizes", "1MB, 524288", "--count", "3", "--json"])

    assert outcome.exit_code == 0, outcome.output
    rows = json.loads(outcome.stdout)["rows"]
    # where the kernel passes none on for this user, that is told, and the others are measured
    reason = try_skmsg()
    ways = [way for way in WAYS if way != "skmsg" or not reason]
    assert reason in outcome.stderr
    assert [(row["way"], row["update_bytes"]) for row in rows] == [
        (way, size) for size in (1_000_000, 524_288) for way in ways
    ]
    for row in rows:
        assert row["notices"] == 3
        assert (
            0 < row["least_seconds"] <= row["median_seconds"] <= row["most_seconds"] <= row["addition_seconds"] * 1000
        )
        assert row["first_seconds"] > 0


def test_there_is_a_table_for_people() -> None:
    outcome = CliRunner().invoke(main, ["bench", "notices", "--sizes", "1MB", "--count", "2", "--ways", "socket"])

    assert outcome.exit_code == 0, outcome.output
    assert "until it is in" in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ways", "socket,pigeon"], "there is no way 'pigeon'"),
        (["--sizes", "47MB,large"], "--sizes"),
        (["--sizes", "64KiB"], "64KiB is less than 256KiB"),
        (["--sizes", "1MB,,2MB"], "--sizes"),
        (["--sizes", "1000000.5"], "--sizes"),
    ],
)
def test_what_cannot_be_measured_is_told_before_anything_is(arguments: list[str], told: str) -> None:
    outcome = CliRunner().invoke(main, ["bench", "notices", *arguments])

    assert outcome.exit_code != 0
    assert told in outcome.output
