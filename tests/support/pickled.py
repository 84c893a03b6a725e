"""Pickle streams written opcode by opcode."""

from __future__ import annotations

import pickle
import struct

NUMBER = pickle.BININT1 + b"\1"


def text(value: str) -> bytes:
    """Text."""
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def named(module: str, name: str) -> bytes:
    """What a name stands for."""
    return text(module) + text(name) + pickle.STACK_GLOBAL


def tuple_of(*items: bytes) -> bytes:
    """A tuple."""
    return pickle.MARK + b"".join(items) + pickle.TUPLE


def dictionary(**items: bytes) -> bytes:
    """A dictionary with text as keys."""
    return pickle.EMPTY_DICT + b"".join(text(key) + value + pickle.SETITEM for key, value in items.items())


def remembered(index: int, made: bytes) -> bytes:
    """Put into the memo, and taken from the stack."""
    return made + pickle.LONG_BINPUT + struct.pack("<I", index) + pickle.POP


def got(index: int) -> bytes:
    """From the memo."""
    return pickle.LONG_BINGET + struct.pack("<I", index)


def stream(*parts: bytes) -> bytes:
    """A whole stream."""
    return pickle.PROTO + b"\4" + b"".join(parts) + pickle.STOP
