"""The 64-byte header that travels by RDMA write beside the data (paper, sections 3.1 and 3.2).

In `fedrdma` one precedes each chunk; in `fedrdma-e` a single one is written behind chunk 1, last of all.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import zlib

from fedrdma_fate.wire.errors import ErrorCode, WireError

HEADER_BYTES = 64
"""One cache line; 60 bytes are used."""

MAGIC = 0x4D445246
"""`FRDM`, read as little-endian: no header is there while a slot holds something else, or zeros."""

PROTOCOL_VERSION = 2
"""Counts the formats of this header and of the control frames; two sites with different ones do not talk."""

_FIELDS = struct.Struct("<IBBHQQQQQII")
"""Magic, version, kind, flags, transfer, total, offset, length, digest, index, count."""

_CHECK = struct.Struct("<I")
"""CRC-32 of all before it."""

_PADDING = bytes(HEADER_BYTES - _FIELDS.size - _CHECK.size)
"""Zeros between the two."""


class HeaderKind(enum.IntEnum):
    """What a header speaks for."""

    CHUNK = 1
    PAYLOAD = 2


@dataclasses.dataclass(frozen=True, slots=True)
class ChunkHeader:
    """Header of one chunk, or of a whole payload.

    Attributes:
        kind: CHUNK (digest is the chunk's) or PAYLOAD (digest combines all chunks').
        transfer: id of the transfer, unique between two gateways.
        total_bytes: length of the whole payload.
        offset: where this chunk starts in the payload, bytes; 0 for PAYLOAD.
        length: bytes this header speaks for.
        digest: xxh3-64 of the chunk, or of the chunk digests in index order as little-endian u64.
        index: position of the chunk in the payload, from 0.
        count: number of chunks in the payload.
    """

    kind: HeaderKind
    transfer: int
    total_bytes: int
    offset: int
    length: int
    digest: int
    index: int
    count: int

    def encode(self) -> bytes:
        """The header as HEADER_BYTES bytes, its own CRC-32 in the last four."""
        fields = _FIELDS.pack(
            MAGIC,
            PROTOCOL_VERSION,
            int(self.kind),
            0,
            self.transfer,
            self.total_bytes,
            self.offset,
            self.length,
            self.digest,
            self.index,
            self.count,
        )
        body = fields + _PADDING
        return body + _CHECK.pack(zlib.crc32(body))


def header_present(raw: bytes | memoryview) -> bool:
    """Whether a receive region starts with the magic: what `notify: poll` looks at."""
    return len(raw) >= HEADER_BYTES and int.from_bytes(raw[:4], "little") == MAGIC


def decode_header(raw: bytes | memoryview) -> ChunkHeader:
    """Parse HEADER_BYTES bytes.

    Raises:
        WireError: HEADER_CORRUPT when the length, magic, CRC or kind is wrong; PROTOCOL_VERSION for another version.
    """
    data = bytes(raw[:HEADER_BYTES])
    if len(data) != HEADER_BYTES:
        raise WireError(ErrorCode.HEADER_CORRUPT, f"a chunk header has {HEADER_BYTES} bytes, {len(data)} came.")
    magic, version, kind, _flags, transfer, total, offset, length, digest, index, count = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise WireError(ErrorCode.HEADER_CORRUPT, f"chunk header starts with {magic:#010x}, not {MAGIC:#010x}.")
    (check,) = _CHECK.unpack_from(data, HEADER_BYTES - _CHECK.size)
    if check != zlib.crc32(data[: -_CHECK.size]):
        raise WireError(ErrorCode.HEADER_CORRUPT, "chunk header does not match its CRC-32.")
    if version != PROTOCOL_VERSION:
        raise WireError(
            ErrorCode.PROTOCOL_VERSION,
            f"peer speaks protocol {version}, this gateway {PROTOCOL_VERSION}.",
            "Run the same fedrdma-fate version on both sides.",
        )
    if kind not in (HeaderKind.CHUNK, HeaderKind.PAYLOAD):
        raise WireError(ErrorCode.HEADER_CORRUPT, f"chunk header of unknown kind {kind}.")
    return ChunkHeader(HeaderKind(kind), transfer, total, offset, length, digest, index, count)
