"""`fedrdma bench unifl`: what holes do to a model, on a small scale, and its document."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from fedrdma_fate.bench.unifl import accuracy as accuracy_module
from fedrdma_fate.bench.unifl.accuracy import AccuracySetting, Row, measure_accuracy, reference_of, to_table, train
from fedrdma_fate.bench.unifl.model import accuracy, dealt, first_model
from fedrdma_fate.cli.main import main

SMALL = AccuracySetting(silos=32, chosen=3, rounds=7, seeds=1)
SHORT = AccuracySetting(silos=8, chosen=3, rounds=3, seeds=1)


def test_the_mean_of_those_that_came_costs_little_and_zeros_ruin_the_model() -> None:
    lossless, _ = train(SMALL, Row("plain", 0.0), 1)
    bounded, kept = train(SMALL, Row("plain", 0.2), 1)
    ruined, _ = train(SMALL, Row("zeros", 0.2), 1)

    assert lossless > 0.6
    assert abs(bounded - lossless) < 0.05
    assert 0 < kept < 0.02, "of three silos none has an element in one of 125 cases"
    assert ruined < bounded - 0.2


def test_masked_updates_make_the_same_model_and_what_one_lacks_stands_still() -> None:
    plain, _ = train(SHORT, Row("plain", 0.0), 1)
    secure, kept = train(SHORT, Row("secure", 0.0), 1)
    _, stood = train(SHORT, Row("secure", 0.05), 1)

    assert (secure, kept) == (plain, 0.0)
    # of three silos' two planes each, in two of three rounds
    assert stood == pytest.approx((1 - 0.95**6) * 2 / 3, abs=0.1)


def test_every_silo_has_something_and_none_has_what_is_tested() -> None:
    federation = dealt(64, 3)

    assert min(len(silo.labels) for silo in federation.silos) >= 1
    assert len(federation.test.labels) + sum(len(silo.labels) for silo in federation.silos) == 1797
    sizes = sorted(len(silo.labels) for silo in federation.silos)
    assert sizes[-1] > 2 * sizes[len(sizes) // 2], "unequal"


def test_a_model_that_is_no_number_knows_no_digit() -> None:
    model = [np.full_like(each, math.nan) for each in first_model(1)]

    assert accuracy(model, dealt(2, 1).test) == 0


def test_the_document_and_the_table_have_a_row_for_each() -> None:
    rows = (Row("plain", 0.0), Row("plain", 0.01), Row("zeros", 0.05))
    outcomes = measure_accuracy(SHORT, rows)

    document = accuracy_module.to_document(SHORT, outcomes)
    table = to_table(SHORT, outcomes)

    assert [(row["way"], row["loss"]) for row in json.loads(json.dumps(document))["rows"]] == [
        (row.way, row.loss) for row in rows
    ]
    assert all(len(row["accuracies"]) == 1 for row in document["rows"])
    assert reference_of(outcomes[2], outcomes) is outcomes[0]
    assert [row[0] for row in table.rows] == ["plain", "plain, 1 % lost", "zeros, 5 % lost"]
    assert table.rows[0][2] == ""
    assert float(table.rows[2][2]) == pytest.approx(100 * (outcomes[2].mean - outcomes[0].mean), abs=0.01)


@pytest.mark.parametrize("arguments", [["--silos", "4", "--chosen", "5"], ["--rounds", "1"], ["--seeds", "0"]])
def test_settings_that_make_no_sense_are_refused_with_the_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["bench", "unifl", "accuracy", *arguments])

    assert result.exit_code == 2
    assert "Usage:" in result.stderr
