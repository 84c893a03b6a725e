"""The header codec over all values, and over all single-byte damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind, decode_header

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    ChunkHeader,
    kind=st.sampled_from(HeaderKind),
    transfer=U64,
    total_bytes=U64,
    offset=U64,
    length=U64,
    digest=U64,
    index=U32,
    count=U32,
)


@given(HEADERS)
def test_every_header_comes_back_as_it_was(header: ChunkHeader) -> None:
    assert decode_header(header.encode()) == header


@given(HEADERS, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_any_single_damaged_byte_is_noticed(header: ChunkHeader, position: int, flip: int) -> None:
    raw = bytearray(header.encode())
    raw[position] ^= flip
    with pytest.raises(WireError) as caught:
        decode_header(bytes(raw))
    assert caught.value.code is ErrorCode.HEADER_CORRUPT


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_random_bytes_raise_nothing_but_a_wire_error(raw: bytes) -> None:
    with pytest.raises(WireError):
        decode_header(raw)
