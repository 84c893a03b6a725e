"""What may be missing of messages, and what of some of them together."""

from __future__ import annotations

import random

import pytest

from fedrdma_fate.gateway.messages.tolerances import MOST_TOLERANCES, JointBudget, Round, Tolerances
from fedrdma_fate.wire.frames import MessageKey, Party

ARBITER = Party("arbiter", "9")
WHOLE, TOTAL = 64, 64 + 1000


def key(source: str = "1", *, session: str = "s", name: str = "m") -> MessageKey:
    return MessageKey(session, name, "t", Party("host", source), ARBITER)


def test_nothing_may_be_missing_of_what_nobody_has_named() -> None:
    tolerances = Tolerances()
    tolerances.begin(Round([key("1")], 0.1))

    assert (tolerances.share(key("1")), tolerances.share(key("2"))) == (0.1, 0.0)
    assert tolerances.spend(key("1"), WHOLE, TOTAL, ((64, 100),)), "its own share is looked at elsewhere"


@pytest.mark.parametrize("ends", ["got", "left", "session over", "too many"])
def test_what_is_over_is_forgotten(ends: str) -> None:
    tolerances = Tolerances()
    tolerances.begin(Round([key()], 0.1, jointly=True))
    tolerances.begin(Round([key(session="another")], 0.2))
    if ends == "got":
        tolerances.discard(key())
    elif ends == "left":
        tolerances.leave("s", ARBITER)
    elif ends == "session over":
        tolerances.end("s")
    else:
        for number in range(MOST_TOLERANCES - 1):
            tolerances.begin(Round([key(name=str(number))], 0.1))

    assert tolerances.share(key()) == 0.0
    assert not tolerances.spend(key(), WHOLE, TOTAL, ((64, 65),)), "though a link has asked for the share before"
    assert tolerances.spend(key(), WHOLE, TOTAL, ())
    assert tolerances.share(key(session="another")) == 0.2


def test_what_is_missing_of_one_may_be_of_the_others_for_nothing() -> None:
    budget = JointBudget(0.1)

    assert budget.spend(WHOLE, TOTAL, ((64, 124), (200, 240)))
    assert budget.spend(WHOLE, TOTAL, ((64, 124),))
    assert budget.spend(WHOLE, TOTAL, ((80, 100), (210, 220)))
    assert not budget.spend(WHOLE, TOTAL, ((64, 124), (300, 301)))
    assert budget.spend(WHOLE, TOTAL, ((200, 240),)), "and what was refused is not spent"


def test_all_together_no_more_is_missing_than_the_share() -> None:
    budget = JointBudget(0.1)

    assert budget.spend(WHOLE, TOTAL, ((64, 114),))
    assert budget.spend(WHOLE, TOTAL, ((500, 550),))
    assert not budget.spend(WHOLE, TOTAL, ((700, 701),))


def test_places_are_counted_from_the_end_where_what_has_to_be_whole_differs() -> None:
    budget = JointBudget(0.1)

    assert budget.spend(WHOLE, TOTAL, ((64, 164),))
    assert budget.spend(WHOLE + 64, TOTAL + 64, ((128, 228),))
    assert not budget.spend(WHOLE + 64, TOTAL + 64, ((64 + 228, 293),))


def test_payloads_of_other_lengths_have_nothing_in_common() -> None:
    budget = JointBudget(0.1)

    assert budget.spend(0, 1000, ((0, 50),))
    assert budget.spend(0, 2000, ((0, 100),))
    assert not budget.spend(0, 3000, ((0, 3),))


def test_of_a_payload_that_has_to_be_whole_nothing_may_be_missing() -> None:
    assert JointBudget(0.2).spend(10, 10, ())
    assert not JointBudget(0.2).spend(10, 10, ((0, 1),))


@pytest.mark.parametrize("seed", range(20))
def test_the_union_of_what_was_spent_never_exceeds_the_share(seed: int) -> None:
    chance = random.Random(seed)
    budget, missing = JointBudget(0.2), set[int]()
    for _ in range(50):
        first = chance.randrange(1000)
        ranges = tuple((at, at + 7) for at in range(first, min(990, first + 40), 20))
        wanted = {byte for start, end in ranges for byte in range(start, end)}
        allowed = len(missing | wanted) <= 200
        assert budget.spend(0, 1000, ranges) == (allowed or wanted <= missing)
        if allowed:
            missing |= wanted


# --- the last of a round ---


class Waited(Tolerances):
    """Notes for which message how long is waited."""

    def __init__(self, count: int, straggler_wait: float | None) -> None:
        super().__init__()
        self.waits: list[tuple[MessageKey, float]] = []
        self.on_last = lambda key, seconds: self.waits.append((key, seconds))
        self.keys = [key(str(number)) for number in range(count)]
        self.begin(Round(self.keys, 0.1, straggler_wait=straggler_wait))


def test_when_all_others_are_there_the_last_is_waited_for_a_share_of_their_median_time() -> None:
    tolerances = Waited(4, 0.5)
    for number, seconds in ((0, 1.0), (3, 2.0), (1, 10.0)):
        assert tolerances.waits == []
        tolerances.came(tolerances.keys[number], seconds)

    assert tolerances.waits == [(tolerances.keys[2], 1.0)]
    assert not tolerances.is_late(tolerances.keys[2]), "before that time is over"
    assert tolerances.note_late(tolerances.keys[2])
    assert [tolerances.is_late(each) for each in tolerances.keys] == [False, False, True, False]


def test_without_straggler_wait_nobody_is_late() -> None:
    tolerances = Waited(3, None)
    for number in range(2):
        tolerances.came(tolerances.keys[number], 1.0)

    assert tolerances.waits == []


def test_an_only_one_is_waited_for_and_so_are_all_that_are_late_together() -> None:
    tolerances = Waited(1, 0.0)
    assert tolerances.waits == []
    tolerances = Waited(3, 0.0)
    tolerances.came(tolerances.keys[0], 1.0)
    tolerances.came(tolerances.keys[0], 1.0)
    assert tolerances.waits == [], "one that is told of twice is one"


def test_where_nobody_knows_how_long_the_others_took_the_last_is_waited_for() -> None:
    tolerances = Waited(3, 0.0)
    tolerances.came(tolerances.keys[0], None)
    tolerances.came(tolerances.keys[1], None)

    assert tolerances.waits == []


@pytest.mark.parametrize("ends", ["it came", "got", "session over", "too many"])
def test_who_is_not_waited_for_any_more_is_not_late(ends: str) -> None:
    tolerances = Waited(2, 0.0)
    last = tolerances.keys[1]
    tolerances.came(tolerances.keys[0], 1.0)
    if ends == "it came":
        tolerances.came(last, 2.0)
    elif ends == "got":
        tolerances.discard(last)
    elif ends == "session over":
        tolerances.end("s")
    else:
        tolerances.begin(Round([key(name=str(number)) for number in range(MOST_TOLERANCES)], 0.1))

    assert tolerances.waits == [(last, 0.0)]
    assert not tolerances.note_late(last)
    assert not tolerances.is_late(last)


def test_a_round_keeps_nothing_of_messages_that_its_task_names_again() -> None:
    """Else 65,536 requests, each of one party less, would keep the names of eight million messages for each tag."""
    tolerances = Tolerances()
    keys = [key(str(number)) for number in range(8)]
    rounds = [Round(keys[first:], 0.1) for first in range(8)]
    for each in rounds:
        tolerances.begin(each)

    assert [each.awaited for each in rounds] == [(each,) for each in keys]
