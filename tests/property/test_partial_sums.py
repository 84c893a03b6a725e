"""Sums of some parties, added to one another: the same bits as each party alone, whatever the split and the tree."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.aggregate.arithmetic import Exact, UnfitError
from fedrdma_fate.core.fold import most_whole

ITEMS = 5
MOST_PARTIES_TRIED = 3500

Sum = tuple[Any, Any]


def updates_of(parties: int, seed: int) -> list[Sum]:
    """Fractions and whole numbers as masks make them: each below the count of the parties, and what cancels."""
    randomness = np.random.default_rng(seed)
    fractions = randomness.uniform(-1.0, 1.0, (parties, ITEMS)) * min(parties, 1000)
    wholes = np.rint(randomness.uniform(-1.0, 1.0, (parties, ITEMS)) * most_whole(parties))
    return list(zip(fractions, wholes, strict=True))


def alone(adder: Exact, updates: list[Sum]) -> Sum:
    fraction, whole = np.empty(ITEMS), np.empty(ITEMS)
    for number, update in enumerate(updates):
        adder.add(fraction if number else None, update[0], fraction, whole=False)
        adder.add(whole if number else None, update[1], whole, whole=True)
    return fraction, whole


def merged(adder: Exact, sums: Sum | None, partial: Sum, parties: int) -> Sum:
    fraction, whole = np.empty(ITEMS), np.empty(ITEMS)
    adder.merge(None if sums is None else sums[0], partial[0], fraction, whole=False, parties=parties)
    adder.merge(None if sums is None else sums[1], partial[1], whole, whole=True, parties=parties)
    return fraction, whole


def by_a_tree(adder: Exact, updates: list[Sum], chance: random.Random) -> Sum:
    """Split at random, and again, until what is left is added one by one."""
    if len(updates) == 1 or chance.random() < 0.2:
        return alone(adder, updates)
    cuts = sorted(chance.sample(range(1, len(updates)), min(len(updates) - 1, chance.randint(1, 6))))
    total: Sum | None = None
    for start, end in zip([0, *cuts], [*cuts, len(updates)], strict=True):
        total = merged(adder, total, by_a_tree(adder, updates[start:end], chance), end - start)
    assert total is not None
    return total


def finished(adder: Exact, sums: Sum) -> bytes:
    result = np.empty(ITEMS)
    adder.finish(sums[0], result)
    return bytes(result.tobytes() + sums[1].tobytes())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.one_of(st.integers(1, 12), st.integers(1000, MOST_PARTIES_TRIED)))
def test_any_split_and_any_tree_has_the_bits_of_each_party_alone(seed: int, parties: int) -> None:
    adder, chance = Exact(parties), random.Random(seed)
    updates = updates_of(parties, seed)
    shuffled = chance.sample(updates, parties)

    assert finished(adder, by_a_tree(adder, shuffled, chance)) == finished(adder, alone(adder, updates))


def test_a_sum_that_wraps_around_at_a_site_is_right_in_the_total() -> None:
    adder = Exact(4)
    large = np.full(ITEMS, 1000.0)
    updates: list[Sum] = [(sign * large, np.zeros(ITEMS)) for sign in (1.0, 1.0, -1.0, -1.0)]
    several: list[Sum] = [updates[0]] * 3

    wrapped = alone(adder, several)
    assert (wrapped[0].view(np.int64) < 0).any()
    total = merged(adder, wrapped, alone(adder, [updates[2]] * 3), 3)

    assert np.frombuffer(finished(adder, total), np.float64).tolist() == [0.0] * 2 * ITEMS


@pytest.mark.parametrize("parties", [1, 7, 3000])
def test_what_was_merged_can_be_taken_out_again_exactly(parties: int) -> None:
    adder = Exact(2 * parties)
    updates = updates_of(2 * parties, 11)
    first, second = alone(adder, updates[:parties]), alone(adder, updates[parties:])
    both = merged(adder, first, second, parties)

    left = np.empty(ITEMS), np.empty(ITEMS)
    for plane, result in enumerate(left):
        adder.unmerge(both[plane], second[plane], result, whole=plane == 1)

    assert finished(adder, left) == finished(adder, first)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sum_of_so_many_parties_is_merged_and_the_next_whole_number_refused(sign: float) -> None:
    adder, most = Exact(8), 3.0 * most_whole(8)
    result = np.empty(1)

    adder.merge(np.zeros(1), np.array([sign * most]), result, whole=True, parties=3)
    assert result.tolist() == [sign * most]
    with pytest.raises(UnfitError, match="those of 3 parties"):
        adder.merge(np.zeros(1), np.array([sign * (most + 1.0)]), result, whole=True, parties=3)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 0.5])
def test_what_no_sum_of_whole_numbers_can_be_is_refused(number: float) -> None:
    with pytest.raises(UnfitError), np.errstate(all="raise"):
        Exact(8).merge(np.zeros(3), np.array([1.0, number, 2.0]), np.empty(3), whole=True, parties=3)


def test_a_site_that_counts_its_own_parties_alone_would_have_other_bits() -> None:
    """Why an order has to say how many belong to the whole sum: bits behind the point follow from that."""
    updates = updates_of(3000, 5)

    total, site = alone(Exact(3000), updates[:8]), alone(Exact(8), updates[:8])

    assert total[0].tobytes() != site[0].tobytes()
