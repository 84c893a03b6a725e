"""A sum of the parties' updates as it grows: who is in, what is being added, what is next. It adds nothing itself.

Each party counts exactly once:

1. A party is awaited until its update is here (`arrived`).
2. What is here waits until it is its turn: at once, or in the order of the ranks (`next_up`).
3. One update at a time is being added (`begin`). When that is done the party is in (`added`); one that was not added,
   for it is not as it should be, leaves the sum untouched (`refused`, `left_out`).
4. The sum is closed when all parties are in, or left out. It is also closed when it is given up (`give_up`, and by
   `refused`): what is being added is finished, nothing else is begun. Whoever asked for the sum gets those who are not
   in one by one.

What is in never gets out, so a sum that was given up is still the sum of those who are in.

Several parties may come as one, the sum of a site (`arrived_together`): it is added as one update is, and counts each
of them. One that is not as it should be (`refused_together`) leaves the sum untouched, and its parties are awaited
again, each alone: nothing is given up for it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_MOST_REASONS = 4
"""That are told, of parties that are left out: they go into one answer, and one line of a log."""

_NOBODY: Mapping[int, float | None] = MappingProxyType({})


class Order(str, enum.Enum):
    """In what order updates are added.

    Attributes:
        EXACT: as they come; in numbers whose sum is the same in every order.
        RANK: as FATE adds, by rank.
        ARRIVAL: as they come, in float64, with what each addition rounds away kept besides.
    """

    EXACT = "exact"
    RANK = "rank"
    ARRIVAL = "arrival"


class PartyState(enum.Enum):
    """Where the update of a party is."""

    AWAITED = enum.auto()
    HERE = enum.auto()
    BEING_ADDED = enum.auto()
    IN = enum.auto()
    LEFT_OUT = enum.auto()


class FoldError(Exception):
    """A step that is none in this state: a mistake of whoever drives the sum."""


class Fold:
    """One sum. Parties are numbers, in the order of the ranks.

    Attributes:
        order: in what order it adds.
    """

    def __init__(self, parties: int, order: Order) -> None:
        """
        Args:
            parties: how many belong to it, at least one.
            order: in what order it adds.

        Raises:
            ValueError: there are no parties.
        """
        if parties < 1:
            raise ValueError(f"a sum of {parties} parties")
        self.order = order
        self._given_up = ""
        self._left_out: list[str] = []
        self._states = [PartyState.AWAITED] * parties
        self._weights: list[float | None] = [None] * parties
        self._here: list[int] = []
        self._adding: int | None = None
        self._together: dict[int, tuple[int, ...]] = {}
        self._additions = 0

    @property
    def parties_in(self) -> tuple[int, ...]:
        """Who is in, by rank."""
        return self._those(PartyState.IN)

    @property
    def awaited(self) -> tuple[int, ...]:
        """Whose update is not here, by rank."""
        return self._those(PartyState.AWAITED)

    @property
    def adding(self) -> int | None:
        """Who is being added."""
        return self._adding

    @property
    def additions(self) -> int:
        """How many updates, and sums of sites, were added."""
        return self._additions

    @property
    def closed(self) -> bool:
        """Whether nothing is being added and nothing will be."""
        done = (PartyState.IN, PartyState.LEFT_OUT)
        return self._adding is None and (bool(self._given_up) or all(state in done for state in self._states))

    @property
    def reason(self) -> str:
        """Why not all are in it, where it was given up or some were left out; else empty."""
        if len(self._left_out) > _MOST_REASONS:
            told = [*self._left_out[:_MOST_REASONS], f"and {len(self._left_out) - _MOST_REASONS} more"]
        else:
            told = self._left_out
        return "; ".join([*told, *([self._given_up] if self._given_up else [])])

    @property
    def whole(self) -> bool:
        """Whether every party is in."""
        return all(state is PartyState.IN for state in self._states)

    @property
    def next_up(self) -> int | None:
        """Who would be added now; None where nobody is, or something is being added."""
        if self._adding is not None or self._given_up or not self._here:
            return None
        if self.order is Order.RANK:
            first = len(self.parties_in)
            return first if self._states[first] is PartyState.HERE else None
        return self._here[0]

    def weight(self, also: Mapping[int, float | None] = _NOBODY) -> float | None:
        """The sum of the weights of those who are in, added in the order of the ranks as FATE does; None: without.

        Args:
            also: weights of others that are added as well, by their numbers.
        """
        total: float | None = None
        for party in sorted((*self.parties_in, *also)):
            weight = also.get(party, self._weights[party])
            if weight is not None:
                total = (0.0 if total is None else total) + weight
        return total

    def objection(self, weight: float | None) -> str:
        """Why a weight does not go with those that are in, or empty: all parties have one, or none."""
        others = [self._weights[other] for other in self.parties_in]
        if not others or (others[0] is None) == (weight is None):
            return ""
        return "it has no weight, others have" if weight is None else "it has a weight, others have none"

    def was_added(self, party: int, weight: float | None) -> None:
        """It is in already, as whoever drove the sum before has written down.

        Raises:
            FoldError: it was here before.
        """
        self.were_added({party: weight})

    def were_added(self, weights: Mapping[int, float | None]) -> None:
        """These are in already, by one addition.

        Args:
            weights: by party.

        Raises:
            FoldError: one was here before.
        """
        for party in weights:
            self._must_be(party, PartyState.AWAITED)
        for party, weight in weights.items():
            self._states[party] = PartyState.IN
            self._weights[party] = weight
        self._additions += 1

    def arrived(self, party: int) -> None:
        """The update of a party is here.

        Raises:
            FoldError: it was here before.
        """
        self._must_be(party, PartyState.AWAITED)
        self._states[party] = PartyState.HERE
        self._here.append(party)

    def arrived_together(self, parties: Sequence[int]) -> None:
        """The sum of some parties is here; it is known by the first of them.

        Raises:
            FoldError: there are none, one is named twice or was here before, or updates are added by rank.
        """
        if not parties or len(set(parties)) != len(parties) or self.order is Order.RANK:
            raise FoldError(f"a sum of the parties {parties}")
        for party in parties:
            self._must_be(party, PartyState.AWAITED)
        for party in parties:
            self._states[party] = PartyState.HERE
        self._together[parties[0]] = tuple(parties)
        self._here.append(parties[0])

    def together(self, party: int) -> tuple[int, ...]:
        """Whose sum is known by this party; empty where its update came alone."""
        return self._together.get(party, ())

    def begin(self) -> int:
        """Begin to add who is next, and say who that is; of a sum of some, by whom it is known.

        Raises:
            FoldError: nobody is.
        """
        party = self.next_up
        if party is None:
            raise FoldError("nobody is next")
        self._here.remove(party)
        for each in self._together.get(party, (party,)):
            self._states[each] = PartyState.BEING_ADDED
        self._adding = party
        return party

    def added(self, weight: float | None) -> None:
        """What was being added is in, with its weight.

        Raises:
            FoldError: nothing was being added.
        """
        self.added_together({self._adding: weight} if self._adding is not None else {})

    def added_together(self, weights: Mapping[int, float | None]) -> None:
        """The sum that was being added is in, with the weights of its parties.

        Raises:
            FoldError: nothing was being added, or these are not its parties.
        """
        party = self._take_adding()
        if set(weights) != set(self._together.get(party, (party,))):
            raise FoldError(f"weights of {sorted(weights)}")
        self._together.pop(party, None)
        for each, weight in weights.items():
            self._states[each] = PartyState.IN
            self._weights[each] = weight
        self._additions += 1

    def refused_together(self) -> None:
        """The sum that was being added is not in; its parties are awaited again, each alone.

        Raises:
            FoldError: nothing was being added, or that was an update.
        """
        party = self._take_adding()
        for each in self._together.pop(party, ()):
            self._states[each] = PartyState.AWAITED

    def refused(self, reason: str) -> None:
        """What was being added is not in, and the sum is as it was before; it is given up.

        Raises:
            FoldError: nothing was being added.
        """
        party = self._take_adding()
        self._states[party] = PartyState.HERE
        self._here.append(party)
        self.give_up(reason)

    def left_out(self, reason: str) -> None:
        """What was being added is not in, and will not be; the sum is as it was before, and goes on without it.

        Raises:
            FoldError: nothing was being added, that was the sum of some, or updates are added by rank: there, whoever
                comes behind it would be added before it.
        """
        if self.order is Order.RANK or self._adding in self._together:
            raise FoldError("it cannot be left out")
        self._states[self._take_adding()] = PartyState.LEFT_OUT
        self._left_out.append(reason)

    def give_up(self, reason: str) -> None:
        """Add nobody else. Only the first reason counts."""
        self._given_up = self._given_up or reason or "it was given up"

    def _take_adding(self) -> int:
        if self._adding is None:
            raise FoldError("nothing is being added")
        party, self._adding = self._adding, None
        return party

    def _must_be(self, party: int, state: PartyState) -> None:
        if self._states[party] is not state:
            raise FoldError(f"party {party} is {self._states[party].name}, not {state.name}")

    def _those(self, state: PartyState) -> tuple[int, ...]:
        return tuple(party for party, its in enumerate(self._states) if its is state)


def fraction_bits(parties: int) -> int:
    """Bits behind the point with which fractions of so many parties are added as 64-bit integers.

    A masked fraction is the sum of one fraction of the party's own and one for each other party, each below 1; so is
    that of the total. With 62 - log2(N) bits a number below N stays below 2**62 and fits. 52 are what a float64 below
    1 has, and up to 1,024 parties can be had.
    """
    return min(52, 62 - max(parties - 1, 0).bit_length())


def most_whole(parties: int) -> int:
    """How large a whole number of one party may be: the sums of all stay within 2**53, where float64 is exact."""
    return (2**53) // max(parties, 1)
