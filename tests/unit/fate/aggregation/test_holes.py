"""Means of updates with holes, beside the same element by element."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fedrdma_fate.fate.aggregation.holes import Holes, MaskedMean, PlainMean
from fedrdma_fate.wire.errors import ErrorCode, FateError

SHAPES = ((70, 1000), (13,), (), (0, 4))


def update(seed: int, dtype: Any = np.float64) -> list[Any]:
    made = np.random.default_rng(seed)
    return [np.asarray(made.standard_normal(shape), dtype) for shape in SHAPES]


def holes(seed: int) -> Holes:
    chance = random.Random(seed)
    edges = sorted(chance.sample(range(70_001), 2 * chance.randrange(20)))
    return {0: tuple(zip(edges[::2], edges[1::2], strict=True))}


def with_holes(arrays: list[Any], missing: Holes) -> list[Any]:
    """As they come: zeros where something is missing."""
    for number, ranges in missing.items():
        for start, end in ranges:
            arrays[number].reshape(-1)[start:end] = 0
    return arrays


def lacking(missing: list[Holes]) -> Any:
    """Of the first array, for each update and element, whether it is missing."""
    marks = np.zeros((len(missing), 70_000), bool)
    for mark, each in zip(marks, missing, strict=True):
        for start, end in each.get(0, ()):
            mark[start:end] = True
    return marks


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weights", [[0.2, 0.5, 0.3], [1, 2, 4], [0.5, 0.0, 0.5]])
def test_each_element_is_the_weighted_mean_of_those_that_came(seed: int, weights: list[float]) -> None:
    last = update(99)
    updates, missing = [update(number) for number in range(3)], [holes(10 * seed + number) for number in range(3)]
    # and some that nobody has
    missing = [{0: (*each[0], (0, 7))} if not each[0] or each[0][0][0] > 7 else each for each in missing]
    marks = lacking(missing)
    mean = PlainMean()
    for arrays, weight, each in zip(updates, weights, missing, strict=True):
        mean.add(with_holes(arrays, each), weight, each)

    found = mean.finish(last)

    there = np.asarray(weights)[:, None] * ~marks
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = (there * [each[0].reshape(-1) for each in updates]).sum(0) / there.sum(0)
    none = there.sum(0) == 0
    expected[none] = last[0].reshape(-1)[none]
    np.testing.assert_allclose(found.arrays[0].reshape(-1), expected, rtol=1e-9, atol=1e-12)
    assert found.kept == none.sum()
    assert found.elements == 70_000 + 13 + 1
    total = sum(weights)
    for number in (1, 2, 3):
        whole = sum(weight * each[number] for weight, each in zip(weights, updates, strict=True)) / total
        np.testing.assert_allclose(found.arrays[number], whole, rtol=1e-9)
        assert isinstance(found.arrays[number], np.ndarray), "a number is no array any more, and is not read at a silo"


@pytest.mark.parametrize("lacking_all", [1, 3])
def test_an_array_of_which_nothing_came_is_that_of_the_others_or_of_the_last_aggregate(lacking_all: int) -> None:
    updates, last, mean = [update(number) for number in range(3)], update(99), PlainMean()
    for number, arrays in enumerate(updates):
        lost: Holes = {1: ((0, 13),)} if number < lacking_all else {}
        mean.add(with_holes([each.copy() for each in arrays], lost), 1.0, lost)

    found = mean.finish(last)

    expected = last[1] if lacking_all == 3 else (updates[1][1] + updates[2][1]) / 2
    np.testing.assert_allclose(found.arrays[1], expected, rtol=1e-9)
    assert found.kept == (13 if lacking_all == 3 else 0)


def test_without_weights_it_is_the_sum_and_with_holes_so_often_the_mean_of_those_that_came() -> None:
    mean = PlainMean()
    mean.add([np.full(4, 2.0)], None, {})
    mean.add([np.array([0.0, 4.0, 4.0, 4.0])], None, {0: ((0, 1),)})

    assert mean.finish(None).arrays[0].tolist() == [4.0, 6.0, 6.0, 6.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_])
def test_real_numbers_keep_their_type_and_others_become_float64(dtype: Any) -> None:
    mean = PlainMean()
    mean.add([np.ones(3, dtype)], 1, {})
    mean.add([np.ones(3, dtype)], 3, {})

    (found,) = mean.finish(None).arrays
    assert found.tolist() == [1.0] * 3
    assert found.dtype == (dtype if np.dtype(dtype).kind == "f" else np.float64)


def test_arrays_that_are_not_contiguous_are_read_in_their_order() -> None:
    mean = PlainMean()
    turned = np.arange(6.0).reshape(2, 3).T
    mean.add([turned], 1.0, {})

    assert np.array_equal(mean.finish(None).arrays[0], turned)


@pytest.mark.parametrize("last", [None, [], [np.zeros(3)]], ids=["none", "empty", "another shape"])
def test_what_nobody_has_and_no_round_before_had_is_an_error(last: Any) -> None:
    mean = PlainMean()
    mean.add([np.zeros(4)], 1.0, {0: ((1, 2),)})

    with pytest.raises(FateError) as refused:
        mean.finish(last)
    assert refused.value.code is ErrorCode.MESSAGE_INCOMPLETE


@pytest.mark.parametrize(
    "second", [([np.zeros(5)], 1.0), ([], 1.0), ([np.zeros(4)], None), ([np.array(["a"] * 4)], 1.0)]
)
def test_updates_that_do_not_go_together_are_refused(second: tuple[list[Any], Any]) -> None:
    mean = PlainMean()
    mean.add([np.zeros(4)], 1.0, {})

    with pytest.raises(FateError) as refused:
        mean.add(*second, {})
    assert refused.value.code is ErrorCode.PAYLOAD_MALFORMED


def masked(seeds: dict[int, dict[int, bytes]], arrays: dict[int, list[Any]], weight: float) -> dict[int, Any]:
    from fate_utils.secure_aggregation_helper import RandomMix

    return {rank: RandomMix(seeds[rank], rank).mix(arrays[rank], weight) for rank in seeds}


@pytest.mark.parametrize("seed", range(3))
def test_of_masked_updates_what_one_lacks_in_either_of_two_arrays_keeps_the_last_aggregate_for_all(seed: int) -> None:
    from fate_utils.secure_aggregation_helper import MixAggregate

    keys = {(0, 1): b"a" * 32, (0, 2): b"b" * 32, (1, 2): b"c" * 32}
    seeds = {
        rank: {other: keys[min(rank, other), max(rank, other)] for other in range(3) if other != rank}
        for rank in range(3)
    }
    arrays = {rank: update(rank) for rank in range(3)}
    last = update(99)
    mean = MaskedMean(MixAggregate)
    lost = np.zeros(70_000, bool)
    for rank, pairs in masked(seeds, arrays, 0.5).items():
        chance = 100 * seed + 2 * rank
        missing = {0: holes(chance)[0], 1: holes(chance + 1)[0]}
        flat = [plane for pair in pairs for plane in pair]
        lost |= lacking([{0: missing[0]}, {0: missing[1]}]).any(0)
        flat = with_holes([plane.copy() for plane in flat], missing)
        mean.add(list(zip(flat[::2], flat[1::2], strict=True)), 0.5, missing)

    found = mean.finish(last)

    expected = sum(arrays[rank][0] for rank in range(3)).reshape(-1) / 3
    got = found.arrays[0].reshape(-1)
    assert np.array_equal(got[lost], last[0].reshape(-1)[lost])
    np.testing.assert_allclose(got[~lost], expected[~lost], atol=1e-7)
    assert found.kept == lost.sum()
    np.testing.assert_allclose(found.arrays[1], sum(arrays[rank][1] for rank in range(3)) / 3, atol=1e-7)
