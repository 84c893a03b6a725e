"""A payload that both hosts know."""

from __future__ import annotations

import hashlib

_BLOCK = hashlib.shake_128(b"fedrdma").digest(1_000_003)
"""Of an odd length: no two chunks are equal."""


def fill(buffer: memoryview) -> None:
    """Put it there."""
    for at in range(0, len(buffer), len(_BLOCK)):
        buffer[at : at + len(_BLOCK)] = _BLOCK[: len(buffer) - at]


def is_filled(buffer: memoryview) -> bool:
    """Whether it is there, whole."""
    return all(buffer[at : at + len(_BLOCK)] == _BLOCK[: len(buffer) - at] for at in range(0, len(buffer), len(_BLOCK)))
