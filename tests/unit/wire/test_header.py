"""The chunk header on the wire."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import pytest

from fedrdma_fate.wire.errors import ErrorCode, WireError
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind, decode_header, header_present

HEADER = ChunkHeader(HeaderKind.CHUNK, 7, 10_000_000, 4_194_304, 4_194_304, 0x1122334455667788, 1, 3)


def with_fresh_check(raw: bytes) -> bytes:
    return raw[:-4] + struct.pack("<I", zlib.crc32(raw[:-4]))


def test_a_header_takes_64_bytes_and_starts_with_the_magic() -> None:
    raw = HEADER.encode()
    assert len(raw) == HEADER_BYTES == 64
    assert raw[:4] == b"FRDM"


def test_the_layout_on_the_wire_is_frozen() -> None:
    start = "4652444d020100000700000000000000809698000000000000004000000000000000400000000000"
    assert HEADER.encode()[:56].hex() == start + "88776655443322110100000003000000"


def test_a_header_is_read_from_a_memoryview_of_a_larger_slot() -> None:
    slot = memoryview(bytearray(HEADER.encode() + b"x" * 100))
    assert decode_header(slot) == HEADER
    assert header_present(slot)


@pytest.mark.parametrize("length", [0, 3, 4, 63])
def test_a_piece_of_a_header_is_neither_present_nor_valid(length: int) -> None:
    piece = HEADER.encode()[:length]
    assert not header_present(piece)
    with pytest.raises(WireError) as caught:
        decode_header(piece)
    assert caught.value.code is ErrorCode.HEADER_CORRUPT


def test_a_cleared_header_space_shows_no_header() -> None:
    assert not header_present(bytes(HEADER_BYTES))


def test_a_half_landed_header_is_present_but_not_valid() -> None:
    torn = HEADER.encode()[:32] + bytes(32)
    assert header_present(torn)
    with pytest.raises(WireError):
        decode_header(torn)


def test_another_protocol_version_is_told_from_damage() -> None:
    raw = bytearray(HEADER.encode())
    raw[4] = 3
    with pytest.raises(WireError) as caught:
        decode_header(with_fresh_check(bytes(raw)))
    assert caught.value.code is ErrorCode.PROTOCOL_VERSION
    assert "same fedrdma-fate version" in caught.value.remedy


def test_an_unknown_kind_is_refused_even_with_a_right_check() -> None:
    raw = bytearray(HEADER.encode())
    raw[5] = 9
    with pytest.raises(WireError, match="unknown kind 9") as caught:
        decode_header(with_fresh_check(bytes(raw)))
    assert caught.value.code is ErrorCode.HEADER_CORRUPT


def test_the_largest_values_fit() -> None:
    extreme = dataclasses.replace(HEADER, transfer=2**64 - 1, total_bytes=2**64 - 1, digest=2**64 - 1, index=2**32 - 1)
    assert decode_header(extreme.encode()) == extreme
