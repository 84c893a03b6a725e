"""What may come as a datagram of the data path: short, tagged msgpack, perhaps lost. As strict as control frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from fedrdma_fate.wire.frames import (
    Delivered,
    DigestRun,
    Frame,
    Grant,
    GrantRequest,
    GrantReturn,
    Offer,
    Report,
    Share,
    encode_frame,
    parse_message,
)

DATAGRAM_BYTES = 4096
"""Most bytes of a datagram, sealed."""

SEAL_BYTES = 24
"""What sealing adds to one: 8 of a counter before it, 16 of a tag behind it."""

PADDED_DATAGRAM_BYTES = 64 * 1024
"""What one may be stretched to on its way: what is behind DATAGRAM_BYTES is dropped on arrival."""


MOST_MOMENTS = 1024
"""Of an answer to a train; ours have 64 datagrams."""

_Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Of datagrams or nanoseconds: none is negative, and each is exact as a float."""


class PathProbe(Frame, frozen=True, tag="path-probe"):
    """One of a train of equal datagrams, whose spacing on arrival tells the rate of the path.

    Attributes:
        train: counts the trains of this data path.
        count: datagrams that it has.
        padding: makes the datagram as long as one may be.
    """

    train: int
    count: _Amount
    padding: bytes


class PathProbeAnswer(Frame, frozen=True, tag="path-probe-answer"):
    """How a train arrived.

    Attributes:
        train: which one.
        arrivals: (datagrams, nanoseconds since the first): what was found to have come, each time that something was.
        held_ns: nanoseconds from the first arrival to this answer.
    """

    train: int
    arrivals: Annotated[tuple[tuple[_Amount, _Amount], ...], msgspec.Meta(max_length=MOST_MOMENTS)]
    held_ns: _Amount


class TrainWanted(Frame, frozen=True, tag="train-wanted"):
    """Asks for a train at once, which those of other peers are to meet at the link of who asks.

    Attributes:
        number: counts those of this data path; one that is not above the latest is late.
        count: datagrams that it may have.
    """

    number: _Amount
    count: _Amount


class PathEcho(Frame, frozen=True, tag="path-echo"):
    """Asks for one answer: whether messages come at all.

    Attributes:
        number: counts those of this data path, with the long ones.
    """

    number: int


class PathLongEcho(Frame, frozen=True, tag="path-long-echo"):
    """Asks for one answer: whether long messages come as short ones do. It may be stretched on its way.

    Attributes:
        number: counts with those of PathEcho.
        padding: makes the datagram as long as one may be: of a shorter one nothing may be behind.
    """

    number: int
    padding: bytes


class PathEchoAnswer(Frame, frozen=True, tag="path-echo-answer"):
    """It has come.

    Attributes:
        number: that of the echo.
    """

    number: int


class Header(Frame, frozen=True, tag="header"):
    """The header of a `fedrdma-x` transfer, which goes by the reliable queue pair where there are no datagrams.

    Repeated until the transfer is delivered. A reliable queue pair takes a quarter of a second to repeat a lost packet
    that nothing follows.

    Attributes:
        grant: the transfer's.
        raw: HEADER_BYTES.
    """

    grant: int
    raw: bytes


Datagram = (
    Report
    | Delivered
    | DigestRun
    | Offer
    | Grant
    | GrantRequest
    | GrantReturn
    | Share
    | Header
    | PathProbe
    | PathProbeAnswer
    | TrainWanted
    | PathEcho
    | PathLongEcho
    | PathEchoAnswer
)
"""Delivered, DigestRun, Offer, Grant, GrantRequest, GrantReturn and Share come by frames, too, before or after."""

_decoder: msgspec.msgpack.Decoder[Datagram] = msgspec.msgpack.Decoder(Datagram)


def encode_datagram(datagram: Datagram) -> bytes:
    """The datagram as msgpack bytes."""
    return encode_frame(datagram)


def decode_datagram(raw: bytes) -> Datagram:
    """Parse one datagram.

    Raises:
        WireError: MALFORMED_FRAME when the bytes are not one that is known, and complete.
    """
    return parse_message(_decoder, raw, "datagram")


def padded_probe(train: int, count: int) -> bytes:
    """An encoded PathProbe that has DATAGRAM_BYTES when it is sealed."""
    return encode_datagram(PathProbe(train, count, _padding(lambda padding: PathProbe(train, count, padding))))


def long_echo(number: int) -> PathLongEcho:
    """A PathLongEcho that has DATAGRAM_BYTES when it is sealed."""
    return PathLongEcho(number, _padding(lambda padding: PathLongEcho(number, padding)))


def _padding(padded: Callable[[bytes], Datagram]) -> bytes:
    """What makes a datagram have DATAGRAM_BYTES when it is sealed."""
    # msgpack heads 256 bytes as it does all up to 64 KiB
    some = bytes(256)
    return bytes(DATAGRAM_BYTES - SEAL_BYTES - len(encode_datagram(padded(some))) + len(some))
