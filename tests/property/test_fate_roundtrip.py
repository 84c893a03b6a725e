"""Any nest of containers and arrays comes back the same, and the same as from FATE's own pickler."""

from __future__ import annotations

import io
import itertools
from typing import Any

import numpy as np
import torch
from fate.arch.federation.api import TableRemotePersistentPickler, TableRemotePersistentUnpickler
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedrdma_fate.fate.deserialise import load_object
from fedrdma_fate.fate.serialise import plan_object
from tests.support.comparison import assert_same

PARTY = ("host", "10000")

_NUMPY_OF_FATE = [np.dtype(name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")]
_TORCH_OF_FATE = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


class Federation:
    local_party = PARTY


def _layouts(array: np.ndarray[Any, Any]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """The same array through other strides: steps, reversals and swapped axes."""
    steps = [slice(None, None, step) for step in (1, 2, -1, -3)]
    cuts = st.tuples(*(st.sampled_from(steps) for _ in array.shape)) if array.ndim else st.just(())
    orders = st.permutations(range(array.ndim))
    return st.builds(lambda cut, order: array[(*cut, ...)].transpose(order), cuts, orders)


def _arrays(dtypes: st.SearchStrategy[Any]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
    return npst.arrays(dtypes, shapes).flatmap(_layouts)


def _as_tensor(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(array.copy()).to(dtype)


_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
_fate_arrays = _arrays(st.sampled_from(_NUMPY_OF_FATE))
# FATE cannot load an empty tensor
_fate_tensors = st.builds(
    _as_tensor, _arrays(st.just(np.dtype("f4"))).filter(lambda array: array.size > 0), st.sampled_from(_TORCH_OF_FATE)
)
_all_arrays = _arrays(
    npst.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | npst.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | npst.integer_dtypes(endianness="?")
    | npst.boolean_dtypes()
    | npst.datetime64_dtypes(endianness="?")
    | npst.byte_string_dtypes(max_len=5)
    | npst.unicode_string_dtypes(endianness="?", max_len=5)
)
_long_bytes = st.integers(60_000, 70_000).flatmap(lambda size: st.sampled_from([bytes(size), bytearray(size)]))


def _nests(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        ),
        max_leaves=12,
    )


def _ours(value: object) -> Any:
    plan = plan_object(value, Federation(), "name", "tag", [PARTY])
    buffer = bytearray(plan.total_bytes)
    plan.write_into(memoryview(buffer))
    assert plan_object(value, Federation(), "name", "tag", [PARTY]).matches(memoryview(buffer))
    return load_object(memoryview(buffer), None, Federation(), "name", "tag", PARTY)


def _fates(value: object) -> Any:
    stream = io.BytesIO()
    TableRemotePersistentPickler(Federation(), "name", "tag", [PARTY], stream).dump(value)
    return TableRemotePersistentUnpickler(
        None, Federation(), "name", "tag", PARTY, io.BytesIO(stream.getvalue())
    ).load()


@settings(max_examples=150)
@given(_nests(_leaves | _all_arrays | _fate_tensors | _long_bytes))
def test_every_nest_of_containers_and_arrays_comes_back_the_same(value: Any) -> None:
    assert_same(_ours(value), value)


@settings(max_examples=150)
@given(_nests(_leaves | _fate_arrays | _fate_tensors))
def test_every_nest_that_fate_can_carry_comes_back_as_from_fate(value: Any) -> None:
    assert_same(_ours(value), _fates(value))


@settings(max_examples=60)
@given(st.lists(_fate_arrays, min_size=2, max_size=5))
def test_received_arrays_do_not_overlap(value: list[np.ndarray[Any, Any]]) -> None:
    for left, right in itertools.combinations(_ours(value), 2):
        assert not np.shares_memory(left, right)
