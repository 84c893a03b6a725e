"""FATE's aggregators, which send and read whole updates, taught to let a part be missing.

`SecureAggregatorClient` and `SecureAggregatorServer` of FATE carry both of its aggregators: with masks for
`secure_aggregate`, without ("mock") for `plaintext`. Where a job sets `loss_tolerance`, from the second round on the
client's put and the server's gets let so much be missing, and the server's sum knows where. What goes back to the silos
is always whole, and so is the first round, for there is no aggregate yet that an element could keep.

Without masks FATE's server adds what it gets and divides by the sum of the weights, which is one: it returns the sum of
the models. And where these are single numbers, as losses are, what it returns is no array any more, and FATE does not
read it at the silo. Both are mended here, with `loss_tolerance` or without: the server returns the weighted mean, as it
does with masks, and arrays.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fedrdma_fate.fate.aggregation.holes import Aggregate, Holes, HoleyMean, MaskedMean, PlainMean
from fedrdma_fate.fate.gateway_client import PartyTuple
from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.missing import MissingElements

logger = logging.getLogger(__name__)

_INSTALLED = "_fedrdma_holes"
_LAST = "_fedrdma_last_aggregate"
_BEGUN = "_fedrdma_begun"


@runtime_checkable
class TolerantFederation(Protocol):
    """A federation that can let something be missing."""

    @property
    def loss_tolerance(self) -> float:
        """How much may be missing of what an aggregation reads; 0: nothing."""
        ...

    def putting_tolerantly(self) -> AbstractContextManager[None]:
        """While this is entered, so much may be missing of what this thread puts."""
        ...

    def getting_tolerantly(
        self, name: str, tag: str, parties: Sequence[PartyTuple], share: float, *, jointly: bool
    ) -> AbstractContextManager[None]:
        """While this is entered, such a share may be missing of each of these messages, which this thread gets.

        Jointly, of all together, where the same of another counts once.
        """
        ...

    def missing(self, name: str, tag: str, party: PartyTuple) -> tuple[MissingElements, ...]:
        """What is missing of a message that was got so."""
        ...


def install_aggregation(module: Any) -> None:
    """Wrap `secure_aggregate` of FATE's client and server; may be repeated.

    Args:
        module: FATE's, in which both are.
    """
    if hasattr(module.SecureAggregatorServer, _INSTALLED):
        return
    client, server = module.SecureAggregatorClient, module.SecureAggregatorServer
    client.secure_aggregate = _wrap_client(client.secure_aggregate)
    server.secure_aggregate = _wrap_server(server.secure_aggregate, module)
    setattr(server, _INSTALLED, True)


def _wrap_client(original: Any) -> Any:
    @functools.wraps(original)
    def secure_aggregate(self: Any, ctx: Any, array: Any, weight: Any = None) -> Any:
        federation = ctx.federation
        is_tolerant = isinstance(federation, TolerantFederation) and federation.loss_tolerance > 0
        if not is_tolerant or not getattr(self, _BEGUN, False):
            result = original(self, ctx, array, weight)
            setattr(self, _BEGUN, True)
            return result
        content = array if self._is_mock else self._get_mixer().mix(array, weight)
        with federation.putting_tolerantly():
            ctx.arbiter.put(self._get_name(self._send_name), (content, weight))
        return ctx.arbiter.get(self._get_name(self._recv_name))

    return secure_aggregate


def _wrap_server(original: Any, module: Any) -> Any:
    @functools.wraps(original)
    def secure_aggregate(self: Any, ctx: Any, ranks: Any = None) -> Any:
        federation = ctx.federation
        if not isinstance(federation, TolerantFederation):
            return original(self, ctx, ranks)
        last = getattr(self, _LAST, None) if ranks is None else None
        tolerance = federation.loss_tolerance if last is not None else 0.0
        if not self._is_mock and not tolerance:
            arrays = original(self, ctx, ranks)
        else:
            arrays = _aggregate(self, ctx, self.ranks if ranks is None else ranks, tolerance, last, module)
        if federation.loss_tolerance > 0:
            setattr(self, _LAST, arrays)
        return arrays

    return secure_aggregate


def _aggregate(server: Any, ctx: Any, ranks: Iterable[int], tolerance: float, last: Any, module: Any) -> Any:
    """A round of FATE's server, whose updates may have holes."""
    federation: TolerantFederation = ctx.federation
    chosen = [ctx.parties[rank] for rank in ranks]
    name = server._get_name(server._send_name)
    mean: HoleyMean = PlainMean() if server._is_mock else MaskedMean(module.MixAggregate)
    tag = chosen[0].namespace.federation_tag if chosen else ""
    lost: dict[PartyTuple, int] = {}
    sent = 0
    with _getting(server, federation, name, tag, [each.party for each in chosen], tolerance):
        for each in chosen:
            arrays, weight = each.get(name)
            told = federation.missing(name, tag, each.party) if tolerance else ()
            lost[each.party] = sum(array.count for array in told)
            sent += sum(np.size(array) for array in _flat(arrays))
            mean.add(arrays, weight, holes_in(arrays, told))
            # its slot may be wanted
            del arrays
    aggregate = mean.finish(last)
    if tolerance:
        _tell(name, tag, lost, sent, aggregate)
    for each in chosen:
        each.put(server._get_name(server._recv_name), aggregate.arrays)
    return aggregate.arrays


def _getting(
    server: Any, federation: TolerantFederation, name: str, tag: str, parties: Sequence[PartyTuple], tolerance: float
) -> AbstractContextManager[None]:
    if not tolerance:
        return nullcontext()
    if server._is_mock:
        return federation.getting_tolerantly(name, tag, parties, tolerance, jointly=False)
    # an element stands still, for all, that any party lacks in either of its two planes: half of it in each plane
    return federation.getting_tolerantly(name, tag, parties, tolerance / 2, jointly=True)


def holes_in(arrays: Sequence[Any], missing: Sequence[MissingElements]) -> Holes:
    """What is missing, by the number of an array in the update; of pairs, both count.

    Args:
        arrays: the update: arrays, or pairs of arrays.
        missing: what was told; it counts the arrays as pickle meets them, each once.

    Raises:
        FateError: PAYLOAD_MALFORMED when it is missing of an array that is not in the update.
    """
    if not missing:
        return {}
    numbers: dict[int, int] = {}
    places: list[list[int]] = []
    for place, array in enumerate(_flat(arrays)):
        number = numbers.setdefault(id(array), len(numbers))
        if number == len(places):
            places.append([])
        places[number].append(place)
    holes = {}
    for each in missing:
        if each.array >= len(places):
            raise malformed(f"elements of array {each.array} are missing, of {len(places)}")
        holes.update(dict.fromkeys(places[each.array], each.ranges))
    return holes


def _flat(arrays: Sequence[Any]) -> Iterable[Any]:
    for each in arrays:
        if isinstance(each, tuple):
            yield from each
        else:
            yield each


def _tell(name: str, tag: str, lost: dict[PartyTuple, int], sent: int, aggregate: Aggregate) -> None:
    """One line a round."""
    each = ", ".join(f"{count} of {role} {number}" for (role, number), count in lost.items() if count)
    logger.info(
        "%s/%s: %.3f %% of %d elements are missing%s; %.3f %% of the aggregate stays as it was",
        name,
        tag,
        100 * sum(lost.values()) / max(1, sent),
        sent,
        f" ({each})" if each else "",
        100 * aggregate.kept / max(1, aggregate.elements),
    )
