"""Whom one asks for whose sum in a tree of sites: each source once, whatever sites say of each other."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.core.sum_tree import MOST_LEVELS, Asked, SumPlace, is_below, plan, way_up

TREE = {
    "a": SumPlace(fan_in=16),
    "p": SumPlace(fan_in=16),
    "l": SumPlace(parent="p", fan_in=16),
    "m": SumPlace(parent="p", fan_in=16),
    "n": SumPlace(parent="m", fan_in=16),
    "z": SumPlace(fan_in=16),
}


def test_who_is_at_the_top_is_asked_for_all_that_is_below_and_who_has_no_parent_for_its_own() -> None:
    sources = {"p": [1, 2], "l": [3], "n": [4], "m": [5, 6], "z": [7, 8]}

    assert plan("a", sources, TREE, is_root=True) == [
        Asked("p", (1, 2, 3, 5, 6, 4), ("p", "l", "m", "n"), 3),
        Asked("z", (7, 8), ("z",), 1),
    ]
    below = {site: its for site, its in sources.items() if is_below("p", site, TREE)}
    assert plan("p", below, TREE, is_root=False) == [Asked("l", (3,), ("l",), 1), Asked("m", (5, 6, 4), ("m", "n"), 2)]
    below = {site: its for site, its in sources.items() if is_below("m", site, TREE)}
    assert plan("m", below, TREE, is_root=False) == [Asked("n", (4,), ("n",), 1)]


@pytest.mark.parametrize(
    "places",
    [
        {**TREE, "p": SumPlace(fan_in=0)},
        {site: place for site, place in TREE.items() if site != "p"},
        {**TREE, "l": SumPlace(parent="nobody", fan_in=16)},
        {**TREE, "l": SumPlace(parent="l", fan_in=16)},
    ],
    ids=["adds none", "not here", "unknown", "itself"],
)
def test_a_parent_that_cannot_add_is_none(places: dict[str, SumPlace]) -> None:
    assert way_up("a", "l", places) == ("l",)
    assert Asked("l", (1, 2), ("l",), 1) in plan("a", {"l": [1, 2], "z": [3, 4]}, places, is_root=True)


def test_sites_that_name_each_other_in_a_ring_are_asked_each_for_its_own() -> None:
    ring = {"p": SumPlace("q", 4), "q": SumPlace("r", 4), "r": SumPlace("p", 4), "l": SumPlace("p", 4)}

    asked = plan("a", {site: [site, site * 2] for site in ring}, ring, is_root=True)

    assert {(each.site, each.sites) for each in asked} == {(site, (site,)) for site in ring}
    # of two that name each other each has the other below it, and asks it for its own alone
    two = {"p": SumPlace("l", 4), "l": SumPlace("p", 4)}
    assert is_below("p", "l", two)
    assert is_below("l", "p", two)
    assert plan("p", {"l": [1, 2]}, two, is_root=False) == [Asked("l", (1, 2), ("l",), 1)]


def test_this_site_is_nobodys_parent_on_the_way_to_itself() -> None:
    places = {"l": SumPlace("a", 4), "m": SumPlace("l", 4)}

    assert plan("a", {"l": [1], "m": [2]}, places, is_root=True) == [Asked("l", (1, 2), ("l", "m"), 2)]


def test_of_more_sites_than_one_adds_at_a_time_several_sums_are_asked_for() -> None:
    places = {"p": SumPlace(fan_in=2), **{f"l{number}": SumPlace("p", 16) for number in range(5)}}
    sources = {"p": [0], **{f"l{number}": [10 * number, 10 * number + 1] for number in range(5)}}

    asked = plan("a", sources, places, is_root=True)

    assert [(each.site, each.sites) for each in asked] == [
        ("p", ("p", "l0", "l1")),
        ("p", ("l2", "l3")),
        # one by itself would only be passed on
        ("l4", ("l4",)),
    ]


def test_who_is_deeper_than_a_tree_may_be_has_no_parent() -> None:
    chain = {str(level): SumPlace(str(level + 1), 4) for level in range(MOST_LEVELS)}
    places = {**chain, str(MOST_LEVELS): SumPlace(fan_in=4)}

    assert len(way_up("a", "1", places)) == MOST_LEVELS
    assert way_up("a", "0", places) == ("0",)


_sites = st.sampled_from("abcdefgh")


@given(
    st.dictionaries(_sites, st.builds(SumPlace, st.one_of(st.just(""), _sites), st.integers(0, 3))),
    st.dictionaries(_sites, st.lists(st.integers(), max_size=3)),
)
def test_whatever_sites_say_each_source_is_asked_for_once_and_less_with_each_step_down(
    places: dict[str, SumPlace], counts: dict[str, list[int]]
) -> None:
    sources = {site: [(site, number) for number in range(len(its))] for site, its in counts.items() if site != "a"}
    wanted = [source for site, its in sources.items() if site in places for source in its]
    asked = plan("a", sources, places, is_root=True)
    assert Counter(source for each in asked for source in each.sources) == Counter(wanted)

    steps = [(each.site, each.sources) for each in asked]
    for here, ordered in steps:
        below = {site: [each for each in ordered if each[0] == site] for site in {site for site, _ in ordered}}
        below = {site: its for site, its in below.items() if site != here and is_below(here, site, places)}
        further = plan(here, below, places, is_root=False)
        # all of those below can be asked for, and nobody twice
        assert Counter(source for each in further for source in each.sources) == Counter(
            source for its in below.values() for source in its
        )
        # nothing goes round: each is asked for at most as often as there are levels
        steps.extend((each.site, each.sources) for each in further)
        assert len(steps) <= MOST_LEVELS * len(wanted) + 1
