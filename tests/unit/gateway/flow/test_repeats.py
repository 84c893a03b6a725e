"""A call that FATE Flow makes again: what is kept for it, and how much."""

from __future__ import annotations

import asyncio

import pytest

from fedrdma_fate.gateway.flow import repeats
from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall
from fedrdma_fate.gateway.flow.repeats import REPEAT_SECONDS, Repeats
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.twin import run_virtually


def a_call(number: int = 0, size: int = 0) -> SchedulingCall:
    return SchedulingCall(f"/v2/partner/job/{number}", (), b"x" * size)


class Counted:
    """Carries calls out at once.

    Attributes:
        calls: so many.
    """

    def __init__(self, answer: bytes = b"{}") -> None:
        self.calls = 0
        self._answer = answer

    async def carry(self, _call: SchedulingCall) -> Answer:
        self.calls += 1
        return Answer(200, self._answer)


async def at_once() -> None:
    return


async def never() -> None:
    await asyncio.Event().wait()


def test_a_caller_that_goes_as_the_answer_comes_gets_it_when_it_calls_again() -> None:
    async def run() -> None:
        counted = Counted()
        kept = Repeats(counted.carry)
        with pytest.raises(EOFError):
            await kept.outcome(a_call(), at_once())
        assert (await kept.outcome(a_call(), never())).status == 200
        assert counted.calls == 1

    run_virtually(run())


@pytest.mark.parametrize(("body", "answer"), [(40, b""), (0, b"x" * 40)])
def test_what_nobody_takes_has_a_bound_in_bytes_and_is_given_back(
    monkeypatch: pytest.MonkeyPatch, body: int, answer: bytes
) -> None:
    monkeypatch.setattr(repeats, "MOST_BYTES", 100)

    async def run() -> None:
        kept = Repeats(Counted(answer).carry)
        for number in range(2):
            with pytest.raises(EOFError):
                await kept.outcome(a_call(number, body), at_once())
        with pytest.raises(GatewayError) as refused:
            await kept.outcome(a_call(2, 40), never())
        assert refused.value.code is ErrorCode.LIMIT_REACHED
        await asyncio.sleep(REPEAT_SECONDS + 1)
        assert (await kept.outcome(a_call(2, 40), never())).status == 200

    run_virtually(run())
