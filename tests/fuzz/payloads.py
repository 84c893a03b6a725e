"""Targets: what a task reads of a peer's task: objects, FATE's own bytes, tables, and the storages of tensors."""

from __future__ import annotations

import collections
import functools
import io
import pickle
import zlib
from typing import Any

import numpy as np
import pandas as pd
import torch
from fate.arch.federation.api import TableMeta, _serdes
from fate.arch.tensor.phe import PHETensorCoder

from fedrdma_fate.fate.deserialise import load_fate_bytes, load_object
from fedrdma_fate.fate.layout import HEADER_BYTES, ObjectView, decode_object, encode_prefix
from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.serialise import plan_object
from fedrdma_fate.fate.table_check import checked_pairs
from fedrdma_fate.fate.tables import batch_bytes, decode_batch, encode_batch
from fedrdma_fate.fate.tensor_stream import load_storage
from fedrdma_fate.wire.errors import ErrorCode, FateError
from tests.fuzz.target import Target, require

_CHECK_AT = HEADER_BYTES - 4
"""Of the header of an object: its CRC-32."""

_CODES = (ErrorCode.PAYLOAD_MALFORMED, ErrorCode.NAME_FORBIDDEN)
"""All that may be wrong with a payload."""


class _NoTables:
    """Stands for the federation, of which a hostile object may want tables."""

    def pull_table(self, name: str, tag: str, *_arguments: Any, **_keywords: Any) -> Any:
        raise malformed(f"no table {name!r} {tag!r}")


def _table_id() -> Any:
    pid = _serdes._TablePersistentId.__new__(_serdes._TablePersistentId)
    pid.__dict__.update(key="t", table_meta=TableMeta(2, 0, 0, 0))
    return pid


@functools.cache
def _objects() -> tuple[Any, ...]:
    """Plain and not: of everything that may be called, made or filled, some."""
    frame = pd.Series([1.0, 2.0], index=["a", "b"], name="s")
    return (
        {"epoch": 3, "loss": 0.25, "name": "weights", 1: (1, 2, (3, None)), "big": 2**200, "set": {1, 2}},
        [b"bytes", bytearray(b"more"), "text" * 20, True, frozenset({1}), collections.OrderedDict(a=1)],
        torch.Size([2, 3]),
        (torch.float32, torch.device("cpu"), slice(1, 2, 3)),
        frame,
        np.array(["a", None], dtype=object),
        np.dtype("<f8"),
        PHETensorCoder.__new__(PHETensorCoder),
    )


def _arrays() -> dict[str, Any]:
    numbers = np.arange(6, dtype="<f4").reshape(2, 3)
    return {"w": numbers, "t": torch.arange(4), "raw": bytearray(b"x" * 70), "d": np.zeros((0, 2), "<M8[s]")}


def _streams() -> list[bytes]:
    return [pickle.dumps(value, protocol) for value in _objects() for protocol in (2, 4, 5)] + [
        pickle.dumps([1, "r", b"p"], protocol) for protocol in (0, 1, 3)
    ]


def _with_codes(error: FateError) -> None:
    require(error.code in _CODES, f"a payload is refused by {error.code.value}")


def _object(stream: bytes) -> bytes:
    return bytes(encode_prefix([], memoryview(stream)))


def _with_arrays(value: Any) -> bytes:
    plan = plan_object(value, _NoTables(), "x", "t", [("host", "10000")])
    body = bytearray(plan.total_bytes)
    plan.write_into(memoryview(body))
    return bytes(body)


def _with_length(prefix: bytes, content: ObjectView) -> bytearray:
    end = content.segments[-1].offset + content.segments[-1].length if content.segments else 0
    return bytearray(prefix + bytes(end))


def objects() -> Target:
    """Objects as this project lays them out."""

    def read(data: bytes) -> bool:
        buffer = memoryview(bytearray(data))
        content = decode_object(buffer)
        prefix = encode_prefix(content.segments, content.stream)
        # what pads the stream and follows the segments is not in there, and a table may be spelt at greater length
        if len(prefix) <= len(data):
            again = decode_object(memoryview(_with_length(prefix, content)))
            same = (again.segments, again.stream) == (content.segments, content.stream)
            require(same, "the layout of an object does not come back as it was")
        try:
            load_object(buffer, None, _NoTables(), "x", "t", ("guest", "9999"))
        except FateError as error:
            _with_codes(error)
            raise
        return True

    def repair(data: bytes) -> bytes:
        """Lengths and the checksum, so that table and stream are reached."""
        head = bytearray(data.ljust(HEADER_BYTES, b"\0"))
        head[:8] = b"FRPO\x01\0\0\0"
        room = len(head) - HEADER_BYTES
        table = min(int.from_bytes(head[8:16], "little"), room)
        stream = min(int.from_bytes(head[16:24], "little"), room - table)
        head[8:32] = b"".join(number.to_bytes(8, "little") for number in (table, stream, len(head)))
        checked = zlib.crc32(head[HEADER_BYTES : HEADER_BYTES + table], zlib.crc32(head[:_CHECK_AT]))
        head[_CHECK_AT:HEADER_BYTES] = checked.to_bytes(4, "little")
        return bytes(head)

    seeds = [_object(stream) for stream in _streams()] + [_with_arrays(_arrays())]
    return Target("objects", seeds, read, (FateError,), repair)


def fate_bytes() -> Target:
    """Pickles as FATE writes them; by the unpickler of exact names."""

    def read(data: bytes) -> bool:
        try:
            load_fate_bytes(data, None, _NoTables(), "x", "t", ("guest", "9999"))
        except FateError as error:
            _with_codes(error)
            raise
        return True

    return Target(
        "fate-bytes", [b"\0" + stream for stream in _streams()], read, (FateError,), lambda data: b"\0" + data[1:]
    )


def tables() -> Target:
    """Parts of tables: pairs of pickles."""
    values = [*_streams(), pickle.dumps(np.arange(3)), pickle.dumps(np.float64(1)), pickle.dumps(torch.arange(3))]
    seeds = []
    for value in values:
        batch = [(pickle.dumps("key"), value)]
        body = bytearray(batch_bytes(batch))
        encode_batch(batch, True, memoryview(body))
        seeds.append(bytes(body))

    def read(data: bytes) -> bool:
        try:
            pairs, is_last = decode_batch(memoryview(data))
            batch = list(pairs)
            body = bytearray(batch_bytes(batch))
            encode_batch(batch, is_last, memoryview(body))
            again, last_again = decode_batch(memoryview(body))
            require((list(again), last_again) == (batch, is_last), "a part of a table does not come back as it was")
            for pair in checked_pairs(batch, 0, 0, ()):
                for item in pair:
                    # the engine reads it with Python's own unpickler, as it reads what is its own
                    pickle.load(io.BytesIO(item))
        except FateError as error:
            _with_codes(error)
            raise
        return True

    def repair(data: bytes) -> bytes:
        """One pair, whose value is all that is there behind the first key."""
        key = pickle.dumps("key")
        batch = [(key, data[16 + 16 + len(key) :])]
        body = bytearray(batch_bytes(batch))
        encode_batch(batch, True, memoryview(body))
        return bytes(body)

    return Target("tables", seeds, read, (FateError,), repair)


def storages() -> Target:
    """The storages of tensors in tables."""
    seeds = []
    for dtype in (torch.float32, torch.bool, torch.bfloat16):
        # a tensor is rebuilt of a storage, which is loaded of bytes
        storage = torch.ones(3, dtype=dtype).__reduce_ex__(2)[1][0]
        seeds.append(storage.__reduce__()[1][0])

    def read(data: bytes) -> bool:
        try:
            storage = load_storage(data)
        except FateError as error:
            _with_codes(error)
            raise
        # as whoever calls it does
        except Exception as error:
            raise malformed(repr(error)) from error
        require(storage.values.nbytes <= len(data), "a storage is larger than what it was read from")
        return True

    return Target("storages", seeds, read, (FateError,))
