"""What may come as a datagram of the data path: short, tagged msgpack, perhaps lost. As strict as control frames."""

from __future__ import annotations

import msgspec

from fedrdma_fate.wire.frames import Delivered, Frame, Report, encode_frame, parse_message

DATAGRAM_BYTES = 4096
"""Most bytes of a datagram."""

PADDED_DATAGRAM_BYTES = 64 * 1024
"""What one may be stretched to on its way: what is behind DATAGRAM_BYTES is dropped on arrival."""


class PathProbe(Frame, frozen=True, tag="path-probe"):
    """One of a train of equal datagrams, whose spacing on arrival tells the rate of the path.

    Attributes:
        train: counts the trains of this data path.
        count: datagrams that it has.
        padding: makes the datagram as long as one may be.
    """

    train: int
    count: int
    padding: bytes


class PathProbeAnswer(Frame, frozen=True, tag="path-probe-answer"):
    """How a train arrived.

    Attributes:
        train: which one.
        arrivals: (datagrams, nanoseconds since the first): what was found to have come, each time that something was.
        held_ns: nanoseconds from the first arrival to this answer.
    """

    train: int
    arrivals: tuple[tuple[int, int], ...]
    held_ns: int


Datagram = Report | Delivered | PathProbe | PathProbeAnswer

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
    """An encoded PathProbe of DATAGRAM_BYTES."""
    empty = len(encode_datagram(PathProbe(train, count, bytes(256)))) - 256
    return encode_datagram(PathProbe(train, count, bytes(DATAGRAM_BYTES - empty)))
