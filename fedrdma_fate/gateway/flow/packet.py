"""The packet in which FATE Flow puts a scheduling call for OSX: `Packet` of FATE's proxy.proto, in Protocol Buffers.

Read and written here, as far as scheduling uses it: a gateway need not run where FATE is installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

from fedrdma_fate.gateway.flow.call import Answer, SchedulingCall, carried, refused
from fedrdma_fate.wire.errors import GatewayError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Types of fields on the wire; the others are none of proto3."""

_MOST_VARINT_BYTES = 10
"""Of 64 bits, 7 in each."""

MOST_FIELDS = 32
"""Of a message: those that are read here have up to nine, and each is looked at in Python."""

_HEADER, _BODY = 1, 2
"""Of Packet."""

_TASK, _SOURCE, _DESTINATION, _OPERATOR = 1, 2, 3, 5
"""Of its header, Metadata: what has the HTTP headers, two topics, and the HTTP method."""

_MODEL, _DATA_KEY, _PARTY_ID, _ROLE = 2, 2, 2, 3
"""Of Task, of Model, and of Topic."""

_KEY, _VALUE = 1, 2
"""Of the body, Data: the path, and the JSON."""

FLOW_ROLE = "fateflow"
"""Of the topic that a scheduling call is for."""

Raw = TypeVar("Raw", bytes, memoryview)
"""What is parsed: parts of it are of the same type, so those of a memoryview are no copies."""


def call_of(packet: bytes, further_headers: Sequence[str] = ()) -> SchedulingCall:
    """The call that a packet holds. Its source is not looked at: FATE Flow puts the destination there.

    Raises:
        GatewayError: CALL_REFUSED.
    """
    header, body = parts(packet, _HEADER, _BODY)
    task, destination, operator = parts(header, _TASK, _DESTINATION, _OPERATOR)
    party_id, role = parts(destination, _PARTY_ID, _ROLE)
    (model,) = parts(task, _MODEL)
    (data_key,) = parts(model, _DATA_KEY)
    path, value = parts(body, _KEY, _VALUE)
    if _text(role) != FLOW_ROLE or _text(operator) != "POST":
        raise refused("it is not for FATE Flow, or no POST")
    headers = [("dest-party-id", _text(party_id)), *_headers(data_key)]
    return SchedulingCall(_text(path), carried(headers, further_headers), value)


def packet_of(call: SchedulingCall, answer: Answer) -> bytes:
    """The packet that brings an answer back; FATE Flow reads its body alone."""
    return _field(_BODY, _field(_KEY, call.path.encode()) + _field(_VALUE, answer.body))


def request_packet(call: SchedulingCall) -> bytes:
    """The packet that takes a call to a broker, as FATE Flow writes it."""
    party = call.header("dest-party-id").encode()
    topic = _field(_PARTY_ID, party) + _field(_ROLE, FLOW_ROLE.encode())
    source = call.header("src-party-id").encode() or party
    source_topic = _field(_PARTY_ID, source) + _field(_ROLE, FLOW_ROLE.encode())
    # the party is in the topic, and so not among the headers
    headers = {name: value for name, value in call.headers if name.lower() != "dest-party-id"}
    task = _field(_MODEL, _field(_DATA_KEY, json.dumps(headers).encode()))
    header = (
        _field(_TASK, task) + _field(_SOURCE, source_topic) + _field(_DESTINATION, topic) + _field(_OPERATOR, b"POST")
    )
    body = _field(_KEY, call.path.encode()) + _field(_VALUE, call.body)
    return _field(_HEADER, header) + _field(_BODY, body)


def answer_in(packet: bytes) -> Answer:
    """What FATE Flow behind a broker has answered; a packet has no status of HTTP.

    Raises:
        ValueError: it is no Packet.
    """
    try:
        (body,) = parts(packet, _BODY)
        (value,) = parts(body, _VALUE)
    except GatewayError as error:
        raise ValueError("it answered what is no packet of proxy.proto") from error
    return Answer(200, value)


def _headers(data_key: bytes) -> Iterator[tuple[str, str]]:
    try:
        document = json.loads(data_key.decode() or "{}")
    except (ValueError, RecursionError) as error:
        raise refused("its headers are no JSON") from error
    if not isinstance(document, dict) or not all(isinstance(value, str) for value in document.values()):
        raise refused("its headers are no names with text")
    yield from document.items()


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise refused("what should be text is none") from error


def parts(raw: Raw, *numbers: int) -> list[Raw]:
    """Fields of a message that hold bytes, by number; empty where they are missing.

    Raises:
        GatewayError: CALL_REFUSED when it is no message, or one of them comes twice.
    """
    found: dict[int, Raw] = {}
    for number, value in walk(raw):
        if number in numbers:
            if number in found or value is None or isinstance(value, int):
                raise refused("a field of its packet comes twice, or is of another type")
            found[number] = value
    return [found.get(number, raw[:0]) for number in numbers]


def walk(raw: Raw) -> Iterator[tuple[int, Raw | int | None]]:
    """Numbers of the fields of a message, with numbers that they hold, or what those of the type with a length do.

    Raises:
        GatewayError: CALL_REFUSED when it is no message.
    """
    at = count = 0
    while at < len(raw):
        count += 1
        if count > MOST_FIELDS:
            raise refused(f"its packet has more than {MOST_FIELDS} fields in one message")
        key, at = _varint(raw, at)
        kind = key & 7
        value: Raw | int | None = None
        if kind == _VARINT:
            value, at = _varint(raw, at)
        elif kind == _LENGTH:
            length, at = _varint(raw, at)
            value = raw[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise refused("its packet has a field of no type")
        if at > len(raw):
            raise refused("its packet is cut off")
        yield key >> 3, value


def _varint(raw: bytes | memoryview, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(raw[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise refused("its packet has a number without end")


def field_head(number: int, length: int) -> bytes:
    """What stands before so many bytes that a field holds."""
    return _number(number << 3 | _LENGTH) + _number(length)


def _field(number: int, value: bytes) -> bytes:
    return field_head(number, len(value)) + value


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
