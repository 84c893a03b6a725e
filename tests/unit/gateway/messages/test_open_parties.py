"""Who is named in the sessions that parties of a site have joined, kept as they come and go."""

from __future__ import annotations

import random

from fedrdma_fate.gateway.messages.open_parties import Named, OpenParties
from fedrdma_fate.wire.frames import Party

ARBITER = Party("arbiter", "1")
SILOS = [Party("host", str(number)) for number in range(4)]


class Watched:
    """Open parties, and how often they have said that others are named."""

    def __init__(self) -> None:
        self.parties = OpenParties()
        self.parties.on_change = self._note
        self.changes = 0

    def _note(self) -> None:
        self.changes += 1


def test_all_that_are_named_in_any_session_are_until_the_last_such_session_is_left() -> None:
    watched = Watched()
    watched.parties.add("a", ARBITER, frozenset(SILOS[:2]))
    watched.parties.add("b", ARBITER, frozenset(SILOS[1:3]))
    assert watched.parties.others == frozenset(SILOS[:3])
    watched.parties.remove("a", ARBITER)
    assert watched.parties.others == frozenset(SILOS[1:3])
    watched.parties.end("b")
    assert watched.parties.others is None
    assert watched.changes == 4


def test_nothing_is_said_where_the_same_are_named_again() -> None:
    watched = Watched()
    watched.parties.add("a", ARBITER, frozenset(SILOS))
    watched.parties.add("b", ARBITER, frozenset(SILOS[:2]))
    watched.parties.end("b")
    watched.parties.remove("b", ARBITER)
    watched.parties.end("c")
    assert watched.changes == 1


def test_where_a_single_task_does_not_know_who_is_in_its_session_anybody_may_be() -> None:
    watched = Watched()
    watched.parties.add("a", ARBITER, frozenset(SILOS))
    watched.parties.add("b", ARBITER, None)
    assert watched.parties.others is None
    watched.parties.add("b", ARBITER, frozenset(SILOS[:1]))
    assert watched.parties.others == frozenset(SILOS)
    assert watched.changes == 3


def test_what_is_kept_is_what_would_be_found_anew() -> None:
    chance, watched, known = random.Random(1), Watched(), dict[tuple[str, Party], Named]()
    for _ in range(500):
        place = chance.choice("abc"), chance.choice(SILOS)
        if chance.random() < 0.6:
            named = None if chance.random() < 0.1 else frozenset(chance.sample(SILOS, chance.randrange(5)))
            watched.parties.add(*place, named)
            known[place] = named
        elif chance.random() < 0.7:
            watched.parties.remove(*place)
            known.pop(place, None)
        else:
            watched.parties.end(place[0])
            known = {other: named for other, named in known.items() if other[0] != place[0]}
        found = [named for named in known.values() if named is not None]
        everybody = frozenset[Party]().union(*found)
        assert watched.parties.others == (None if len(found) < len(known) or not everybody else everybody)
        assert dict(watched.parties.items()) == known
