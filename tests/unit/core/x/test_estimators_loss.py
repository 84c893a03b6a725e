"""How many packets a path loses is found in a few rounds, and remembered."""

from __future__ import annotations

import pytest

from fedrdma_fate.core.x.estimators import LossMeter


def test_the_first_round_of_an_unknown_path_counts_in_full() -> None:
    meter = LossMeter(None)
    assert meter.loss is None
    # of chunks of four packets, four in a hundred: about one packet in a hundred
    meter.on_round(8, 200, 4)
    assert meter.loss == pytest.approx(0.0102, abs=1e-4)


def test_rounds_that_differ_are_averaged() -> None:
    meter = LossMeter(None)
    for lost in (8, 0, 8, 0):
        meter.on_round(lost, 200, 1)
    assert meter.loss == pytest.approx(0.02)


def test_what_is_remembered_weighs_as_much_as_some_rounds() -> None:
    meter = LossMeter(0.01)
    meter.on_round(0, 200, 1)
    assert meter.loss == pytest.approx(0.0075)
    for _ in range(20):
        meter.on_round(0, 200, 1)
    assert meter.loss is not None
    assert meter.loss < 1e-4


def test_a_round_of_a_few_chunks_says_little() -> None:
    meter = LossMeter(0.01)
    meter.on_round(0, 8, 1)
    assert meter.loss == pytest.approx(0.01 * (1 - 0.25 / 8))


def test_what_is_only_supposed_gives_way_to_the_first_round() -> None:
    meter = LossMeter(0.001, found=False)
    assert meter.loss == 0.001
    meter.on_round(0, 30, 128)
    assert meter.loss == 0.0
