"""The sum of some parties of a site, as it travels: planes as those of an update, and a footer that says whose it is.

Fractions are 64-bit integers, for it was not finished (`aggregate/arithmetic.py`, `Exact`). The footer ends as that of
a summand does, but for its magic, so that neither can be taken for the other:

    magic "FRSS" (4 bytes), version (2), zero (2), length of the description (4), CRC-32 of the description (4)
    description: msgpack, `SiteSum`
    planes
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Annotated

import msgspec

from fedrdma_fate.wire.frames import MOST_NAME_CHARACTERS, MOST_PARTIES, MessageKey, Party, SumOrder
from fedrdma_fate.wire.summand import (
    ALIGNMENT_BYTES,
    MOST_ARRAYS,
    MOST_DESCRIPTION_BYTES,
    MOST_ITEMS,
    NoSummandError,
    Shape,
    planes_bytes,
)

SITE_SUM_MAGIC = b"FRSS"
SITE_SUM_VERSION = 1
_END = struct.Struct("<4sHHII")
"""Of the footer, little-endian."""

SITE_SUM_END_BYTES = _END.size
"""By which a footer is found."""

_NAME_SUFFIX = " (sum of a site)"
"""Behind the name of the messages that are in it: no name of a task's has that."""

NEXT_TAG = " (next)"
"""Tag of an order that is placed before one knows the tag of what is to be summed: of the next one under its name."""

MOST_TRANSFER = 1 << 62
"""Numbers of transfers begin below 2**52."""

_TransferId = Annotated[int, msgspec.Meta(ge=0, le=MOST_TRANSFER)]


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One party's update in a sum.

    Attributes:
        party: whose.
        weight: by FATE's weighting; None where the parties send none.
        transfer: by which it would go alone.
    """

    party: Party
    weight: float | None
    transfer: _TransferId


class SiteSum(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a footer says.

    Attributes:
        parties: how many the whole sum has, by which its fractions have so many bits behind the point.
        parts: what is in it.
        shapes: of the parameter arrays; each has two planes.
    """

    parties: int
    parts: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=MOST_PARTIES)]
    shapes: Annotated[tuple[Shape, ...], msgspec.Meta(min_length=1, max_length=MOST_ARRAYS)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SiteSum)


def site_sum_key(session: str, name: str, tag: str, source: Party, destination: Party) -> MessageKey | None:
    """The message in which the sum of a site travels; None where its name would be too long.

    Args:
        session: of the messages that are in it, as are `name`, `tag` and `destination`.
        name: see there.
        tag: see there.
        source: the first party that was asked for, be it in the sum or not.
        destination: see there.
    """
    longer = name + _NAME_SUFFIX
    return None if len(longer) > MOST_NAME_CHARACTERS else MessageKey(session, longer, tag, source, destination)


def key_of_order(order: SumOrder) -> MessageKey | None:
    """The message in which a sum travels that is ordered; None where its name would be too long."""
    return site_sum_key(order.session, order.name, order.tag, order.sources[0], order.destination)


def is_site_sum(key: MessageKey) -> bool:
    """Whether a message is a sum of a site, by its name."""
    return key.name.endswith(_NAME_SUFFIX)


def encode_site_sum(site_sum: SiteSum) -> bytes:
    """The footer.

    Raises:
        NoSummandError: it would be longer than MOST_DESCRIPTION_BYTES.
    """
    description = _encoder.encode(site_sum)
    if len(description) > MOST_DESCRIPTION_BYTES:
        raise NoSummandError(f"a description of {len(description)} bytes")
    return description + _END.pack(SITE_SUM_MAGIC, SITE_SUM_VERSION, 0, len(description), zlib.crc32(description))


def site_sum_footer_bytes(end: bytes) -> int:
    """How long the footer is, given the last SITE_SUM_END_BYTES of a payload.

    Raises:
        NoSummandError: it has none.
    """
    if len(end) != SITE_SUM_END_BYTES or end[: len(SITE_SUM_MAGIC)] != SITE_SUM_MAGIC:
        raise NoSummandError("it has no footer of a sum")
    length = int(_END.unpack(end)[3])
    if length > MOST_DESCRIPTION_BYTES:
        raise NoSummandError(f"its footer says that it has {length} bytes")
    return SITE_SUM_END_BYTES + length


def decode_site_sum(end: bytes, total_bytes: int) -> tuple[SiteSum, int]:
    """What the footer says, and where in the payload the first plane begins.

    Args:
        end: the footer, as long as `site_sum_footer_bytes` says.
        total_bytes: length of the payload.

    Raises:
        NoSummandError: it is none, or not one that can be right.
    """
    if len(end) < SITE_SUM_END_BYTES:
        raise NoSummandError("it has no footer of a sum")
    magic, version, _zero, length, checksum = _END.unpack(end[-SITE_SUM_END_BYTES:])
    if magic != SITE_SUM_MAGIC or version != SITE_SUM_VERSION:
        raise NoSummandError(f"its footer is {magic!r}, version {version}")
    description = end[:-SITE_SUM_END_BYTES]
    if len(description) != length or zlib.crc32(description) != checksum:
        raise NoSummandError("its footer does not match its length and CRC-32")
    try:
        site_sum = _decoder.decode(description)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoSummandError("its footer does not parse") from error
    weights = [part.weight for part in site_sum.parts if part.weight is not None]
    if any(not (math.isfinite(weight) and weight >= 0) for weight in weights):
        raise NoSummandError("a weight in it is none")
    if weights and len(weights) != len(site_sum.parts):
        raise NoSummandError("some parties in it have a weight, others have none")
    if len({part.party for part in site_sum.parts}) != len(site_sum.parts):
        raise NoSummandError("it names a party twice")
    if any(math.prod(max(dimension, 1) for dimension in shape) > MOST_ITEMS for shape in site_sum.shapes):
        raise NoSummandError("there are no arrays of such shapes")
    first = total_bytes - SITE_SUM_END_BYTES - length - planes_bytes(site_sum.shapes)
    if first < 0 or first % ALIGNMENT_BYTES:
        raise NoSummandError("its arrays do not lie inside it")
    return site_sum, first
