"""Masked updates for tests: made as FATE's clients make them, and as they lie in a slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrdma_fate.aggregate.arithmetic import Exact
from fedrdma_fate.aggregate.place import BLOCK_ITEMS
from fedrdma_fate.wire.frames import Party
from fedrdma_fate.wire.summand import Shape, Summand, encode_footer, planes_bytes, planes_of

Floats = npt.NDArray[np.float64]
Pairs = list[tuple[Floats, Floats]]

SHAPES: tuple[Shape, ...] = ((300, 200), (7,), (0, 3), (), (40_001,))
"""Of several blocks, of less than one, of none, and of one number."""


def masked(shapes: Sequence[Shape], parties: int, seed: int) -> list[Pairs]:
    """Updates as they are behind masks: fractions of some parties' masks, and large whole numbers."""
    made = np.random.default_rng(seed)
    return [
        [(made.uniform(-parties, parties, shape), np.rint(made.uniform(-1e7, 1e7, shape))) for shape in shapes]
        for _ in range(parties)
    ]


def summed_by_rank(updates: Sequence[Pairs]) -> Pairs:
    """As FATE adds: one after the other, in float64."""
    total = [(fraction.copy(), whole.copy()) for fraction, whole in updates[0]]
    for update in updates[1:]:
        total = [(a + fraction, b + whole) for (a, b), (fraction, whole) in zip(total, update, strict=True)]
    return total


def exact_sum(updates: Sequence[Pairs], shapes: Sequence[Shape]) -> Pairs:
    """As `exact` adds, in one process, one after the other."""
    total = []
    for number, shape in enumerate(shapes):
        planes = []
        for plane in (0, 1):
            sums, whole = np.empty(math.prod(shape)), plane == 1
            for start in range(0, len(sums), BLOCK_ITEMS):
                adder, block = Exact(len(updates)), sums[start : start + BLOCK_ITEMS]
                for rank, update in enumerate(updates):
                    values = update[number][plane].reshape(-1)[start : start + BLOCK_ITEMS]
                    adder.add(block if rank else None, values, block, whole=whole)
                if not whole:
                    adder.finish(block, block)
            planes.append(sums.reshape(shape))
        total.append((planes[0], planes[1]))
    return total


def written(pairs: Pairs, source: Party, weight: float | None = 1.0, *, before: bytes = b"") -> bytes:
    """A payload that ends in a summand; what stands before it is any number of whole lines."""
    shapes = tuple(pair[0].shape for pair in pairs)
    body = bytearray(planes_bytes(shapes))
    for plane, values in zip(planes_of(shapes), (each for pair in pairs for each in pair), strict=True):
        body[plane.offset : plane.offset + values.nbytes] = values.tobytes()
    return before + bytes(body) + encode_footer(Summand((source,), weight, shapes))


def pairs_in(buffer: Any, shapes: Sequence[Shape]) -> Pairs:
    """The pairs whose planes lie there."""
    planes = [np.frombuffer(buffer, np.float64, plane.items, plane.offset) for plane in planes_of(shapes)]
    return [
        (planes[2 * number].reshape(shape), planes[2 * number + 1].reshape(shape))
        for number, shape in enumerate(shapes)
    ]


def bits(pairs: Pairs) -> list[tuple[bytes, bytes]]:
    """Two sums are the same when these are."""
    return [(fraction.tobytes(), whole.tobytes()) for fraction, whole in pairs]
