"""Waiting at most so long: results, errors, cancellation, and all of these at once."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.gateway.deadlines import within
from tests.support.twin import run_virtually


class Work:
    """Something that takes a while.

    Attributes:
        cancelled: whether it was, and has ended since.
    """

    def __init__(self) -> None:
        self.cancelled = False

    async def last(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            # an end that takes a while as well
            await asyncio.sleep(1)
            self.cancelled = True
            raise
        return "done"


@pytest.fixture
def work() -> Work:
    return Work()


def test_work_that_ends_in_time_gives_its_result(work: Work) -> None:
    assert run_virtually(within(2, work.last(1))) == "done"


def test_what_work_raises_in_time_is_raised() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_virtually(within(2, fail()))


def test_work_that_takes_too_long_has_ended_when_the_waiter_hears_of_it(work: Work) -> None:
    # the built-in exception, which asyncio's own is not in Python 3.10
    with pytest.raises(TimeoutError, match="not done within 2 s"):
        run_virtually(within(2, work.last(3)))
    assert work.cancelled


def test_work_whose_waiter_is_cancelled_has_ended_when_the_waiter_does(work: Work) -> None:
    async def scenario() -> None:
        waiter = asyncio.create_task(within(10, work.last(10)))
        await asyncio.sleep(1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert work.cancelled

    run_virtually(scenario())


@pytest.mark.parametrize("turns", range(6))
def test_a_waiter_cancelled_just_as_the_work_ends_is_cancelled(turns: int) -> None:
    """However close together: a waiter that took no notice would go on, and wait for more."""

    async def scenario() -> None:
        over = asyncio.Event()
        waited_for_more = False

        async def wait_twice() -> None:
            nonlocal waited_for_more
            await within(10, over.wait())
            waited_for_more = True
            await asyncio.sleep(1000)

        waiter = asyncio.create_task(wait_twice())
        await asyncio.sleep(1)
        over.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter], timeout=5)
        assert waiter.cancelled(), f"cancelled {turns} turns after the work, it goes on: {waited_for_more=}"

    run_virtually(scenario())
