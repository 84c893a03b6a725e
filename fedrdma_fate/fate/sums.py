"""Sums of masked updates: how a client's update is marked as a summand, and what FATE's server gets of a sum.

FATE's server adds in a loop over the ranks: `get`, then `MixAggregate.aggregate`. Where the gateway has summed, the
first `get` of a party in the sum brings the sum and the sum of the weights, every other one an empty list and no
weight, which FATE's loop takes as nothing to add. Who is not in the sum comes as ever.

What no worker could finish is finished here: the sum is mapped copy-on-write with its mark and the block that is kept
aside, so this process goes on in its own copy where the worker ended.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from fedrdma_fate.aggregate.accumulator import Accumulator
from fedrdma_fate.aggregate.arithmetic import UnfitError, adder_for
from fedrdma_fate.client.client import Received, ReceivedSum
from fedrdma_fate.client.protocol import NotSummed, Unfinished
from fedrdma_fate.core.fold import Order
from fedrdma_fate.fate.gateway_client import Client, PartyTuple, to_party
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES, Party
from fedrdma_fate.wire.summand import (
    MOST_ARRAYS,
    MOST_DIMENSIONS,
    NoSummandError,
    Summand,
    decode_footer,
    encode_footer,
    planes_bytes,
    planes_of,
)

logger = logging.getLogger(__name__)

MASKED_NAME = "mixed_client_values"
"""How FATE's secure aggregation calls what a client sends, with the aggregator's name and `_` before it."""

_INSTALLED = "_fedrdma_sums"

Unwrapped = TypeVar("Unwrapped")
"""What a federation makes of a message."""


def footer_for(value: object, name: str, source: Party) -> bytes:
    """What goes behind a masked update so that it can be added as it lies; nothing behind anything else.

    Args:
        value: what is being sent.
        name: name of the message.
        source: who sends it.
    """
    if name != MASKED_NAME and not name.endswith(f"_{MASKED_NAME}"):
        return b""
    if type(value) is not tuple or len(value) != 2 or type(value[0]) is not list:
        return b""
    pairs, weight = value
    if not 0 < len(pairs) <= MOST_ARRAYS or not all(_is_masked(pair) for pair in pairs):
        return b""
    if weight is not None and (isinstance(weight, bool) or not isinstance(weight, int | float)):
        return b""
    shapes = tuple(tuple(pair[0].shape) for pair in pairs)
    if planes_bytes(shapes) <= INLINE_LIMIT_BYTES:
        # it may travel with its name and tag, and FATE adds it in no time
        return b""
    try:
        value_of_weight = None if weight is None else float(weight)
        if value_of_weight is not None and not math.isfinite(value_of_weight):
            return b""
        return encode_footer(Summand((source,), value_of_weight, shapes))
    except (NoSummandError, OverflowError):
        return b""


def _is_masked(pair: object) -> bool:
    """Whether these are the two planes of an array, as `RandomMix.mix` makes them."""
    if type(pair) is not tuple or len(pair) != 2:
        return False
    fraction, whole = pair
    plain = all(type(plane) is np.ndarray and plane.dtype.str == "<f8" for plane in pair)
    return plain and fraction.shape == whole.shape and fraction.ndim <= MOST_DIMENSIONS


class PulledSummand:
    """What a `get` brings where the gateway has summed; see `hooks.PulledObject`."""

    def __init__(self, pairs: list[tuple[Any, Any]], weight: float | None) -> None:
        """
        Args:
            pairs: of the arrays of the sum, or none.
            weight: the sum of the weights, or None.
        """
        self._value = pairs, weight

    def load_object(self, ctx: Any, federation: Any, name: str, tag: str, party: PartyTuple) -> Any:  # noqa: ARG002
        """What FATE's server takes for the update of a party."""
        return self._value


class ExpectedSum(Generic[Unwrapped]):
    """A sum that FATE's loop is about to get, party by party. Threads take turns."""

    def __init__(
        self,
        client: Client,
        name: str,
        tag: str,
        parties: Sequence[PartyTuple],
        unwrap: Callable[[Received], Unwrapped],
    ) -> None:
        """
        Args:
            client: of the gateway that adds.
            name: name of the messages.
            tag: their tag.
            parties: whose updates are summed, in the order of the ranks.
            unwrap: what a `get` brings of a message that was not summed after all.
        """
        self._client = client
        self._name = name
        self._tag = tag
        self._parties = list(parties)
        self._unwrap = unwrap
        self._asked = False
        self._to_finish: ReceivedSum | None = None
        self._sum: ReceivedSum | None = None
        self._weight: float | None = None
        self._apart: dict[PartyTuple, Received] = {}
        self._in: set[PartyTuple] = set()
        self._turn = threading.Lock()

    def get(self, party: PartyTuple, timeout: float | None) -> tuple[PulledSummand | Unwrapped, int] | None:
        """What a `get` of this party brings, and how many bytes of it there are; None: it is to be got as ever.

        The first one waits for the sum.

        Raises:
            FedRDMAError: as `GatewayClient.get_sum`, and SUM_LOST where it cannot be finished.
        """
        with self._turn:
            if party not in self._parties:
                return None
            if not self._asked:
                self._asked = True
                self._ask(timeout)
            if (summed := self._to_finish) is not None and summed.unfinished is not None:
                # where this fails, there is no sum that anybody is in: a get that is repeated tries once more
                self._finish(summed, summed.unfinished, timeout)
                self._to_finish = None
            if (message := self._apart.pop(party, None)) is not None:
                return self._unwrap(message), len(message.buffer)
            if party not in self._in:
                return None
            self._in.discard(party)
            summed, self._sum = self._sum, None
            if summed is None:
                return PulledSummand([], None), 0
            return PulledSummand(_pairs(summed), self._weight), len(summed.buffer)

    def _ask(self, timeout: float | None) -> None:
        sources = [to_party(party) for party in self._parties]
        answer = self._client.get_sum(self._name, self._tag, sources, timeout=timeout)
        if isinstance(answer, NotSummed):
            level = logging.DEBUG if answer.expected else logging.WARNING
            logger.log(level, "FATE adds %s/%s itself: %s", self._name, self._tag, answer.reason)
            return
        if answer.reason:
            told = "the gateway has added %d of %d updates of %s/%s, FATE adds the others: %s"
            logger.warning(told, len(answer.parties_in), len(sources), self._name, self._tag, answer.reason)
        self._in = {self._parties[number] for number in answer.parties_in}
        self._weight = answer.weight
        self._sum, self._to_finish = answer, answer

    def _finish(self, summed: ReceivedSum, left: Unfinished, timeout: float | None) -> None:
        """Do what no worker could.

        Raises:
            FedRDMAError: SUM_LOST; or the update that is half in it cannot be had, and why.
        """
        logger.warning("no worker could finish the sum of %s/%s, which is finished here", self._name, self._tag)
        try:
            adder = adder_for(Order(left.order), len(self._parties))
            accumulator = Accumulator(summed.accumulator, list(planes_of(summed.shapes)), adder)
            if left.half is not None:
                self._add_rest(accumulator, self._parties[left.half], left.weight, timeout)
            accumulator.finish()
        except (ValueError, IndexError, NoSummandError) as error:
            raise GatewayError(
                ErrorCode.SUM_LOST,
                f"the sum of {self._name}/{self._tag} cannot be finished: {error}.",
                "See the gateway's log for why its worker ended; run the job again.",
            ) from error

    def _add_rest(
        self,
        accumulator: Accumulator,
        party: PartyTuple,
        weight: float | None,
        timeout: float | None,
    ) -> None:
        message = self._client.get(self._name, self._tag, to_party(party), timeout=timeout)
        _, first = decode_footer(message.buffer, len(message.buffer))
        try:
            # not one more than there are parties in it: sums of sites count as one
            accumulator.add(accumulator.begun, message.buffer, first)
        except UnfitError as error:
            # it is out of the sum again
            logger.warning("FATE adds the update of %s itself: %s", party, str(error))
            self._apart[party] = message
            return
        self._in.add(party)
        self._weight = weight


def _pairs(summed: ReceivedSum) -> list[tuple[Any, Any]]:
    planes = list(planes_of(summed.shapes))
    shapes = [shape for shape in summed.shapes for _ in range(2)]
    arrays = [
        np.frombuffer(summed.buffer, np.float64, plane.items, plane.offset).reshape(shape)
        for plane, shape in zip(planes, shapes, strict=True)
    ]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


@runtime_checkable
class SummingFederation(Protocol):
    """A federation whose gateway can sum."""

    def summing(self, name: str, tag: str, parties: Sequence[PartyTuple]) -> AbstractContextManager[None]:
        """While this is entered, what parties send under this name is summed before it is got."""
        ...

    def expect_sums(self, name: str, parties: Sequence[PartyTuple]) -> None:
        """Such sums will be asked for."""
        ...


@contextmanager
def no_sum() -> Iterator[None]:
    """Where nothing is summed."""
    yield


def install_sums(server: Any) -> None:
    """Wrap `secure_aggregate` of FATE's `SecureAggregatorServer`; may be repeated."""
    if hasattr(server, _INSTALLED):
        return
    original = server.secure_aggregate

    @functools.wraps(original)
    def secure_aggregate(self: Any, ctx: Any, ranks: Any = None) -> Any:
        with _summing(self, ctx, ranks):
            return original(self, ctx, ranks)

    server.secure_aggregate = secure_aggregate
    setattr(server, _INSTALLED, True)


def install_sums_ahead(server: Any) -> None:
    """Wrap the constructor of FATE's `BaseAggregatorServer`; may be repeated.

    It gets every client's weight first, and then tells each client its own, which most wait for. So what is told before
    it runs is at their sites before any of them sends an update.
    """
    if hasattr(server, _INSTALLED):
        return
    original = server.__init__

    @functools.wraps(original)
    def construct(self: Any, ctx: Any, aggregator_name: Any = None, is_mock: Any = True) -> None:
        if not is_mock:
            _expect(ctx, aggregator_name)
        original(self, ctx, aggregator_name, is_mock)

    server.__init__ = construct
    setattr(server, _INSTALLED, True)


def _expect(ctx: Any, aggregator_name: str | None) -> None:
    """What the server's model aggregator will be asked to sum; losses are too small."""
    federation = ctx.federation
    if not isinstance(federation, SummingFederation):
        return
    parties = [ctx.parties[rank].party for rank in (ctx.guest.rank, *ctx.hosts.ranks)]
    if len(parties) > 1:
        prefix = "default" if aggregator_name is None else aggregator_name
        federation.expect_sums(f"{prefix}_model_{MASKED_NAME}", parties)


def _summing(server: Any, ctx: Any, ranks: Any) -> AbstractContextManager[None]:
    federation = ctx.federation
    if not isinstance(federation, SummingFederation) or server._is_mock:
        return no_sum()
    if ranks is not None:
        logger.info("FATE adds itself: only ranks %s are asked for", ranks)
        return no_sum()
    chosen = [ctx.parties[rank] for rank in server.ranks]
    if len(chosen) < 2:
        return no_sum()
    name, tag = server._get_name(server._send_name), chosen[0].namespace.federation_tag
    return federation.summing(name, tag, [each.party for each in chosen])
