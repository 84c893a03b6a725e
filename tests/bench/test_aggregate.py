"""`fedrdma bench aggregate`: that its rows sum what they say, and that a wrong sum is no row."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedrdma_fate.bench import aggregate
from fedrdma_fate.bench.aggregate import ROWS, AggregateSetting, measure_aggregate
from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.cli.main import main

SETTING = AggregateSetting("small", 20_000, 3, 4, "tcp")


def test_every_row_sums_and_the_document_has_all_that_is_measured() -> None:
    outcome = CliRunner().invoke(main, ["bench", "aggregate", "--parameters", "20000", "--updates", "3", "--json"])

    assert outcome.exit_code == 0, outcome.output
    rows = {row["name"]: row for row in json.loads(outcome.stdout)["rows"]}
    assert tuple(rows) == ROWS
    keys = {"name", "model", "updates", "seconds", "after_last_seconds", "cpu_seconds", "waiting_bytes"}
    for name, row in rows.items():
        assert set(row) == keys
        assert row["seconds"] >= row["after_last_seconds"] > 0
        if name in ("slots", "slots-rank", "fate"):
            # the last update, or what waits for it, lay there
            assert row["waiting_bytes"] >= SETTING.update_bytes
            assert row["cpu_seconds"] > 0


@pytest.mark.parametrize("party", range(3))
@pytest.mark.parametrize("times", [0, 2])
def test_a_sum_in_which_a_party_is_not_exactly_once_is_found(party: int, times: int) -> None:
    update = aggregate._update(SETTING)
    planes = aggregate._pairs(update, SETTING)
    counts = [times if rank == party else 1 for rank in range(3)]
    # as many as there should be, so that only who is in it differs
    counts[(party + 1) % 3] = 2 - times + counts[(party + 1) % 3] - 1
    sums = [(sum(counts) * fraction, sum(counts) * whole) for fraction, whole in planes]
    sums[0][1][0] += sum(count * 2**rank for rank, count in enumerate(counts))

    with pytest.raises(RowError, match="wrong"):
        aggregate._check(SETTING, update, sums)


def test_the_sum_of_all_is_right() -> None:
    update = aggregate._update(SETTING)
    sums = [(3 * fraction, 3 * whole) for fraction, whole in aggregate._pairs(update, SETTING)]
    sums[0][1][0] += 7

    aggregate._check(SETTING, update, sums)
    assert np.all(sums[0][1] == np.rint(sums[0][1]))


def test_a_row_that_fails_says_why_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RowError("no room")

    monkeypatch.setattr(aggregate, "_sum", fails)

    measured, failures = measure_aggregate(SETTING, ["slots", "copy", "add"], lambda _: None)

    assert [row.name for row in measured] == ["copy", "add"]
    assert failures == {"slots": "no room"}


def test_a_row_that_there_is_not_is_refused_by_name() -> None:
    outcome = CliRunner().invoke(main, ["bench", "aggregate", "--rows", "slots,lazy"])

    assert outcome.exit_code != 0
    assert "'lazy'" in outcome.output
