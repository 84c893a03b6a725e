"""Tuples within tuples, which hashing goes through one by one."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fedrdma_fate.fate.stream_memory import MOST_TUPLES, is_bounded
from fedrdma_fate.fate.tuple_depths import MOST_DEEP, TupleDepths
from fedrdma_fate.fate.unpickler import names_with, unpickle
from fedrdma_fate.wire.errors import ErrorCode, FateError


def no_id(pid: Any) -> Any:
    raise AssertionError(pid)


def load(stream: bytes, *, holds_tensors: bool) -> Any:
    return unpickle(stream, names_with(()), no_id, holds_tensors=holds_tensors)


def as_key(opcodes: bytes) -> bytes:
    """A dictionary whose one key these opcodes make."""
    return b"\x80\x04}" + opcodes + b"Ns."


def nested(levels: int) -> bytes:
    return b")" + pickle.TUPLE1 * levels


@pytest.mark.parametrize("holds_tensors", [False, True])
def test_a_key_of_a_million_tuples_within_each_other_is_refused_and_ends_nothing(holds_tensors: bool) -> None:
    with pytest.raises(FateError) as error:
        load(as_key(nested(1_000_000)), holds_tensors=holds_tensors)
    assert error.value.code is ErrorCode.PAYLOAD_MALFORMED


def test_in_the_unpickler_in_python_a_key_that_stands_for_more_values_than_can_be_hashed_is_refused() -> None:
    doubled = b")" + b"".join(
        pickle.BINPUT + bytes([n]) + pickle.BINGET + bytes([n]) + pickle.TUPLE2 for n in range(60)
    )
    with pytest.raises(FateError) as error:
        load(as_key(doubled), holds_tensors=True)
    assert error.value.code is ErrorCode.PAYLOAD_MALFORMED


@pytest.mark.parametrize("holds_tensors", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        [(n, f"t{n}") for n in range(2 * MOST_TUPLES)],
        {((n, n + 1), "t"): (n,) for n in range(MOST_TUPLES)},
        {(): ((), (1, 2, 3, (4, 5)))},
    ],
    ids=["many", "as keys", "few"],
)
def test_tuples_as_jobs_send_them_arrive(value: Any, holds_tensors: bool) -> None:
    assert load(pickle.dumps(value), holds_tensors=holds_tensors) == value


def test_text_that_looks_like_tuples_is_none() -> None:
    assert is_bounded(pickle.dumps(["tttt" * 10_000, b"\x85\x86\x87" * 20_000]))


def test_the_deepest_tuple_is_the_one_at_the_limit() -> None:
    depths, made = TupleDepths(), ()
    for _ in range(MOST_DEEP - 1):
        made = (made,)
        assert depths.add(made)
    assert depths.add((made,)) is False
