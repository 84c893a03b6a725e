"""What a received shape may be, before anything is computed with it."""

from __future__ import annotations

from typing import Any

from fedrdma_fate.wire.summand import MOST_DIMENSIONS

_MAX_SIZE = 2**63 - 1
"""That NumPy and torch count with. Pickled numbers may have millions of digits, and a product of them takes minutes."""


def is_shape(shape: object, most_dimensions: int = MOST_DIMENSIONS) -> bool:
    """Whether it is a tuple of sizes, or a torch.Size, of so many dimensions at most."""
    return isinstance(shape, tuple) and len(shape) <= most_dimensions and all(map(is_size, shape))


def is_size(number: Any) -> bool:
    """Whether it is a number that a dimension can be long."""
    return type(number) is int and 0 <= number <= _MAX_SIZE
