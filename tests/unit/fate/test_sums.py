"""Sums as FATE's loop gets them, from a gateway that hands one over half done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from fate.ml import aggregator as ml
from fate.ml.aggregator.base import BaseAggregatorServer

from fedrdma_fate.aggregate.accumulator import Accumulator
from fedrdma_fate.aggregate.arithmetic import adder_for
from fedrdma_fate.aggregate.place import PLANES_AT, accumulator_bytes
from fedrdma_fate.client.client import Received, ReceivedSum
from fedrdma_fate.client.protocol import Summed, Unfinished
from fedrdma_fate.core.fold import Order
from fedrdma_fate.fate.sums import ExpectedSum, install_sums_ahead
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import planes_bytes, planes_of
from tests.support.summands import bits, exact_sum, masked, summed_by_rank, written

SHAPES = ((300, 20), (7,))
PLANES = list(planes_of(SHAPES))
UPDATES = masked(SHAPES, 2, 1)
PARTIES = [("host", "1"), ("host", "2")]
BODIES = [written(update, Party(*party), 1.0) for update, party in zip(UPDATES, PARTIES, strict=True)]
LATE = GatewayError(ErrorCode.PULL_TIMEOUT, "it did not come.", "Wait longer.")


class Killed(Accumulator):
    """Its process ends with the first block aside."""

    def _copy(self, _block: int) -> None:
        raise InterruptedError


class Gateway:
    """Its worker has added the first update, and was killed over the second; that comes at the get after `fails`."""

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.asked = 0

    def get_sum(self, _name: str, _tag: str, _sources: Sequence[Party], **_: Any) -> ReceivedSum:
        self.asked += 1
        memory = memoryview(bytearray(accumulator_bytes(Order.RANK, planes_bytes(SHAPES))))
        Accumulator(memory, PLANES, adder_for(Order.RANK, 2)).add(1, memoryview(BODIES[0]), 0)
        with suppress(InterruptedError):
            Killed(memory, PLANES, adder_for(Order.RANK, 2)).add(2, memoryview(BODIES[1]), 0)
        summed = Summed(
            (0,), 1.0, SHAPES, 1, 0, planes_bytes(SHAPES), "half", PLANES_AT, Unfinished("rank", half=1, weight=2.0)
        )
        return ReceivedSum(summed, memory)

    def get(self, _name: str, _tag: str, source: Party, **_: Any) -> Received:
        assert source == Party(*PARTIES[1])
        if self.fails:
            self.fails -= 1
            raise LATE
        return Received("object", memoryview(bytearray(BODIES[1])))


@pytest.mark.parametrize("fails", [0, 1, 3])
def test_a_get_that_failed_before_its_sum_was_finished_may_be_repeated_and_nobody_is_left_out(fails: int) -> None:
    gateway = Gateway(fails)
    expected = ExpectedSum(gateway, "masked", "t", PARTIES, bytes)  # type: ignore[arg-type]
    for number in range(fails):
        # whoever asks: it is not told that all of its update is in the sum of another
        with pytest.raises(GatewayError) as caught:
            expected.get(PARTIES[number % 2], 1.0)
        assert caught.value is LATE

    found = [expected.get(party, 1.0) for party in PARTIES]

    assert None not in found
    loaded = [answer[0].load_object(None, None, "", "", PARTIES[0]) for answer in found if answer is not None]
    assert bits(loaded[0][0]) == bits(summed_by_rank(UPDATES))
    assert loaded[0][1] == 2.0
    assert loaded[1] == ([], None)
    assert gateway.asked == 1


def test_an_update_that_is_half_in_behind_the_sum_of_a_site_is_finished_with_the_same_bits() -> None:
    updates, parties = masked(SHAPES, 3, 2), [*PARTIES, ("host", "3")]
    bodies = [memoryview(written(update, Party(*party), 1.0)) for update, party in zip(updates, parties, strict=True)]
    of_site, memory = (memoryview(bytearray(accumulator_bytes(Order.EXACT, planes_bytes(SHAPES)))) for _ in range(2))
    for number, body in enumerate(bodies[:2], 1):
        Accumulator(of_site, PLANES, adder_for(Order.EXACT, 3)).add(number, body, 0)
    # two parties are in it by one addition
    Accumulator(memory, PLANES, adder_for(Order.EXACT, 3)).add(1, of_site, PLANES_AT, 2)
    with suppress(InterruptedError):
        Killed(memory, PLANES, adder_for(Order.EXACT, 3)).add(2, bodies[2], 0)
    left = Unfinished("exact", half=2, weight=3.0)
    summed = Summed((0, 1), 2.0, SHAPES, 1, 0, planes_bytes(SHAPES), "half", PLANES_AT, left)
    gateway = SimpleNamespace(
        get_sum=lambda *_, **__: ReceivedSum(summed, memory),
        get=lambda *_, **__: Received("object", memoryview(bytearray(bodies[2]))),
    )
    expected: ExpectedSum[Any] = ExpectedSum(gateway, "masked", "t", parties, bytes)  # type: ignore[arg-type]

    found = [expected.get(party, 1.0) for party in parties]

    assert None not in found
    loaded = [answer[0].load_object(None, None, "", "", PARTIES[0]) for answer in found if answer is not None]
    assert bits(loaded[0][0]) == bits(exact_sum(updates, SHAPES))
    assert loaded[0][1] == 3.0
    assert loaded[1:] == [([], None), ([], None)]


class Federation:
    """Notes what it is told ahead."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def summing(self, *_: Any) -> Any:
        raise AssertionError

    def expect_sums(self, name: str, parties: Sequence[Any]) -> None:
        self.told.append((name, list(parties)))


class Members(list[Any]):
    """Parties of a job, as FATE's context has them, that send weights."""

    def __init__(self, parties: Sequence[Any], first_rank: int, told: list[Any]) -> None:
        super().__init__(parties)
        self.told = told
        self.ranks = [first_rank + number for number in range(len(parties))]
        self.rank = first_rank

    def get(self, _name: str) -> Any:
        self.told.append("weights are got")
        return [1.0] * len(self) if self.rank else 1.0

    def put(self, _name: str, _value: Any) -> None:
        self.told.append("weights are told")

    def __getitem__(self, _number: Any) -> Any:
        return self


def context_of(hosts: int, federation: type | None = Federation) -> tuple[Any, list[Any]]:
    """What FATE gives its server, and what happens there."""
    told: list[Any] = []
    everybody = [
        SimpleNamespace(party=("guest", "7")),
        *(SimpleNamespace(party=("host", str(n))) for n in range(hosts)),
    ]
    made = SimpleNamespace(
        federation=object() if federation is None else federation(told),
        parties=everybody,
        guest=Members(everybody[:1], 0, told),
        hosts=Members(everybody[1:], 1, told),
    )
    return made, told


@pytest.mark.parametrize("name", [None, "fedavg"])
def test_fates_server_says_ahead_what_its_model_aggregator_will_sum_before_any_client_goes_on(name: str | None) -> None:
    install_sums_ahead(BaseAggregatorServer)
    install_sums_ahead(BaseAggregatorServer)
    ctx, told = context_of(2)
    server = ml.SecureAggregatorServer(ctx, aggregator_name=name)
    aggregator = server.model_aggregator
    expected = aggregator._get_name(aggregator._send_name)
    assert told[0] == (expected, [ctx.parties[rank].party for rank in aggregator.ranks])
    assert told[1] == "weights are got"
    assert sum(isinstance(each, tuple) for each in told) == 1


def test_nothing_is_said_ahead_without_masks_of_one_client_or_over_another_federation() -> None:
    install_sums_ahead(BaseAggregatorServer)
    for make, (ctx, told) in (
        (ml.PlainTextAggregatorServer, context_of(2)),
        (ml.SecureAggregatorServer, context_of(0)),
        (ml.SecureAggregatorServer, context_of(2, None)),
    ):
        make(ctx, aggregator_name="fedavg")
        assert not any(isinstance(each, tuple) for each in told)
        assert told
