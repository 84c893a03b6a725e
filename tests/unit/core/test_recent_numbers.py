"""Numbers that were used lately."""

from __future__ import annotations

import sys

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fedrdma_fate.core.recent_numbers import PAGE_NUMBERS, RecentNumbers


@given(st.lists(st.integers(0, 2000), max_size=200), st.integers(1, 60))
def test_the_last_that_were_added_are_in_and_nothing_that_never_was(numbers: list[int], most: int) -> None:
    recent = RecentNumbers(most)
    for at, number in enumerate(numbers):
        recent.add(number)
        # one that is added again while it is in does not become a later one
        assert set(recent) <= set(numbers[: at + 1])
        assert len(recent) == len(set(recent)) < most + PAGE_NUMBERS
        assert number in recent
    assert all(number in recent for number in recent)


@given(st.integers(0, 2**63), st.integers(1, 5), st.integers(1, 300))
def test_of_a_counter_the_last_ones_are_remembered(first: int, step: int, most: int) -> None:
    recent = RecentNumbers(most)
    numbers = [first + step * each for each in range(4 * PAGE_NUMBERS)]
    for number in numbers:
        recent.add(number)
    assert all(number in recent for number in numbers[-most:])
    assert len(recent) < most + PAGE_NUMBERS


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 600)), max_size=200))
def test_as_long_as_there_are_few_it_is_a_set(steps: list[tuple[bool, int]]) -> None:
    recent, model = RecentNumbers(10_000), set[int]()
    for is_added, number in steps:
        if is_added:
            recent.add(number)
            model.add(number)
        else:
            recent.discard(number)
            model.discard(number)
        assert set(recent) == model
        assert len(recent) == len(model)


def test_numbers_far_apart_do_not_fill_memory() -> None:
    recent = RecentNumbers(100)
    for number in range(1000):
        recent.add(number * 10**12)
    assert len(list(recent.pages())) == len(recent) == 100


def test_a_counter_takes_less_than_two_bytes_a_number() -> None:
    recent = RecentNumbers(16384)
    for number in range(16384):
        recent.add(number)
    pages = vars(recent)["_pages"]
    assert sys.getsizeof(pages) + sum(map(sys.getsizeof, [*pages, *pages.values()])) < 2 * 16384


@pytest.mark.parametrize("most", [0, 1])
def test_the_least_that_can_be_remembered(most: int) -> None:
    recent = RecentNumbers(most)
    for number in (3, 700):
        recent.add(number)
    assert list(recent) == [700][:most]
