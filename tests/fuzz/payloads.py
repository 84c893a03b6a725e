"""Targets: what a task reads of a peer's task: objects, FATE's own bytes, tables, and the storages of tensors."""

from __future__ import annotations

import collections
import functools
import importlib
import io
import pickle
import zlib
from typing import Any

import numpy as np
import pandas as pd
import torch
from fate.arch.federation.api import TableMeta, _serdes
from fate.arch.tensor.phe import PHETensorCoder

from fedrdma_fate.fate.allowed_names import ALLOWED_NAMES
from fedrdma_fate.fate.deserialise import load_fate_bytes, load_object
from fedrdma_fate.fate.layout import HEADER_BYTES, ObjectView, Segment, decode_object, encode_prefix
from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.serialise import plan_object
from fedrdma_fate.fate.small_tables import decode_small, encode_small
from fedrdma_fate.fate.table_batches import batch_bytes, decode_batch, encode_batch
from fedrdma_fate.fate.table_check import checked_pairs
from fedrdma_fate.fate.table_names import TABLE_NAMES
from fedrdma_fate.fate.tensor_stream import load_storage
from fedrdma_fate.wire.errors import ErrorCode, FateError
from tests.fuzz.target import Target, require
from tests.support.pickled import NUMBER, named, stream, text, tuple_of

_CHECK_AT = HEADER_BYTES - 4
"""Of the header of an object: its CRC-32."""

_CODES = (ErrorCode.PAYLOAD_MALFORMED, ErrorCode.NAME_FORBIDDEN)
"""All that may be wrong with a payload."""


class _NoTables:
    """Stands for the federation, of which a hostile object may want tables."""

    def pull_table(self, name: str, tag: str, *_arguments: Any, **_keywords: Any) -> Any:
        raise malformed(f"no table {name!r} {tag!r}")

    def make_table(self, content: memoryview, meta: TableMeta) -> Any:
        counts, pairs = decode_small(content, meta.num_partitions)
        batch = list(pairs)
        partitions = [[next(left) for _ in range(count)] for left in [iter(batch)] for count in counts]
        again = encode_small(partitions)
        require(decode_small(memoryview(again), len(counts))[0] == counts, "a small table does not come back as it was")
        return batch


def _table_id(key: str | int = "t") -> Any:
    pid = _serdes._TablePersistentId.__new__(_serdes._TablePersistentId)
    pid.__dict__.update(key=key, table_meta=TableMeta(2, 0, 0, 0))
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
    times = np.zeros(3, "<M8[10s]")  # as long as what divides by zero, `s/0` in the place of `10s`
    return {
        "m": times,
        "w": numbers,
        "t": torch.arange(4),
        "raw": bytearray(b"x" * 70),
        "d": np.zeros((0, 2), "<M8[s]"),
    }


@functools.cache
def _import_all() -> None:
    """What streams may name, which takes memory when it is imported."""
    for module, _ in {**ALLOWED_NAMES, **TABLE_NAMES}:
        importlib.import_module(module)


def _streams() -> list[bytes]:
    _import_all()
    written = [pickle.dumps(value, protocol) for value in _objects() for protocol in (2, 4, 5)] + [
        pickle.dumps([1, "r", b"p"], protocol) for protocol in (0, 1, 3)
    ]
    return written + _graphs()


_ALIKE = 2**61 - 1
"""Its multiples have all the same hash."""


def _graphs() -> list[bytes]:
    """A few levels each of what is hostile with many."""
    doubled = pickle.EMPTY_TUPLE + (pickle.DUP + pickle.TUPLE2) * 4
    lists = (pickle.EMPTY_LIST + pickle.MARK) * 4 + pickle.NONE + (pickle.DUP + pickle.APPENDS) * 4
    device = named("fate.arch.unify._infra_def", "device") + tuple_of(tuple_of(text("CPU"), NUMBER)) + pickle.REDUCE
    return [
        stream(pickle.EMPTY_DICT + doubled + pickle.NONE + pickle.SETITEM),
        stream(pickle.MARK + doubled + pickle.TUPLE1 * 4 + pickle.FROZENSET),
        stream(lists),
        stream(device),
        pickle.dumps({n * _ALIKE: (n * _ALIKE,) for n in range(1, 6)}),
        pickle.dumps([np.array([None, 1], dtype=object), {"s": slice(1, None)}]),
    ]


_BLOCK_TYPE = named("fate.arch.dataframe.manager.block_manager", "BlockType")
_DEVICE = named("fate.arch.unify._infra_def", "device")
_SLICE = named("builtins", "slice")
_ARRAY = named("numpy.core.multiarray", "_reconstruct") + tuple_of(
    named("numpy", "ndarray"), tuple_of(pickle.BININT1 + b"\0"), pickle.SHORT_BINBYTES + b"\1b"
)
_OBJECTS = named("numpy", "dtype") + tuple_of(text("O8"), pickle.NEWFALSE, pickle.NEWTRUE) + pickle.REDUCE

_TOKENS = (
    # what doubles, deepens, repeats and hashes
    pickle.DUP + pickle.TUPLE2,
    pickle.DUP + pickle.APPENDS,
    pickle.MEMOIZE + pickle.BINGET + b"\0",
    pickle.BINPUT + b"\0" + pickle.BINGET + b"\0" + pickle.TUPLE2,
    pickle.TUPLE1,
    pickle.EMPTY_TUPLE,
    pickle.EMPTY_LIST + pickle.MARK,
    pickle.EMPTY_DICT,
    pickle.NONE + pickle.SETITEM,
    pickle.MARK + pickle.NONE + pickle.FROZENSET,
    pickle.DUP + pickle.MARK + pickle.NONE + pickle.FROZENSET,
    b"".join(pickle.dumps(n * _ALIKE, 2)[2:-1] + pickle.NONE + pickle.SETITEM for n in range(1, 40)),
    pickle.LONG4 + (1000).to_bytes(4, "little") + b"\x7f" * 1000,
    # what is called with anything
    _BLOCK_TYPE,
    _DEVICE,
    _SLICE + pickle.MARK,
    pickle.NONE + pickle.NONE + pickle.TUPLE + pickle.REDUCE,
    pickle.TUPLE1 + pickle.REDUCE,
    _ARRAY + pickle.REDUCE,
    _ARRAY + pickle.REDUCE + pickle.MARK + NUMBER + tuple_of(NUMBER) + _OBJECTS + pickle.NEWFALSE + pickle.EMPTY_LIST,
    pickle.APPEND + pickle.TUPLE + pickle.BUILD,
    pickle.EMPTY_TUPLE + pickle.NEWOBJ,
    pickle.EMPTY_TUPLE + pickle.REDUCE,
    pickle.EMPTY_DICT + pickle.BUILD,
    # dtypes
    b"s/0",
    b"0s]",
    b"[s/0]",
    b"U999999999",
)
"""Parts of streams and tables that were holes once."""


MOST_CHARACTERS = 2_000
"""Of an error's text: what a peer chose is cut in it."""


def _with_codes(error: FateError) -> None:
    require(error.code in _CODES, f"a payload is refused by {error.code.value}")
    require(len(str(error)) <= MOST_CHARACTERS, "an error's text is as long as a peer likes")


def _object(stream: bytes) -> bytes:
    return bytes(encode_prefix([], memoryview(stream)))


def _with_arrays(value: Any) -> bytes:
    plan = plan_object(value, _NoTables(), "x", "t", [("host", "10000")])
    body = bytearray(plan.total_bytes)
    plan.write_into(memoryview(body))
    return bytes(body)


def _with_small_table() -> bytes:
    body = encode_small([[(pickle.dumps(1), pickle.dumps(2))], []])
    segment = Segment("bytes", "", (len(body),), 0, len(body))
    pid = pickle.dumps(_table_id(0), 2)[2:-1]
    return bytes(encode_prefix([segment], stream(pid + pickle.BINPERSID))) + body


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

    seeds = [_object(each) for each in _streams()] + [_with_arrays(_arrays()), _with_small_table()]
    return Target("objects", seeds, read, (FateError,), repair, tokens=_TOKENS)


def fate_bytes() -> Target:
    """Pickles as FATE writes them; by the unpickler of exact names."""

    def read(data: bytes) -> bool:
        try:
            load_fate_bytes(data, None, _NoTables(), "x", "t", ("guest", "9999"))
        except FateError as error:
            _with_codes(error)
            raise
        return True

    def repair(data: bytes) -> bytes:
        return b"\0" + data[1:]

    seeds = [b"\0" + each for each in _streams()]
    return Target("fate-bytes", seeds, read, (FateError,), repair, tokens=_TOKENS)


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

    return Target("tables", seeds, read, (FateError,), repair, tokens=_TOKENS)


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

    return Target("storages", seeds, read, (FateError,), tokens=_TOKENS)
