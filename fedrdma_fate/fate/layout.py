"""How an object lies in a slot: header, segment table, pickle stream, then the raw segments, each 64-byte aligned."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from fedrdma_fate.fate.malformed import malformed, refuse
from fedrdma_fate.wire.summand import ALIGNMENT_BYTES, MOST_DIMENSIONS

MAGIC = b"FRPO"
FORMAT_VERSION = 1

# magic, version, reserved, table bytes, pickle bytes, total bytes, CRC-32 of the fields before it and of the table
_FIELDS = struct.Struct("<4sHHQQQ")
_CHECK = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CHECK.size

_MOST_DTYPE_CHARACTERS = 32
"""Of a name of a dtype: `<M8[999999999ms]` has 17."""

SegmentKind = Literal["ndarray", "tensor", "bytes", "bytearray"]
_Natural = Annotated[int, msgspec.Meta(ge=0)]


class Segment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One raw buffer.

    Attributes:
        kind: what it becomes again.
        dtype: NumPy's `dtype.str` for an ndarray, the dtype's name for a tensor, else empty.
        shape: dimensions; of bytes and bytearrays, their length alone.
        offset: where it starts, bytes behind the start of the segments.
        length: bytes.
    """

    kind: SegmentKind
    dtype: Annotated[str, msgspec.Meta(max_length=_MOST_DTYPE_CHARACTERS)]
    shape: Annotated[tuple[_Natural, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]
    offset: _Natural
    length: _Natural

    @property
    def next_offset(self) -> int:
        """Where the next one may start: each begins a line of its own, also behind an empty one."""
        return align(self.offset + max(self.length, 1))


class ObjectView(msgspec.Struct, frozen=True):
    """An object as it was found in a buffer.

    Attributes:
        stream: the pickle stream.
        segments: the segment table.
        raw: the buffer from the start of the segments on.
    """

    stream: memoryview
    segments: tuple[Segment, ...]
    raw: memoryview

    def body(self, number: int) -> memoryview:
        """A view of one segment."""
        segment = self.segments[number]
        return self.raw[segment.offset : segment.offset + segment.length]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Segment, ...])


def align(offset: int) -> int:
    """The next multiple of ALIGNMENT_BYTES."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def encode_prefix(segments: Sequence[Segment], stream: bytes | memoryview) -> bytes:
    """Everything in front of the segments, padded to where they start."""
    table = _encoder.encode(segments)
    segments_at = align(HEADER_BYTES + len(table) + len(stream))
    total = segments_at + (segments[-1].offset + segments[-1].length if segments else 0)
    fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, 0, len(table), len(stream), total)
    padding = bytes(segments_at - HEADER_BYTES - len(table) - len(stream))
    return b"".join((fields, _CHECK.pack(_checksum(fields, table)), table, stream, padding))


def decode_object(buffer: memoryview) -> ObjectView:
    """Take a buffer apart; nothing is copied but the table.

    Raises:
        FateError: PAYLOAD_MALFORMED when anything does not lie inside the buffer or does not add up.
    """
    fields = bytes(buffer[: _FIELDS.size])
    if len(buffer) < HEADER_BYTES:
        raise malformed(f"{len(buffer)} bytes are less than a header")
    magic, version, _reserved, table_bytes, stream_bytes, total = _FIELDS.unpack(fields)
    if magic != MAGIC:
        raise malformed(f"it starts with {magic!r}, not {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise malformed(f"it has format {version}, known is {FORMAT_VERSION}")
    stream_at = HEADER_BYTES + table_bytes
    if total != len(buffer) or stream_at + stream_bytes > total:
        raise malformed(f"its lengths do not fit the {len(buffer)} bytes that came")
    table = bytes(buffer[HEADER_BYTES:stream_at])
    if _CHECK.unpack_from(buffer, _FIELDS.size)[0] != _checksum(fields, table):
        raise malformed("header and table do not match their CRC-32")
    raw = buffer[align(stream_at + stream_bytes) :]
    segments = _decode_table(table, most=1 + len(raw) // ALIGNMENT_BYTES)
    _check_segments(segments, len(raw))
    return ObjectView(buffer[stream_at : stream_at + stream_bytes], segments, raw)


def _checksum(fields: bytes, table: bytes) -> int:
    return zlib.crc32(table, zlib.crc32(fields))


def _decode_table(table: bytes, most: int) -> tuple[Segment, ...]:
    # before it is decoded: an entry of 12 bytes takes 20 times as many
    if _length_of_array(table) > most:
        raise malformed(f"its segment table has more entries than the {most} that there can be in its length")
    try:
        return _decoder.decode(table)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        refuse("its segment table does not parse", error)


def _length_of_array(packed: bytes) -> int:
    """How many entries an array of msgpack says it has, 0 where it is none (msgpack specification, array format)."""
    first = packed[0] if packed else 0
    if first >> 4 == 0b1001:
        return first & 0b1111
    width = {0xDC: 2, 0xDD: 4}.get(first, 0)
    return int.from_bytes(packed[1 : 1 + width], "big")


def _check_segments(segments: Sequence[Segment], raw_bytes: int) -> None:
    free_from = 0
    for index, segment in enumerate(segments):
        start = segment.offset
        if start < free_from or start % ALIGNMENT_BYTES or start + segment.length > raw_bytes:
            raise malformed(f"segment {index} overlaps another, is not aligned or leaves the buffer")
        free_from = segment.next_offset
