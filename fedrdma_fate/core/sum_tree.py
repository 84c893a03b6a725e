"""A tree of sites that add updates: whom one asks for whose sum, by what each site says of itself.

A site names its *parent*, to which its sums go. That adds them to its own, and sends one sum on. Who asks for a sum
asks those at the top of the tree, each for what is below it, and each of these asks those right below it. With each
step down a source is nearer, so nothing goes round, whatever sites say of each other.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

MOST_LEVELS = 8
"""Of a tree: with two sites below each that is more than a hundred; who is deeper has no parent. Each level waits for
the one below it."""

LEAST_PARTS = 2
"""One message by itself is no sum."""

_Source = TypeVar("_Source")


@dataclasses.dataclass(frozen=True, slots=True)
class SumPlace:
    """What a site that can be asked for sums says of its place.

    Attributes:
        parent: name of the site that its sums go to; empty: to who asks for them.
        fan_in: sums of other sites that it adds to one of its own; 0: it adds none.
    """

    parent: str = ""
    fan_in: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Asked(Generic[_Source]):
    """One sum that is asked for.

    Attributes:
        site: of whom.
        sources: whose updates.
        sites: of these.
        levels: of the tree that it passes, 1 or more.
    """

    site: str
    sources: tuple[_Source, ...]
    sites: tuple[str, ...]
    levels: int

    @property
    def is_sum(self) -> bool:
        """Whether there is anything to be added."""
        return len(self.sources) >= LEAST_PARTS


def way_up(here: str, site: str, places: Mapping[str, SumPlace]) -> tuple[str, ...]:
    """The sites that the sum of a site passes on its way to this one, itself the first.

    A parent that cannot be asked, or adds nobody's sums, is none. Sites that name each other in a ring have none.

    Args:
        here: this site.
        site: another one.
        places: of those that can be asked for sums.
    """
    way = [site]
    while (place := places.get(way[-1])) is not None and place.parent != here:
        above = places.get(place.parent)
        if above is None or not above.fan_in:
            break
        if place.parent in way or len(way) == MOST_LEVELS:
            return (site,)
        way.append(place.parent)
    return tuple(way)


def is_below(here: str, site: str, places: Mapping[str, SumPlace]) -> bool:
    """Whether this site is the parent of another one, or of one above it."""
    top = places.get(way_up(here, site, places)[-1])
    return top is not None and top.parent == here


def plan(
    here: str, sources_of: Mapping[str, Sequence[_Source]], places: Mapping[str, SumPlace], *, is_root: bool
) -> list[Asked[_Source]]:
    """What to ask for, so that each source is asked for once.

    A site that would add more sums of others than it says is asked for several sums.

    Args:
        here: this site.
        sources_of: whose updates are wanted, by their site.
        places: of those that can be asked for sums; what the others have is not asked for.
        is_root: the sums are wanted here, and every site obeys; else only those right below this one do.
    """
    below: dict[str, dict[str, None]] = {}
    tops: dict[str, None] = {}
    for site in sources_of:
        if site in places and sources_of[site]:
            way = way_up(here, site, places)
            tops[way[-1]] = None
            for lower, upper in itertools.pairwise(way):
                below.setdefault(upper, {})[lower] = None
    tree = _Tree(sources_of, places, below, is_root)
    return [asked for top in tops for asked in tree.asked_of(top)]


@dataclasses.dataclass(frozen=True, slots=True)
class _Tree(Generic[_Source]):
    sources_of: Mapping[str, Sequence[_Source]]
    places: Mapping[str, SumPlace]
    below: Mapping[str, Mapping[str, None]]
    skips: bool

    def asked_of(self, site: str) -> Iterator[Asked[_Source]]:
        branches, step = list(self.below.get(site, ())), max(1, self.places[site].fan_in)
        for start in range(0, max(1, len(branches)), step):
            group = branches[start : start + step]
            own = tuple(self.sources_of.get(site, ())) if not start else ()
            if self.skips and not own and len(group) == 1:
                # it would only pass that on
                yield from self.asked_of(group[0])
                continue
            all_below = [each for branch in group for each in self._all(branch, 2)]
            sources = own + tuple(source for each, _ in all_below for source in self.sources_of.get(each, ()))
            sites = ((site,) if own else ()) + tuple(each for each, _ in all_below if self.sources_of.get(each))
            yield Asked(site, sources, sites, max([1, *(level for _, level in all_below)]))

    def _all(self, site: str, level: int) -> Iterator[tuple[str, int]]:
        yield site, level
        for branch in self.below.get(site, ()):
            yield from self._all(branch, level + 1)
