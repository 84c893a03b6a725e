"""Sealed records as bytes: what introduces them, and what each has besides its own bytes (docs/sealing.md)."""

from __future__ import annotations

import struct
from typing import NamedTuple

TAG_BYTES = 16
"""Of a tag: the full length of both ciphers (RFC 5116, section 5; RFC 8439, section 2.8)."""

COUNTER_BYTES = 8
"""Of the counter before each record: what is sealed under one key is counted, and the nonce is that count."""

RECORD_OVERHEAD = COUNTER_BYTES + TAG_BYTES
"""What a record has besides its bytes: a counter before them, a tag behind them."""

MESSAGE_BYTES = 32
"""Of what stands for the message: SHA-256 of its offer."""

_INTRODUCTION = struct.Struct(f"<QI{MESSAGE_BYTES}s")

INTRODUCTION_BYTES = _INTRODUCTION.size
"""Of an introduction."""


class Introduction(NamedTuple):
    """What the receiver needs besides the keys of the path; it is authenticated with every record.

    Attributes:
        transfer: id of the transfer.
        attempt: counts the times that a transfer began, or was resumed, on this connection of the data path, from 1.
        message: SHA-256 of the offer: message key, kind, length, mode, grant, and how it is cut.
    """

    transfer: int
    attempt: int
    message: bytes

    def pack(self) -> bytes:
        """The introduction as INTRODUCTION_BYTES bytes."""
        return _INTRODUCTION.pack(*self)


def unpack_introduction(raw: bytes | bytearray | memoryview) -> Introduction:
    """Read INTRODUCTION_BYTES bytes; any bytes are one."""
    return Introduction._make(_INTRODUCTION.unpack(raw))


def table_bytes(records: int) -> int:
    """Length of the table of so many records, where tags do not travel beside their bytes."""
    return INTRODUCTION_BYTES + records * RECORD_OVERHEAD
