"""Payloads that lie: every one is refused with a code, none is read beyond its end."""

from __future__ import annotations

import contextlib
import pickle
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from fate.arch.federation.api import _serdes

from fedrdma_fate.fate.deserialise import load_object
from fedrdma_fate.fate.layout import HEADER_BYTES, align
from fedrdma_fate.fate.serialise import plan_object
from fedrdma_fate.wire.errors import ErrorCode, FateError

PARTY = ("guest", "9999")


class Federation:
    local_party = PARTY


def payload(
    segments: Any,
    stream: bytes = b"\x80\x04K\x00Q.",
    body: bytes = bytes(64),
    *,
    magic: bytes = b"FRPO",
    version: int = 1,
    table: bytes | None = None,
    table_bytes: int | None = None,
    stream_bytes: int | None = None,
    total: int | None = None,
    checksum: int | None = None,
) -> bytearray:
    """A payload built by hand; the default stream is segment 0, and every lie is an argument."""
    if table is None:
        table = msgspec.msgpack.encode(segments)
    segments_at = align(HEADER_BYTES + len(table) + len(stream))
    fields = struct.pack(
        "<4sHHQQQ",
        magic,
        version,
        0,
        len(table) if table_bytes is None else table_bytes,
        len(stream) if stream_bytes is None else stream_bytes,
        segments_at + len(body) if total is None else total,
    )
    check = zlib.crc32(table, zlib.crc32(fields)) if checksum is None else checksum
    padding = bytes(segments_at - HEADER_BYTES - len(table) - len(stream))
    return bytearray(fields + struct.pack("<I", check) + table + stream + padding + body)


def load(buffer: bytearray) -> Any:
    return load_object(memoryview(buffer), None, Federation(), "name", "tag", PARTY)


def assert_malformed(buffer: bytearray) -> None:
    with pytest.raises(FateError) as caught:
        load(buffer)
    assert caught.value.code is ErrorCode.PAYLOAD_MALFORMED


def test_the_honest_payload_loads() -> None:
    assert load(payload([["ndarray", "<f8", [8], 0, 64]])).tolist() == [0.0] * 8


@pytest.mark.parametrize(
    "lie",
    [
        {"magic": b"FRPX"},
        {"version": 2},
        {"checksum": 1},
        {"table_bytes": 2**63},
        {"table_bytes": 10**6},
        {"stream_bytes": 2**64 - 1},
        {"total": 10**9},
        {"total": 0},
        {"table": b"\xc1"},
        {"table": b""},
        {"table": b"\xdd\xff\xff\xff\xff"},
        {"table": b"\x91\x95\xa7\xff\xff\xff\xff\xff\xff\xff\xa0\x90\x00\x00"},
        {"table": b"\x91\x95\xa5bytes\xa2\xff\xfe\x91\x05\x00\x05"},
    ],
    ids=str,
)
def test_a_header_or_table_that_lies_is_refused(lie: dict[str, Any]) -> None:
    assert_malformed(payload([["ndarray", "<f8", [8], 0, 64]], **lie))


@pytest.mark.parametrize("before", [b"", b"\x91", b"\x91\x95\xa5bytes\xa0", b"\x91\x95\xa5bytes\xa0\x91\x05"], ids=len)
def test_a_table_that_is_nested_too_deep_is_refused(before: bytes) -> None:
    assert_malformed(payload([], table=before + b"\x91" * 100_000))


@pytest.mark.parametrize(
    "segment",
    [
        ["ndarray", "<f8", [9], 0, 64],
        ["ndarray", "<f8", [9], 0, 72],
        ["ndarray", "<f8", [8], 64, 64],
        ["ndarray", "<f8", [8], 2**62, 64],
        ["ndarray", "<f8", [8], 8, 56],
        ["ndarray", "<f8", [8], -64, 64],
        ["ndarray", "<f8", [-8], 0, 64],
        ["ndarray", "<f8", [2**61, 4], 0, 64],
        ["ndarray", "<f8", [2**33, 2**33, 0], 0, 64],
        ["ndarray", "<f8", [1] * 33 + [8], 0, 64],
        ["ndarray", "|O", [8], 0, 64],
        ["ndarray", "|O8", [8], 0, 64],
        ["ndarray", "O", [8], 0, 64],
        ["ndarray", "<f8,<f8", [4], 0, 64],
        ["ndarray", "(2,)<f8", [4], 0, 64],
        ["ndarray", "<f3", [8], 0, 24],
        ["ndarray", "|V0", [8], 0, 0],
        ["ndarray", "<U0", [], 0, 0],
        ["ndarray", "<U999999999", [1], 0, 64],
        ["ndarray", "<M8[parsec]", [8], 0, 64],
        ["ndarray", "<M8[s/0]", [8], 0, 64],  # NumPy divides by it, and the process ends
        ["ndarray", "<m8[Y/4294967296]", [8], 0, 64],
        ["ndarray", "<M8[s/10]", [8], 0, 64],
        ["ndarray", "<M8[0s]", [8], 0, 64],
        ["ndarray", "<m8[4294967297s]", [8], 0, 64],
        ["ndarray", "<M8[]", [8], 0, 64],
        ["ndarray", "<M4[s]", [16], 0, 64],
        ["ndarray", "<f8[s]", [8], 0, 64],
        ["ndarray", "<U999999999", [0], 0, 0],  # fewer bytes than none, by NumPy
        ["ndarray", "", [8], 0, 64],
        ["ndarray", "float64", [8], 0, 64],
        ["tensor", "float64", [9], 0, 64],
        ["tensor", "<f8", [8], 0, 64],
        ["tensor", "quint8", [64], 0, 64],
        ["tensor", "nn", [64], 0, 64],
        ["tensor", "", [64], 0, 64],
        ["module", "", [64], 0, 64],
        ["ndarray", "<f8", [8], 0],
        ["ndarray", "<f8", [8], 0, 64, 1],
        ["ndarray", "<f8", [8.0], 0, 64],
        "ndarray",
    ],
    ids=str,
)
def test_a_segment_that_lies_is_refused(segment: Any) -> None:
    assert_malformed(payload([segment]))


@pytest.mark.parametrize(
    "unit",
    ["", *(f"[{unit}]" for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25us"))],
)
@pytest.mark.parametrize("kind", "mM")
def test_times_of_every_unit_that_numpy_has_arrive(kind: str, unit: str) -> None:
    sent = np.arange(3, dtype="<i8").view(f"<{kind}8{unit}")
    plan = plan_object(sent, Federation(), "name", "tag", [PARTY])
    whole = bytearray(plan.total_bytes)
    plan.write_into(memoryview(whole))

    assert b"ndarray" in whole
    found = load(whole)
    assert found.dtype == sent.dtype
    assert found.view("<i8").tolist() == [0, 1, 2]


TRUTH_VALUES = [("ndarray", "|b1"), ("tensor", "bool")]


@pytest.mark.parametrize(("kind", "dtype"), TRUTH_VALUES)
@pytest.mark.parametrize("at", [0, 37, 63])
@pytest.mark.parametrize("value", [2, 128, 255])
def test_truth_values_other_than_0_and_1_are_refused(kind: str, dtype: str, at: int, value: int) -> None:
    body = bytearray(64)
    body[at] = value
    assert_malformed(payload([[kind, dtype, [8, 8], 0, 64]], body=bytes(body)))


def test_a_single_truth_value_is_looked_at_too() -> None:
    assert_malformed(payload([["ndarray", "|b1", [], 0, 1]], body=b"\x02"))


@pytest.mark.parametrize(("kind", "dtype"), TRUTH_VALUES)
def test_honest_truth_values_come_as_they_are(kind: str, dtype: str) -> None:
    assert load(payload([[kind, dtype, [64], 0, 64]], body=b"\x00\x01" * 32)).tolist() == [False, True] * 32
    assert load(payload([[kind, dtype, [0, 3], 0, 0]], body=b"")).tolist() == []


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("_NumpySafeTensorPersistentId", safetensors.numpy.save({"n": np.zeros(8, np.bool_)})),
        ("_TorchSafeTensorPersistentId", safetensors.torch.save({"t": torch.zeros(8, dtype=torch.bool)})),
    ],
)
def test_truth_values_that_fate_pickles_its_own_way_are_looked_at_too(kind: str, content: bytes) -> None:
    def stream(content: bytes) -> bytes:
        return pickle.dumps(getattr(_serdes, kind)(content))[:-1] + pickle.BINPERSID + pickle.STOP

    assert load(payload([], stream(content), b"")).tolist() == [False] * 8
    assert_malformed(payload([], stream(content[:-1] + b"\x02"), b""))


DOUBLED = b"](" * 31 + b"K\x00" + (pickle.DUP + pickle.APPENDS) * 31
"""A list that NumPy would make an array of two thousand million items of."""


@pytest.mark.parametrize(
    "addition",
    [
        b")K\x07" + pickle.SETITEM,
        b"()K\x07" + pickle.SETITEMS,
        DOUBLED + b"K\x07" + pickle.SETITEM,
        b")" + DOUBLED + pickle.SETITEM,
        b"K\x07" + pickle.APPEND,
        b"(K\x07" + pickle.ADDITEMS,
    ],
    ids=["all", "all of many", "at a list without end", "from one", "append", "add"],
)
def test_nothing_is_written_into_an_array(addition: bytes) -> None:
    assert_malformed(payload([["ndarray", "<f8", [8], 0, 64]], b"\x80\x04K\x00Q" + addition + b"."))


@pytest.mark.parametrize(("kind", "dtype"), [*TRUTH_VALUES, ("bytes", ""), ("bytearray", "")])
def test_a_segment_that_is_named_again_and_again_is_restored_once(kind: str, dtype: str) -> None:
    first, *others = load(payload([[kind, dtype, [64], 0, 64]], b"\x80\x04](" + b"K\x00Q" * 100 + b"e."))
    assert all(other is first for other in others)
    assert len(others) == 99


def test_an_empty_array_of_absurd_dimensions_is_refused() -> None:
    assert_malformed(payload([["ndarray", "<f8", [0, 2**63], 0, 0]]))
    assert_malformed(payload([["tensor", "float64", [0, 2**63], 0, 0]]))


def test_segments_that_overlap_are_refused() -> None:
    assert_malformed(payload([["ndarray", "<f8", [16], 0, 128], ["ndarray", "<f8", [8], 64, 64]], body=bytes(128)))


@pytest.mark.parametrize("number", [1, -1, 2**31, 2**80])
def test_a_segment_number_that_is_not_in_the_table_is_refused(number: int) -> None:
    stream = b"\x80\x04" + pickle.dumps(number, 4)[2:-1] + b"Q."

    assert_malformed(payload([["ndarray", "<f8", [8], 0, 64]], stream))


@pytest.mark.parametrize(
    "stream",
    [b"", b".", b"\x80\x04", b"\x80\x63.", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x80\x04)R.", b"0" * 9],
    ids=repr,
)
def test_a_pickle_stream_that_is_garbage_is_refused(stream: bytes) -> None:
    assert_malformed(payload([], stream))


@pytest.mark.parametrize("value", [{"a": np.arange(40.0), "b": [b"x" * 70_000, np.zeros((3, 3))]}])
def test_every_truncation_and_every_flipped_byte_before_the_segments_is_refused_or_harmless(value: Any) -> None:
    plan = plan_object(value, Federation(), "name", "tag", [PARTY])
    whole = bytearray(plan.total_bytes)
    plan.write_into(memoryview(whole))
    prefix = len(whole) - 320 - 70_016 - 128

    for length in [*range(0, prefix, 7), len(whole) - 1]:
        assert_malformed(whole[:length])
    for at in range(prefix):
        broken = bytearray(whole)
        broken[at] ^= 0xFF
        # a flipped byte of the pickle stream may make another legal stream
        with contextlib.suppress(FateError):
            load(broken)


def test_the_segments_of_an_honest_table_may_be_left_unused() -> None:
    segments: Sequence[Any] = [["bytes", "", [64], 0, 64]]

    assert load(payload(segments, pickle.dumps("no segment"))) == "no segment"


def test_a_table_of_more_entries_than_its_length_can_hold_is_refused_before_it_is_decoded() -> None:
    entries = 200_000
    hostile = payload([["bytes", "", [0], 0, 0]] * entries)
    assert peak_bytes(lambda: assert_malformed(hostile)) < 4 * len(hostile)


@pytest.mark.parametrize(
    "entry",
    [["ndarray", "<f8", [1] * 1_000_000, 0, 64], ["ndarray", "x" * 1_000_000, [8], 0, 64]],
    ids=["shape", "dtype"],
)
def test_an_entry_longer_than_any_array_needs_is_refused_before_it_is_decoded(entry: list[Any]) -> None:
    hostile = payload([entry])
    assert peak_bytes(lambda: assert_malformed(hostile)) < 4 * len(hostile)


def test_the_densest_table_takes_little_more_memory_than_its_payload() -> None:
    count = 50_000
    dense = payload([["bytes", "", [1], 64 * number, 1] for number in range(count)], body=bytes(64 * (count - 1) + 1))
    assert peak_bytes(lambda: load(dense)) < 4 * len(dense)


def test_empty_arrays_each_begin_a_line_of_their_own() -> None:
    assert load(payload([["bytes", "", [0], 0, 0], ["bytes", "", [0], 64, 0]])) == b""
    assert_malformed(payload([["bytes", "", [0], 0, 0], ["bytes", "", [0], 0, 0]]))


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
