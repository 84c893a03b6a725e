"""`fedrdma bench aggregate --capacity`: what is found, and what is shown of it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fedrdma_fate.bench import aggregate_capacity
from fedrdma_fate.bench.aggregate_capacity import Capacity, CapacityStep, capacity_document, capacity_table
from fedrdma_fate.bench.aggregate_setting import AggregateSetting
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.cli import bench_aggregate
from fedrdma_fate.cli.main import main

SETTING = AggregateSetting("tiny", 10_000, 2, 3, "tcp")
ARGUMENTS = ["bench", "aggregate", "--capacity", "--parameters", "10000", "--arrivals", "5"]


def test_the_capacity_is_rate_times_seconds_of_the_first_step_that_is_overloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # whatever comes is overload
    monkeypatch.setattr(aggregate_capacity, "SIGNIFICANT", 0.0)
    shown = CliRunner().invoke(main, [*ARGUMENTS, "--json"], catch_exceptions=False)
    document = json.loads(shown.stdout)
    (step,) = document["steps"]
    assert document["capacity"] == pytest.approx(step["updates_per_second"] * step["seconds"])
    assert document["workers"] >= 1


def test_where_no_step_is_overloaded_there_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate_capacity, "SIGNIFICANT", 1e9)
    shown = CliRunner().invoke(main, ARGUMENTS, catch_exceptions=False)
    assert "more than the steps show" in " ".join(shown.stdout.split())


def test_the_table_says_what_was_found() -> None:
    found = Capacity(1, 160_000, 0.01, (CapacityStep(50.0, 0.02),), 1.0)
    assert "1.0 updates at once" in capacity_table(SETTING, found).title
    json.dumps(capacity_document(found), allow_nan=False)


def test_a_host_that_cannot_add_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Capacity:
        raise RowError("no memory")

    monkeypatch.setattr(bench_aggregate, "measure_capacity", fail)
    shown = CliRunner().invoke(main, ARGUMENTS)
    assert shown.exit_code
    assert "no memory" in shown.output
