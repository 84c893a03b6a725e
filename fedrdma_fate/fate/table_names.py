"""The names that a key or value of a received table may use, beyond those of objects.

Collected from the tables that FATE 2.2.0's own jobs send. What an object carries outside of its stream, arrays and
tensors, is in the stream here, so that this list has what rebuilds them, each looked at before it is done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fedrdma_fate.fate.allowed_names import ALLOWED_NAMES, Name, Use, are_items, is_unfilled
from fedrdma_fate.fate.shapes import is_shape
from fedrdma_fate.fate.unpickler import names_with

_NUMBERS_AND_TEXT = "biufcSU"
"""Kinds of NumPy's dtypes whose items are nothing but their bytes."""

_PERSISTENT = "fate.arch.federation.api._serdes"
"""Whose names describe tables, the context and segments in an object; a table has none of them."""


def _fits(dtype: Any, count: int, content: Any) -> bool:
    """Whether these bytes are so many items."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS_AND_TEXT or dtype.hasobject or dtype.itemsize <= 0:
        return False
    if type(content) is not bytes or len(content) != count * dtype.itemsize:
        return False
    # NumPy counts truth values by adding them up
    return dtype.kind != "b" or not content.strip(b"\x00\x01")


def _array_state(array: Any, state: Any) -> bool:
    """An array of numbers or text, as bytes, or one of objects, as a list: NumPy compares neither with the shape."""
    if not is_unfilled(array) or type(state) is not tuple or len(state) != 5:
        return False
    version, shape, dtype, in_fortran_order, items = state
    if (type(version), version, type(in_fortran_order), type(shape)) != (int, 1, bool, tuple):
        return False
    if not is_shape(shape):
        return False
    if isinstance(dtype, np.dtype) and dtype == np.dtype(object):
        return are_items(items, shape)
    return _fits(dtype, math.prod(shape), items)


def _scalar(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 2 and _fits(arguments[0], 1, arguments[1])


# torch takes a second to import, which a worker of an engine need not spend on a table without tensors


def _is_tensor(arguments: tuple[Any, ...]) -> bool:
    from fedrdma_fate.fate import tensor_stream

    return tensor_stream.is_tensor(arguments)


def _rebuild_tensor(*arguments: Any) -> Any:
    from fedrdma_fate.fate import tensor_stream

    return tensor_stream.rebuild_tensor(*arguments)


def _is_bytes(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 1 and type(arguments[0]) is bytes


def _load_storage(content: bytes) -> Any:
    from fedrdma_fate.fate import tensor_stream

    return tensor_stream.load_storage(content)


_HISTOGRAMS = (
    # SecureBoost: what a host sends of its splits
    Name("fate.arch.histogram._histogram_splits", "HistogramSplits", Use.INSTANCE),
    Name("fate.arch.histogram.values._values", "HistogramValuesContainer", Use.INSTANCE),
    Name("fate.arch.histogram.values._cipher", "HistogramEncryptedValues", Use.INSTANCE),
    Name("fate.arch.histogram.values._plain", "HistogramPlainValues", Use.INSTANCE),
)

_ARRAYS_AND_TENSORS = (
    Name("numpy", "ndarray", Use.FILL, check_state=_array_state),
    Name("numpy.core.multiarray", "scalar", Use.CALL, _scalar),
    Name(
        "torch._utils",
        "_rebuild_tensor_v2",
        Use.CALL,
        _is_tensor,
        stand_in=_rebuild_tensor,
    ),
    Name(
        "torch.storage",
        "_load_from_bytes",
        Use.CALL,
        _is_bytes,
        stand_in=_load_storage,
    ),
)

TABLE_NAMES: Mapping[tuple[str, str], Name] = {
    **{pair: name for pair, name in ALLOWED_NAMES.items() if name.module != _PERSISTENT},
    **{(name.module, name.name): name for name in (*_ARRAYS_AND_TENSORS, *_HISTOGRAMS)},
}
"""What every job's tables may use; a job's own `allowed_names` come on top."""


def table_names_with(additional: Collection[str]) -> Mapping[tuple[str, str], Name]:
    """See `unpickler.names_with`, for tables."""
    return names_with(additional, TABLE_NAMES)
