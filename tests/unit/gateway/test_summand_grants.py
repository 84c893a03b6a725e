"""Updates of a sum come two at a time of each site, the next when one has been added."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fedrdma_fate.gateway.summand_grants import MOST_COMING, SummandGrants
from fedrdma_fate.wire.frames import MessageKey, Party

KEYS = [MessageKey("s", "masked", "t", Party("host", str(number)), Party("arbiter", "1")) for number in range(6)]
OTHER = MessageKey("s", "other", "t", Party("host", "1"), Party("arbiter", "1"))
Scenario = Callable[[SummandGrants], Coroutine[Any, Any, None]]


def run(scenario: Scenario) -> None:
    asyncio.run(scenario(SummandGrants()))


class Asking:
    """Requests of one site for slots, and whose turn it is."""

    def __init__(self, grants: SummandGrants, site: str = "b") -> None:
        self._grants = grants
        self._site = site
        self.may_come: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def ask(self, *numbers: int) -> None:
        for number in numbers:
            self.tasks[number] = asyncio.create_task(self._ask(number))
        await settle()

    async def _ask(self, number: int) -> None:
        await self._grants.turn(self._site, KEYS[number])
        self.may_come.append(number)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_of_a_site_two_come_at_a_time_and_the_next_when_one_is_added() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected, asking = grants.expect(KEYS), Asking(grants)
        await asking.ask(*range(5))
        assert asking.may_come == [0, 1]
        expected.added(KEYS[1])
        await settle()
        assert asking.may_come == [0, 1, 2]
        expected.added(KEYS[0])
        await settle()
        assert asking.may_come == [0, 1, 2, 3]
        expected.close()
        await settle()

    run(scenario)


def test_each_site_has_its_own_and_what_is_in_no_sum_is_not_held() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected = grants.expect(KEYS)
        one, another = Asking(grants, "b"), Asking(grants, "c")
        await one.ask(0, 1)
        await another.ask(2, 3)
        assert (one.may_come, another.may_come) == ([0, 1], [2, 3])
        assert grants.may_come("b", OTHER)
        assert not grants.may_come("b", KEYS[4])
        expected.close()

    run(scenario)


def test_who_asks_again_for_what_may_come_is_not_held_nor_counted_twice() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected = grants.expect(KEYS)
        assert all(grants.may_come("b", KEYS[0]) for _ in range(3 * MOST_COMING))
        assert grants.may_come("b", KEYS[1])
        expected.close()

    run(scenario)


def test_what_comes_in_a_slot_that_was_granted_ahead_counts_as_coming() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected, asking = grants.expect(KEYS), Asking(grants)
        grants.begins("b", OTHER)
        grants.begins("b", KEYS[5])
        await asking.ask(0, 1)
        assert asking.may_come == [0]
        expected.added(KEYS[5])
        await settle()
        assert asking.may_come == [0, 1]
        expected.close()

    run(scenario)


def test_a_request_that_is_withdrawn_leaves_its_turn_to_the_next() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected, asking = grants.expect(KEYS), Asking(grants)
        await asking.ask(*range(4))
        asking.tasks[2].cancel()
        await settle()
        expected.added(KEYS[0])
        await settle()
        assert asking.may_come == [0, 1, 3]
        expected.close()

    run(scenario)


@pytest.mark.parametrize("asks_again", [False, True])
def test_when_the_sum_takes_no_more_all_may_come(asks_again: bool) -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected, asking = grants.expect(KEYS), Asking(grants)
        await asking.ask(*range(4))
        if asks_again:
            await asking.ask(3)
        expected.close()
        expected.close()
        await asking.ask(4, 5)
        assert sorted(set(asking.may_come)) == list(range(6))

    run(scenario)


def test_of_two_sums_of_one_message_the_first_holds_it_and_the_end_of_the_other_changes_nothing() -> None:
    async def scenario(grants: SummandGrants) -> None:
        first, second = grants.expect(KEYS), grants.expect(KEYS[:2])
        asking = Asking(grants)
        second.close()
        await asking.ask(0, 1, 2)
        assert asking.may_come == [0, 1]
        first.close()
        await settle()
        assert asking.may_come == [0, 1, 2]

    run(scenario)


def test_a_site_that_names_the_updates_of_another_one_holds_none_of_them_up() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected, liar, honest = grants.expect(KEYS), Asking(grants, "liar"), Asking(grants, "b")
        for key in KEYS:
            grants.begins("liar", key)
        await liar.ask(0, 1)
        await honest.ask(*range(6))
        for number in range(6):
            assert honest.may_come == list(range(min(6, number + 2)))
            expected.added(KEYS[number])
            await settle()
        expected.close()

    run(scenario)


def test_what_is_in_the_sum_and_comes_once_more_takes_no_turn() -> None:
    async def scenario(grants: SummandGrants) -> None:
        expected, asking = grants.expect(KEYS), Asking(grants)
        await asking.ask(0, 1)
        expected.added(KEYS[0])
        expected.added(KEYS[1])
        await asking.ask(0, 1)
        grants.begins("b", KEYS[0])
        await asking.ask(2, 3)
        assert asking.may_come == [0, 1, 0, 1, 2, 3]
        expected.close()

    run(scenario)
