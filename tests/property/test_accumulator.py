"""Sums of blocks: the same bits in every order, and whoever adds may die between any two of its steps."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.aggregate import accumulator
from fedrdma_fate.aggregate.accumulator import Accumulator
from fedrdma_fate.aggregate.arithmetic import UnfitError, adder_for
from fedrdma_fate.aggregate.place import MARK_BYTES, PLANES_AT, accumulator_bytes, half_in, planes_at
from fedrdma_fate.core.fold import Order
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import planes_bytes, planes_of
from tests.support.summands import Pairs, bits, masked, pairs_in, summed_by_rank, written

SHAPES = ((5,), (), (0, 2), (3, 7))
PLANES = list(planes_of(SHAPES))


class Killed(BaseException):
    """The process is gone here."""


class Dying(Accumulator):
    """Dies at some of its steps: before or after it writes the mark, or in the middle of a copy."""

    def __init__(self, memory: bytearray, adder: Any, chance: random.Random | None) -> None:
        super().__init__(memoryview(memory), PLANES, adder)
        self._chance = chance

    def _perhaps(self) -> None:
        if self._chance is not None and self._chance.random() < 0.1:
            raise Killed

    def _set(self, *mark: Any) -> None:
        self._perhaps()
        super()._set(*mark)
        self._perhaps()

    def _copy(self, block: int) -> None:
        if self._chance is not None and self._chance.random() < 0.1:
            sums = self._sums[block]
            half = len(sums) // 2
            np.copyto(sums[:half], self._aside[:half])
            raise Killed
        super()._copy(block)


def summed(
    updates: Sequence[Pairs], order: Order, chance: random.Random | None = None, bad: frozenset[int] = frozenset()
) -> Pairs:
    memory = bytearray(accumulator_bytes(order, planes_bytes(SHAPES)))
    # a slot holds whatever was there before, all but the mark
    memory[PLANES_AT:] = b"\xa5" * (len(memory) - PLANES_AT)
    payloads = [memoryview(written(update, Party("host", "1"))) for update in updates]
    added = 0

    def until_done(step: Any) -> None:
        while True:
            try:
                # a new process knows nothing but what lies in the slot
                step(Dying(memory, adder_for(order, len(updates) - len(bad)), chance))
                return
            except Killed:
                continue

    for number, payload in enumerate(payloads):
        adding = functools.partial(Accumulator.add, number=added + 1, update=payload, first=0)
        if number in bad:
            with pytest.raises(UnfitError):
                until_done(adding)
            assert not half_in(memoryview(memory), added + 1)
            continue
        until_done(adding)
        added += 1
        assert half_in(memoryview(memory), added)
        assert Dying(memory, adder_for(order, len(updates)), None).begun == added
    until_done(Accumulator.finish)
    return pairs_in(memoryview(memory)[planes_at(order, planes_bytes(SHAPES)) :], SHAPES)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulator, "BLOCK_ITEMS", 4)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_an_exact_sum_has_the_same_bits_in_every_order(seed: int, parties: int) -> None:
    updates = masked(SHAPES, parties, seed)
    shuffled = random.Random(seed).sample(updates, parties)

    assert bits(summed(updates, Order.EXACT)) == bits(summed(shuffled, Order.EXACT))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_an_exact_sum_is_the_true_one_within_half_a_last_bit_for_each_update(seed: int, parties: int) -> None:
    updates = masked(SHAPES, parties, seed)

    for (fraction, whole), (true, true_whole) in zip(
        summed(updates, Order.EXACT), summed_by_rank(updates), strict=True
    ):
        assert np.abs(fraction - true).max(initial=0) <= parties * 2.0**-52 * max(parties, 8)
        assert np.array_equal(whole, true_whole)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_a_sum_by_rank_has_the_bits_of_float64_additions(seed: int, parties: int) -> None:
    updates = masked(SHAPES, parties, seed)

    assert bits(summed(updates, Order.RANK)) == bits(summed_by_rank(updates))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(Order))
def test_whoever_adds_may_die_at_any_step_and_nothing_is_added_twice_or_missing(seed: int, order: Order) -> None:
    updates = masked(SHAPES, 4, seed)

    assert bits(summed(updates, order, random.Random(seed))) == bits(summed(updates, order))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 3))
def test_what_is_refused_half_way_is_taken_out_again_though_whoever_does_it_dies_and_others_are_added_after_it(
    seed: int, place: int
) -> None:
    updates = masked(SHAPES, 4, seed)
    bad = [(fraction.copy(), whole.copy()) for fraction, whole in updates.pop()]
    bad[-1][1][-1, -1] = np.nan

    found = summed([*updates[:place], bad, *updates[place:]], Order.EXACT, random.Random(seed), frozenset({place}))

    assert bits(found) == bits(summed(updates, Order.EXACT))


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_compensated_sum_is_off_by_a_last_bit_however_many_parties_and_whatever_order(
    seed: int, parties: int
) -> None:
    updates = masked(SHAPES, parties, seed)
    random.Random(seed).shuffle(updates)
    found = summed(updates, Order.ARRIVAL)

    for array, (fraction, whole) in enumerate(found):
        for plane, values in enumerate((fraction, whole)):
            each = np.array([update[array][plane] for update in updates])
            true = [math.fsum(column) for column in each.reshape(parties, -1).T]
            # the last bit of the sum, and what is rounded away of what was rounded away
            room = 2.0**-52 * np.abs(true) + parties**2 * 2.0**-104 * np.abs(each).sum(axis=0).ravel()
            assert np.all(np.abs(values.ravel() - true) <= room)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_compensated_sum_passes_on_what_is_no_number(number: float) -> None:
    updates = masked(SHAPES, 3, 1)
    updates[1][0][0][2] = number

    ((fraction, _), *_) = summed(updates, Order.ARRIVAL)

    assert str(fraction[2]) == str(number)
    assert np.isfinite(np.delete(fraction, 2)).all()


def unfinished(updates: Sequence[Pairs], parties: int) -> bytearray:
    """The slot of a sum of some of so many parties."""
    memory = bytearray(accumulator_bytes(Order.EXACT, planes_bytes(SHAPES)))
    for number, update in enumerate(updates, 1):
        payload = memoryview(written(update, Party("host", "1")))
        Accumulator(memoryview(memory), PLANES, adder_for(Order.EXACT, parties)).add(number, payload, 0)
    return memory


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_a_sum_is_merged_or_taken_out_again_though_whoever_adds_dies_and_others_go_on(
    seed: int, first: bool, spoilt: bool
) -> None:
    chance, updates = random.Random(seed), masked(SHAPES, 5, seed)
    memory = bytearray(accumulator_bytes(Order.EXACT, planes_bytes(SHAPES)))
    partial = unfinished(updates[:3], 5)
    if spoilt:
        np.frombuffer(memoryview(partial), np.float64, 1, PLANES_AT + PLANES[-1].offset)[:] = 0.5

    def until_done(step: Any) -> None:
        while True:
            try:
                step(Dying(memory, adder_for(Order.EXACT, 5), chance))
                return
            except Killed:
                continue

    def add(number: int, update: Pairs) -> None:
        payload = memoryview(written(update, Party("host", "1")))
        until_done(functools.partial(Accumulator.add, number=number, update=payload, first=0))

    number = 1
    if not first:
        add(number, updates[3])
        number += 1
    merging = functools.partial(Accumulator.add, number=number, update=memoryview(partial), first=PLANES_AT, parties=3)
    if spoilt:
        with pytest.raises(UnfitError):
            until_done(merging)
        assert not half_in(memoryview(memory), number)
        for update in updates[:3]:
            add(number, update)
            number += 1
    else:
        until_done(merging)
        number += 1
    for update in updates[3:] if first else updates[4:]:
        add(number, update)
        number += 1
    until_done(Accumulator.finish)

    found = pairs_in(memoryview(memory)[PLANES_AT:], SHAPES)
    assert bits(found) == bits(summed(updates, Order.EXACT))


def test_only_exact_sums_are_merged() -> None:
    partial = unfinished(masked(SHAPES, 2, 1), 4)
    for order in (Order.RANK, Order.ARRIVAL):
        memory = bytearray(accumulator_bytes(order, planes_bytes(SHAPES)))
        sums = Accumulator(memoryview(memory), PLANES, adder_for(order, 4))
        with pytest.raises(ValueError, match="only exact"):
            sums.add(1, memoryview(partial), PLANES_AT, 2)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.booleans())
def test_a_last_update_that_is_added_in_pieces_elsewhere_leaves_the_bits_of_adding_it_though_whoever_does_it_dies(
    seed: int, of_a_site: bool
) -> None:
    chance, updates, length = random.Random(seed), masked(SHAPES, 5, seed), planes_bytes(SHAPES)
    memory = unfinished(updates[:2] if of_a_site else updates[:4], 5)
    before = bytes(memory)
    last = memoryview(unfinished(updates[2:], 5) if of_a_site else written(updates[4], Party("host", "1")))
    total = bytearray(b"\xa5" * len(memory))
    total[:MARK_BYTES] = bytes(MARK_BYTES)

    def add(start: int, end: int) -> None:
        """By a new process, which knows nothing but what lies there."""
        sums, into = (Accumulator(memoryview(each), PLANES, adder_for(Order.EXACT, 5)) for each in (memory, total))
        first, parties = (PLANES_AT, 3) if of_a_site else (0, 0)
        sums.add_last(into, last, first, range(start, end), parties)

    ends = sorted({0, length, *(chance.randrange(length) for _ in range(3))}, reverse=True)
    for end, start in itertools.pairwise(ends):
        # some of it is done by one that dies, perhaps of an update that has other bytes then
        add(chance.randrange(start, end), end)
        add(start, end)
    into = Accumulator(memoryview(total), PLANES, adder_for(Order.EXACT, 5))
    into.be_finished()
    into.finish()

    assert bits(pairs_in(memoryview(total)[PLANES_AT:], SHAPES)) == bits(summed(updates, Order.EXACT))
    assert bytes(memory) == before


def test_a_last_update_that_is_unfit_leaves_the_sum_as_it_was() -> None:
    updates = masked(SHAPES, 3, 2)
    updates[2][0][0][0] = np.nan
    memory, total = unfinished(updates[:2], 3), bytearray(accumulator_bytes(Order.EXACT, planes_bytes(SHAPES)))
    before = bytes(memory)
    sums, into = (Accumulator(memoryview(each), PLANES, adder_for(Order.EXACT, 3)) for each in (memory, total))
    last = memoryview(written(updates[2], Party("host", "1")))

    with pytest.raises(UnfitError):
        sums.add_last(into, last, 0, range(planes_bytes(SHAPES)))
    assert bytes(memory) == before
    sums.finish()
    found = pairs_in(memoryview(memory)[PLANES_AT:], SHAPES)
    assert bits(found) == bits(summed(updates, Order.EXACT, bad=frozenset({2})))


@pytest.mark.parametrize("order", [Order.RANK, Order.ARRIVAL])
def test_only_to_an_exact_sum_an_update_is_added_while_it_comes(order: Order) -> None:
    memory = bytearray(accumulator_bytes(order, planes_bytes(SHAPES)))
    sums = Accumulator(memoryview(memory), PLANES, adder_for(order, 2))
    with pytest.raises(ValueError, match="only to an exact sum"):
        sums.add_last(sums, memoryview(b""), 0, range(1))


def test_a_last_update_is_not_added_to_a_sum_in_which_others_are_not_whole() -> None:
    memory = bytearray(accumulator_bytes(Order.EXACT, planes_bytes(SHAPES)))
    sums = Accumulator(memoryview(memory), PLANES, adder_for(Order.EXACT, 2))
    update = memoryview(written(masked(SHAPES, 1, 0)[0], Party("host", "1")))
    with pytest.raises(ValueError, match="not to be added to"):
        sums.add_last(sums, update, 0, range(1))
    sums.add(1, update, 0)
    sums.finish()
    with pytest.raises(ValueError, match="not to be added to"):
        sums.add_last(sums, update, 0, range(1))


def test_an_update_out_of_turn_is_refused() -> None:
    memory = bytearray(accumulator_bytes(Order.EXACT, planes_bytes(SHAPES)))
    sums = Accumulator(memoryview(memory), PLANES, adder_for(Order.EXACT, 3))
    payload = memoryview(written(masked(SHAPES, 1, 0)[0], Party("host", "1")))

    sums.add(1, payload, 0)
    for number in (3, 0):
        with pytest.raises(ValueError, match="not next"):
            sums.add(number, payload, 0)


def test_planes_beyond_the_slot_are_refused() -> None:
    with pytest.raises(ValueError, match="do not lie"):
        Accumulator(memoryview(bytearray(PLANES_AT + 8)), PLANES, adder_for(Order.RANK, 2))
