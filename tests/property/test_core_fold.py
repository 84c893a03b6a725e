"""Every event in every state of a sum: each party counts once, whatever comes when."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrdma_fate.core.fold import Fold, FoldError, Order, fraction_bits, most_whole

STEPS = ("arrived", "begin", "added", "refused", "left_out", "give_up")


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.sampled_from(Order), st.integers(1, 6))
def test_each_party_counts_once_and_only_steps_that_are_any_are_taken(seed: int, order: Order, parties: int) -> None:
    chance = random.Random(seed)
    fold = Fold(parties, order)
    here: set[int] = set()
    adding: int | None = None
    # what somebody else has added before, by rank the first ones
    inside = chance.sample(range(parties), chance.randint(0, parties))
    inside = inside if order is not Order.RANK else list(range(len(inside)))
    for party in inside:
        fold.was_added(party, 1.0)
        with pytest.raises(FoldError):
            fold.was_added(party, 1.0)
    out: list[int] = []
    given_up = False
    for _ in range(60):
        step = chance.choices(STEPS, weights=(6, 6, 6, 1, 1, 0.3))[0]
        party = chance.randrange(parties)
        closed = adding is None and (given_up or len(inside) + len(out) == parties)
        assert fold.closed == closed
        if order is Order.RANK:
            may_begin = adding is None and not given_up and len(inside) in here
        else:
            may_begin = adding is None and not given_up and bool(here)
        assert (fold.next_up is not None) == may_begin
        if step == "arrived":
            if party in here or party in inside or party in out or party == adding:
                with pytest.raises(FoldError):
                    fold.arrived(party)
            else:
                fold.arrived(party)
                here.add(party)
        elif step == "begin":
            if not may_begin:
                with pytest.raises(FoldError):
                    fold.begin()
            else:
                adding = fold.begin()
                here.remove(adding)
                assert order is not Order.RANK or adding == len(inside)
        elif step == "give_up":
            fold.give_up("a reason")
            given_up = True
        elif adding is None or (step == "left_out" and order is Order.RANK):
            with pytest.raises(FoldError):
                fold.added(1.0) if step == "added" else getattr(fold, step)("a reason")
        elif step == "added":
            fold.added(1.0)
            inside.append(adding)
            adding = None
        elif step == "left_out":
            fold.left_out("of one")
            out.append(adding)
            adding = None
        else:
            fold.refused("a reason")
            here.add(adding)
            adding, given_up = None, True
        assert fold.parties_in == tuple(sorted(inside))
        assert fold.adding == adding
        assert set(fold.awaited) == set(range(parties)) - here - set(inside) - set(out) - {adding}
        assert bool(fold.reason) == (given_up or bool(out))
        assert fold.whole == (len(inside) == parties)
        assert fold.weight() == (float(len(inside)) if inside else None)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_weights_are_added_in_the_order_of_the_ranks_whoever_came_first(
    weights: list[float], chance: random.Random
) -> None:
    fold, order = Fold(len(weights), Order.EXACT), list(range(len(weights)))
    chance.shuffle(order)
    for party in order:
        fold.arrived(party)
        fold.begin()
        fold.added(weights[party])

    expected = 0.0
    for weight in weights:
        expected += weight
    assert fold.weight() == expected


def test_a_weight_goes_with_others_that_have_one_too() -> None:
    fold = Fold(3, Order.EXACT)
    assert fold.objection(None) == fold.objection(0.5) == ""
    fold.arrived(1)
    fold.begin()
    fold.added(0.5)

    assert fold.objection(0.0) == ""
    assert "no weight" in fold.objection(None)


@given(st.integers(1, 10_000))
def test_a_fraction_below_the_number_of_parties_and_all_whole_numbers_fit(parties: int) -> None:
    assert parties * 2 ** fraction_bits(parties) <= 2**62
    assert parties * most_whole(parties) <= 2**53
    assert fraction_bits(parties) == 52 or parties > 1024


def test_of_many_that_are_left_out_the_first_reasons_are_told_and_how_many_more() -> None:
    fold = Fold(200, Order.EXACT)
    for party in range(200):
        fold.arrived(party)
        fold.begin()
        fold.left_out(f"host:{party}: none")

    assert fold.closed
    assert not fold.parties_in
    assert fold.reason.startswith("host:0: none; host:1: none; ")
    assert fold.reason.endswith("; and 196 more")


def test_the_sum_of_some_is_not_left_out() -> None:
    fold = Fold(3, Order.EXACT)
    fold.arrived_together([0, 1])
    fold.begin()
    with pytest.raises(FoldError):
        fold.left_out("a reason")
    assert fold.adding == 0


def test_a_sum_of_nobody_is_none() -> None:
    with pytest.raises(ValueError, match="0 parties"):
        Fold(0, Order.RANK)


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(2, 7))
def test_parties_that_come_together_count_once_each_and_one_that_is_refused_leaves_them_awaited(
    seed: int, parties: int
) -> None:
    chance = random.Random(seed)
    fold = Fold(parties, Order.EXACT)
    inside: set[int] = set()
    while len(inside) < parties:
        some = chance.sample(range(parties), chance.randint(1, parties))
        if inside & set(some):
            before = fold.awaited
            with pytest.raises(FoldError):
                fold.arrived_together(some)
            assert fold.awaited == before
            some = [party for party in some if party not in inside]
            if not some:
                continue
        additions = fold.additions
        fold.arrived_together(some)
        with pytest.raises(FoldError):
            fold.arrived(some[-1])
        assert fold.begin() == some[0]
        assert fold.together(some[0]) == tuple(some)
        if chance.random() < 0.4:
            fold.refused_together()
            assert set(some) <= set(fold.awaited)
            assert (fold.additions, fold.reason) == (additions, "")
        else:
            fold.added_together(dict.fromkeys(some, 1.0))
            inside |= set(some)
            assert fold.additions == additions + 1
        assert fold.parties_in == tuple(sorted(inside))
        assert fold.weight() == (float(len(inside)) if inside else None)
    assert fold.closed
    assert fold.whole


def test_parties_do_not_come_together_twice_nor_where_the_ranks_say_who_is_next() -> None:
    for order, some in ((Order.EXACT, [0, 0]), (Order.EXACT, []), (Order.RANK, [0, 1])):
        with pytest.raises(FoldError):
            Fold(3, order).arrived_together(some)


def test_a_sum_of_some_is_in_with_the_weights_of_just_these() -> None:
    fold = Fold(3, Order.EXACT)
    fold.arrived_together([0, 1])
    fold.begin()
    with pytest.raises(FoldError):
        fold.added_together({0: 1.0})
