"""Targets: what peers say by control frames, datagrams and headers, and tasks and gateways to each other."""

from __future__ import annotations

import typing
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from fedrdma_fate.client.protocol import (
    LENGTH_PREFIX,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_message,
    frame_length,
)
from fedrdma_fate.security.datagram_tags import (
    DATAGRAM_KEY_BYTES,
    DatagramOpener,
    DatagramSealer,
    ForgedDatagramError,
    ReplayedDatagramError,
)
from fedrdma_fate.wire.datagrams import Datagram, decode_datagram, encode_datagram
from fedrdma_fate.wire.errors import WireError
from fedrdma_fate.wire.frames import ControlFrame, Party, decode_frame, encode_frame
from fedrdma_fate.wire.header import HEADER_BYTES, ChunkHeader, HeaderKind, decode_header
from fedrdma_fate.wire.sealed import INTRODUCTION_BYTES, Introduction, unpack_introduction
from fedrdma_fate.wire.site_sum import (
    SITE_SUM_END_BYTES,
    Part,
    SiteSum,
    decode_site_sum,
    encode_site_sum,
    site_sum_footer_bytes,
)
from fedrdma_fate.wire.summand import (
    END_BYTES,
    NoSummandError,
    Summand,
    decode_footer,
    encode_footer,
    footer_bytes,
    planes_bytes,
    planes_of,
)
from tests.fuzz.target import Target, require

_SCALARS: dict[Any, Any] = {bool: True, int: 2**40, float: 0.25, str: "guest", bytes: b"\x01\x02\x03\x04"}


def example(hint: Any) -> Any:
    """A value of a field's type, with every list and table filled."""
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return (example(arguments[0]),) * 2 if arguments[-1] is ... else tuple(map(example, arguments))
    if origin is dict:
        return {example(arguments[0]): example(arguments[1])}
    if arguments:
        return example(arguments[0])
    hints = typing.get_type_hints(hint)
    return hint(**{field.name: example(hints[field.name]) for field in msgspec.structs.fields(hint)})


def _codec(name: str, union: Any, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Target:
    def read(data: bytes) -> bool:
        value = decode(data)
        again = encode(value)
        # compared as bytes: a number that is none is equal to nothing
        require(encode(decode(again)) == again, "what was decoded does not come back as it was")
        return True

    return Target(name, [encode(example(kind)) for kind in typing.get_args(union)], read, (WireError,))


def frames() -> Target:
    """Control frames."""
    return _codec("frames", ControlFrame, decode_frame, encode_frame)


def datagrams() -> Target:
    """Datagrams of a data path, once their tag was right."""
    return _codec("datagrams", Datagram, decode_datagram, encode_datagram)


def sealed_datagrams() -> Target:
    """Datagrams as they come: nothing but what the peer has sealed gets by the tag."""
    key = bytes(DATAGRAM_KEY_BYTES)
    sealer = DatagramSealer(key)
    seeds = [sealer.seal(encode_datagram(example(kind))) for kind in typing.get_args(Datagram)]

    def read(data: bytes) -> bool:
        body = DatagramOpener(key).open(data)
        require(data in seeds, "a datagram that nobody has sealed was opened")
        decode_datagram(body)
        return True

    return Target("sealed-datagrams", seeds, read, (ForgedDatagramError, ReplayedDatagramError, WireError))


def headers() -> Target:
    """The header beside the data, and the introduction of sealed records."""
    seeds = [ChunkHeader(kind, 7, 2**40, 2**20, 2**20, 2**63, 1, 2**20).encode() for kind in HeaderKind]

    def read(data: bytes) -> bool:
        if len(data) == INTRODUCTION_BYTES:
            require(unpack_introduction(data).pack() == data, "an introduction does not come back as it was")
        header = decode_header(data)
        require(decode_header(header.encode()) == header, "a header does not come back as it was")
        return True

    def repair(data: bytes) -> bytes:
        body = data[: HEADER_BYTES - 4].ljust(HEADER_BYTES - 4, b"\0")
        return body + zlib.crc32(body).to_bytes(4, "little")

    return Target("headers", [*seeds, Introduction(7, 1, bytes(32)).pack()], read, (WireError,), repair)


def summands() -> Target:
    """The footer of a masked update."""
    shapes = [((3, 2), (), (0,)), ((5,),) * 3]
    seeds = [
        bytes(planes_bytes(each)) + encode_footer(Summand((Party("guest", "1"),), weight, each))
        for each in shapes
        for weight in (0.5, None)
    ]

    def read(data: bytes) -> bool:
        length = footer_bytes(data[-END_BYTES:])
        summand, first = decode_footer(data[-length:], len(data))
        planes = list(planes_of(summand.shapes))
        last = planes[-1]
        require(first + last.offset + 8 * last.items <= len(data) - length, "a plane leaves the payload")
        footer = encode_footer(summand)
        again, _ = decode_footer(footer, first + planes_bytes(summand.shapes) + len(footer))
        require(again == summand, "a footer does not come back as it was")
        return True

    def repair(data: bytes) -> bytes:
        """Everything in it is a description."""
        planes, description = data[: len(data) // 128 * 64], data[len(data) // 128 * 64 :]
        checked = len(description).to_bytes(4, "little") + zlib.crc32(description).to_bytes(4, "little")
        return planes + description + b"FRSU\x01\0\0\0" + checked

    return Target("summands", seeds, read, (NoSummandError,), repair)


def site_sums() -> Target:
    """The footer of the sum of a site."""
    shapes = [((3, 2), (), (0,)), ((5,),) * 3]
    parties = Party("guest", "1"), Party("host", "2")
    seeds = [
        bytes(planes_bytes(each))
        + encode_site_sum(SiteSum(4, tuple(Part(party, weight, 7) for party in parties), each))
        for each in shapes
        for weight in (0.5, None)
    ]

    def read(data: bytes) -> bool:
        length = site_sum_footer_bytes(data[-SITE_SUM_END_BYTES:])
        site_sum, first = decode_site_sum(data[-length:], len(data))
        last = list(planes_of(site_sum.shapes))[-1]
        require(first + last.offset + 8 * last.items <= len(data) - length, "a plane leaves the payload")
        footer = encode_site_sum(site_sum)
        again, _ = decode_site_sum(footer, first + planes_bytes(site_sum.shapes) + len(footer))
        require(again == site_sum, "a footer does not come back as it was")
        return True

    def repair(data: bytes) -> bytes:
        """Everything in it is a description."""
        planes, description = data[: len(data) // 128 * 64], data[len(data) // 128 * 64 :]
        checked = len(description).to_bytes(4, "little") + zlib.crc32(description).to_bytes(4, "little")
        return planes + description + b"FRSS\x01\0\0\0" + checked

    return Target("site-sums", seeds, read, (NoSummandError,), repair)


def task_socket() -> Target:
    """What a task and its gateway send each other, lengths included."""

    def seeds(union: Any) -> list[bytes]:
        return [encode_message(example(kind)) for kind in typing.get_args(union)]

    def read(data: bytes) -> bool:
        size = LENGTH_PREFIX.size
        if len(data) < size:
            return False
        body = data[size : size + frame_length(data[:size])]
        taken = False
        for decode in (decode_request, decode_reply):
            try:
                message = decode(body)
            except WireError:
                continue
            taken = True
            again = encode_message(message)
            require(encode_message(decode(again[size:])) == again, "a message does not come back as it was")
        return taken

    def repair(data: bytes) -> bytes:
        return LENGTH_PREFIX.pack(len(data[4:])) + data[4:]

    return Target("task-socket", [*seeds(Request), *seeds(Reply)], read, (WireError,), repair)
