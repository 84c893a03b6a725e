"""Pairs of a table as they travel: many in one batch, the lengths in front.

Imports nothing of FATE or torch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrdma_fate.fate.malformed import malformed

Pair = tuple[bytes, bytes]
"""A key and a value, as FATE's computing engine has serialised them."""

MAGIC = b"FRPT"
FORMAT_VERSION = 1

# magic, version, flags, number of pairs; the lengths of all keys, those of all values (u64 each), and the pairs follow
_HEADER = struct.Struct("<4sHHQ")
_LAST = 1
"""Flag of the last message of a partition."""


def batch_bytes(batch: Sequence[Pair]) -> int:
    """Length of a batch once encoded."""
    return _HEADER.size + 16 * len(batch) + sum(len(key) + len(value) for key, value in batch)


def encode_batch(batch: Sequence[Pair], is_last: bool, buffer: memoryview) -> None:
    """Write pairs into a buffer of `batch_bytes(batch)`."""
    _HEADER.pack_into(buffer, 0, MAGIC, FORMAT_VERSION, _LAST if is_last else 0, len(batch))
    lengths: npt.NDArray[Any] = np.ndarray((2, len(batch)), "<u8", buffer[_HEADER.size :])
    lengths[0] = [len(key) for key, _ in batch]
    lengths[1] = [len(value) for _, value in batch]
    at = _HEADER.size + lengths.nbytes
    for pair in batch:
        for item in pair:
            buffer[at : at + len(item)] = item
            at += len(item)


def decode_batch(buffer: memoryview) -> tuple[Iterator[Pair], bool]:
    """The pairs in a buffer, and whether it is the partition's last.

    Raises:
        FateError: PAYLOAD_MALFORMED when it is no batch.
    """
    if len(buffer) < _HEADER.size:
        raise malformed(f"{len(buffer)} bytes are less than the header of a part of a table")
    magic, version, flags, count = _HEADER.unpack_from(buffer)
    if (magic, version) != (MAGIC, FORMAT_VERSION):
        raise malformed(f"a part of a table starts with {magic!r}, version {version}")
    room = len(buffer) - _HEADER.size - 16 * count
    if room < 0:
        raise malformed(f"a part of a table claims {count} pairs in {len(buffer)} bytes")
    lengths: npt.NDArray[Any] = np.ndarray((2, count), "<u8", buffer[_HEADER.size :])
    # summed as Python integers, which do not wrap around
    if sum(lengths.reshape(-1).tolist()) != room:
        raise malformed("the lengths in a part of a table do not add up")
    return _pairs(buffer, lengths), bool(flags & _LAST)


def _pairs(buffer: memoryview, lengths: npt.NDArray[Any]) -> Iterator[Pair]:
    at = _HEADER.size + lengths.nbytes
    for key_bytes, value_bytes in zip(*lengths.tolist(), strict=True):
        value_at = at + key_bytes
        end = value_at + value_bytes
        yield bytes(buffer[at:value_at]), bytes(buffer[value_at:end])
        at = end
