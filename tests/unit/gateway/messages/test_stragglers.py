"""The last message of a round is waited for once, whatever its task repeats."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.gateway.messages.stragglers import Stragglers
from fedrdma_fate.gateway.messages.tolerances import Round, Tolerances
from fedrdma_fate.wire.frames import MessageKey, Party

KEYS = [MessageKey("s", "n", "t", Party("host", str(number)), Party("arbiter", "1")) for number in range(2)]


def begin(tolerances: Tolerances, seconds: float) -> None:
    """A task says that it will get both, of which the first is here already, and took so long."""
    tolerances.begin(Round(KEYS, 0.1, straggler_wait=1.0))
    tolerances.came(KEYS[0], seconds)


def test_a_task_that_says_again_and_again_what_it_will_get_makes_one_wait() -> None:
    async def scenario() -> None:
        tolerances, late = Tolerances(), list[MessageKey]()
        stragglers = Stragglers(tolerances, late.append)
        for _ in range(1000):
            begin(tolerances, 3600.0)
        assert len(stragglers) == 1
        begin(tolerances, 0.0)
        while not late:
            await asyncio.sleep(0)
        assert late == [KEYS[1]]
        assert tolerances.is_late(KEYS[1])
        assert len(stragglers) == 0

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_what_was_to_be_waited_before_is_not_the_time_of_a_round_that_begins_anew() -> None:
    async def scenario() -> None:
        tolerances, late = Tolerances(), list[MessageKey]()
        Stragglers(tolerances, late.append)
        begin(tolerances, 0.0)
        begin(tolerances, 3600.0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert late == []

    asyncio.run(scenario())


@pytest.mark.parametrize("came", [False, True])
def test_only_one_that_has_not_come_is_late(came: bool) -> None:
    async def scenario() -> None:
        tolerances, late = Tolerances(), list[MessageKey]()
        stragglers = Stragglers(tolerances, late.append)
        begin(tolerances, 0.0)
        if came:
            tolerances.came(KEYS[1], 1.0)
        while len(stragglers):
            await asyncio.sleep(0)
        assert late == ([] if came else [KEYS[1]])

    asyncio.run(asyncio.wait_for(scenario(), 10))
