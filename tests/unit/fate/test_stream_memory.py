"""Which streams the unpickler in C is given: those that it reads in memory bounded by their length."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest

from fedrdma_fate.fate.stream_memory import is_bounded

VALUES: list[Any] = [
    1,
    "rapper, per hour",
    {"r": [b"p", "q" * 300, b"r" * 7_000, (2**70, -1.5, None)], "again": list(range(1000))},
    [f"row {number} for r and p" for number in range(20_000)],
    bytearray(b"pr" * 5000),
    frozenset({"p", "r"}),
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_a_pickler_writes_is_bounded(value: Any, protocol: int) -> None:
    raw = pickle.dumps(value, protocol)
    assert is_bounded(raw)
    assert is_bounded(b"before" + raw + b"r\xff\xff\xff\xff", 6)


def long_index(index: int) -> bytes:
    return pickle.LONG_BINPUT + struct.pack("<I", index)


@pytest.mark.parametrize(
    "tail",
    [
        long_index(2**31 - 1),
        b"p99999999\n",
        b"p 9_999_999\n",
        b"X\x01\0\0\0r0" + long_index(2**24),
        b"ctorch\nFloatStorage\n" + long_index(2**24),
        b"\x95" + struct.pack("<Q", 6) + b"." * 0 + long_index(2**24) + b".",
    ],
)
def test_an_index_beyond_the_stream_is_not(tail: bytes) -> None:
    assert not is_bounded(b"\x80\x04K\x01" + tail + b".")


@pytest.mark.parametrize("before", [b"", b"K\x01" * 2000])
def test_a_bytearray_longer_than_the_stream_is_not(before: bytes) -> None:
    assert not is_bounded(b"\x80\x05" + before + pickle.BYTEARRAY8 + struct.pack("<Q", 2**40) + b"x.")


def test_a_frame_that_ends_within_an_opcode_is_not() -> None:
    """The unpickler in C drops what is left of such a frame, and goes on with other opcodes than are seen here."""
    frame = b"\x95" + struct.pack("<Q", 3)
    assert not is_bounded(b"\x80\x04" + frame + b"\x8c\x05rr" + b"rrr.")


def test_a_frame_within_a_frame_is_not() -> None:
    inner = b"\x95" + struct.pack("<Q", 2) + b"K\x01"
    assert not is_bounded(b"\x80\x04\x95" + struct.pack("<Q", len(inner) + 2) + inner + b"r.")


def test_what_follows_the_end_of_a_stream_does_not_count() -> None:
    assert is_bounded(b"\x80\x04K\x01." + long_index(2**31 - 1))


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_stream_that_was_cut_is_left_to_the_unpickler(cut: int) -> None:
    raw = b"\x80\x04K\x01X\x05\0\0\0rrrrr."
    assert is_bounded(raw[:cut])
