"""Requests of one user in one turn of the event loop."""

from __future__ import annotations

import asyncio

from fedrdma_fate.gateway.tasks.turns import Turns


async def turn_of_the_loop() -> None:
    await asyncio.sleep(0)


def test_so_many_requests_are_begun_in_one_turn_and_the_next_in_their_order() -> None:
    async def scenario() -> None:
        turns, begun = Turns(3), list[int]()

        async def ask(number: int) -> None:
            await turns.take()
            begun.append(number)

        asking = [asyncio.create_task(ask(number)) for number in range(10)]
        seen = 0
        for _ in range(20):
            await turn_of_the_loop()
            assert len(begun) - seen <= 3
            seen = len(begun)
        assert begun == list(range(10))
        await asyncio.gather(*asking)

    asyncio.run(scenario())


def test_one_that_counts_for_all_is_the_only_one_of_its_turn() -> None:
    async def scenario() -> None:
        turns, begun = Turns(3), 0

        async def ask() -> None:
            nonlocal begun
            await turns.take(3)
            begun += 1

        asking = [asyncio.create_task(ask()) for _ in range(5)]
        for _ in range(12):
            before = begun
            await turn_of_the_loop()
            assert begun - before <= 1
        await asyncio.gather(*asking)

    asyncio.run(scenario())


def test_who_goes_away_while_it_waits_takes_nobodys_turn() -> None:
    async def scenario() -> None:
        turns = Turns(1)
        waiting = [asyncio.create_task(turns.take()) for _ in range(10)]
        await turn_of_the_loop()
        for each in waiting[1:9]:
            each.cancel()
        await asyncio.wait_for(waiting[9], 5)

    asyncio.run(scenario())
