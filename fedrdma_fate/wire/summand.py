"""What makes a masked update a summand: a footer at its end, by which it can be added without its pickle.

An update is a list of pairs of float64 arrays, in FATE's words the fraction and the whole numbers of each parameter
array, and a weight. Its planes (each one of those arrays) lie one behind the other, each beginning at a multiple of 64
bytes, in their order; the footer follows as the next in line. So the shapes say where each plane lies, and nothing has
to be believed of where anything is. From the end of the payload backwards:

    magic "FRSU" (4 bytes), version (2), zero (2), length of the description (4), CRC-32 of the description (4)
    description: msgpack, `Summand`
    planes
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from fedrdma_fate.wire.frames import MOST_PARTIES, Party

ALIGNMENT_BYTES = 64
"""Where an array of an object in a slot may begin: a cache line, and the longest vector of a processor (AVX-512)."""

ITEM_BYTES = 8
"""Of a float64."""

MAGIC = b"FRSU"
VERSION = 1
_END = struct.Struct("<4sHHII")
"""Of the footer, little-endian."""

MOST_DESCRIPTION_BYTES = 1024 * 1024
"""It takes some ten bytes for each array."""

MOST_ARRAYS = 16384
"""A model has some hundred parameter arrays, the largest language models some thousand."""

MOST_ITEMS = 2**48
"""That an array may have if none of its dimensions were 0: of more NumPy makes none, be it empty."""

MOST_DIMENSIONS = 32
"""That NumPy 1 knows of an array."""

END_BYTES = _END.size
"""By which a footer is found."""

_Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
Shape = Annotated[tuple[_Dimension, ...], msgspec.Meta(max_length=MOST_DIMENSIONS)]


class NoSummandError(Exception):
    """A payload is no summand, and why."""


class Summand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a footer says.

    Attributes:
        parties: whose updates are in it.
        weight: by FATE's weighting; None where the parties send none.
        shapes: of the parameter arrays; each has two planes.
    """

    parties: Annotated[tuple[Party, ...], msgspec.Meta(min_length=1, max_length=MOST_PARTIES)]
    weight: float | None
    shapes: Annotated[tuple[Shape, ...], msgspec.Meta(min_length=1, max_length=MOST_ARRAYS)]


class Plane(msgspec.Struct, frozen=True):
    """One plane.

    Attributes:
        offset: where it begins, bytes from the first plane on.
        items: how many float64 it has.
        whole: whether it is the whole numbers, not the fractions.
    """

    offset: int
    items: int
    whole: bool


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Summand)


def encode_footer(summand: Summand) -> bytes:
    """The footer.

    Raises:
        NoSummandError: it would be longer than MOST_DESCRIPTION_BYTES.
    """
    description = _encoder.encode(summand)
    if len(description) > MOST_DESCRIPTION_BYTES:
        raise NoSummandError(f"a description of {len(description)} bytes")
    return description + _END.pack(MAGIC, VERSION, 0, len(description), zlib.crc32(description))


def footer_bytes(end: bytes) -> int:
    """How long the footer is, given the last END_BYTES of a payload.

    Raises:
        NoSummandError: it has none.
    """
    if len(end) != END_BYTES or end[: len(MAGIC)] != MAGIC:
        raise NoSummandError("it has no footer")
    length = int(_END.unpack(end)[3])
    if length > MOST_DESCRIPTION_BYTES:
        raise NoSummandError(f"its footer says that it has {length} bytes")
    return END_BYTES + length


def decode_footer(end: bytes | memoryview, total_bytes: int) -> tuple[Summand, int]:
    """What the footer says, and where in the payload the first plane begins.

    Args:
        end: the end of the payload, as much as `footer_bytes` says, or more.
        total_bytes: length of the payload.

    Raises:
        NoSummandError: it is none, or not one that can be right.
    """
    if len(end) < _END.size:
        raise NoSummandError("it has no footer")
    magic, version, _zero, length, checksum = _END.unpack(end[len(end) - _END.size :])
    if magic != MAGIC:
        raise NoSummandError("it has no footer")
    if version != VERSION:
        raise NoSummandError(f"its footer has version {version}, known is {VERSION}")
    if length > len(end) - _END.size:
        raise NoSummandError("its footer is longer than itself")
    description = bytes(end[len(end) - _END.size - length : len(end) - _END.size])
    if zlib.crc32(description) != checksum:
        raise NoSummandError("its footer does not match its CRC-32")
    try:
        summand = _decoder.decode(description)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoSummandError("its footer does not parse") from error
    if summand.weight is not None and not (math.isfinite(summand.weight) and summand.weight >= 0):
        raise NoSummandError(f"its weight is {summand.weight}")
    if any(math.prod(max(dimension, 1) for dimension in shape) > MOST_ITEMS for shape in summand.shapes):
        raise NoSummandError("there are no arrays of such shapes")
    first = total_bytes - _END.size - length - planes_bytes(summand.shapes)
    if first < 0 or first % ALIGNMENT_BYTES:
        raise NoSummandError("its arrays do not lie inside it")
    return summand, first


def planes_of(shapes: Sequence[Shape]) -> Iterator[Plane]:
    """The planes of arrays of these shapes, in their order."""
    at = 0
    for shape in shapes:
        items = math.prod(shape)
        for whole in (False, True):
            yield Plane(at, items, whole)
            at = next_line(at + max(items * ITEM_BYTES, 1))


def planes_bytes(shapes: Sequence[Shape]) -> int:
    """From the first plane to what follows the last one."""
    return sum(2 * next_line(max(math.prod(shape) * ITEM_BYTES, 1)) for shape in shapes)


def next_line(offset: int) -> int:
    """The first multiple of ALIGNMENT_BYTES from here on."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
