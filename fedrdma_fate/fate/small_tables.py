"""Small tables: they lie in the message of the object that holds them, and the task itself reads and makes them.

Where each partition has a worker that connects to the gateway, a table of a hundred rows costs a hundred times what its
bytes cost. Such a table is one more raw buffer of the object, and comes with the object or not at all:

    header, how many pairs each partition has (u64 each), and the pairs of all of them as one batch (`table_batches.py`)
"""

from __future__ import annotations

import itertools
import struct
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.fate.malformed import malformed
from fedrdma_fate.fate.spark_engine import is_sparks, made_of, read_kept
from fedrdma_fate.fate.table_batches import Pair, batch_bytes, decode_batch, encode_batch
from fedrdma_fate.fate.table_check import check_serdes_types, checked_pairs
from fedrdma_fate.fate.tables import made_by_workers
from fedrdma_fate.wire.frames import INLINE_LIMIT_BYTES

MOST_BYTES = INLINE_LIMIT_BYTES
"""Of all small tables of an object together, so that what one may cost to make is bounded: a worker that moves a
partition of this size has spent most of its time on connecting."""

MOST_PARTITIONS = 64
"""Of a small table: the task makes them one after the other, while workers of an engine do it side by side."""

MAGIC = b"FRPW"
FORMAT_VERSION = 1
_HEADER = struct.Struct("<4sHHQ")  # magic, version, reserved, number of partitions

_MAP_BYTES = 16 * MOST_BYTES
"""Of a partition's file at most: LMDB takes a page for each four short pairs or fewer."""

_STANDALONE = "STANDALONE"
"""FATE's name for the engine whose tables are files, which the task itself can read."""


def read_small(table: Any, most_bytes: int) -> bytes | None:
    """A table as it lies in an object; None where it would be longer, or only workers can read it.

    Spark's tables can be read here where Spark keeps them, as FATE's engine has it do.

    Args:
        table: FATE's, of any computing engine.
        most_bytes: how long it may become.
    """
    if table.num_partitions > MOST_PARTITIONS:
        return None
    if is_sparks(table):
        kept = read_kept(table, most_bytes)
        content = None if kept is None else encode_small(kept)
        return content if content is not None and len(content) <= most_bytes else None
    if getattr(table, "engine", None) != _STANDALONE:
        return None
    room = most_bytes - _prefix_bytes(table.num_partitions) - batch_bytes(())
    partitions: list[list[Pair]] = []
    for partition in range(table.num_partitions):
        pairs: list[Pair] = []
        with table.table._get_env_for_partition(partition) as environment, environment.begin() as transaction:
            for key, value in transaction.cursor():
                room -= batch_bytes(((key, value),)) - batch_bytes(())
                if room < 0:
                    return None
                pairs.append((key, value))
        partitions.append(pairs)
    return encode_small(partitions) if room >= 0 else None


def make_small(content: memoryview, computing: Any, meta: Any, allowed_names: Collection[str]) -> Any:
    """The table that `read_small` read, made anew in this task's computing session.

    Args:
        content: as it came.
        computing: FATE's computing session.
        meta: how the sender describes the table (FATE's TableMeta).
        allowed_names: further names that its pickles may use, as `module:name`.

    Raises:
        FateError: NAME_FORBIDDEN or PAYLOAD_MALFORMED; nothing of the table was made then.
        Exception: as the engine raises it.
    """
    check_serdes_types(meta.key_serdes_type, meta.value_serdes_type)
    counts, pairs = decode_small(content, meta.num_partitions)
    checked = checked_pairs(pairs, meta.key_serdes_type, meta.value_serdes_type, allowed_names)
    # all of it, before the engine gets any
    partitions = [list(itertools.islice(checked, count)) for count in counts]
    if is_sparks(computing):
        return made_of(meta, partitions)
    session = getattr(computing, "get_standalone_session", None)
    if session is None:
        return made_by_workers(computing, meta, _Given(partitions))
    return _made_here(session(), meta, partitions)


def _made_here(session: Any, meta: Any, partitions: Sequence[Sequence[Pair]]) -> Any:
    # the engine, and what it keeps its tables in, are only here where there is a session of it
    import lmdb  # type: ignore[import-untyped]
    from fate.arch.computing.backends.standalone import Table

    table = session.create_table(
        name=str(uuid.uuid4()),
        namespace=session.session_id,
        partitions=meta.num_partitions,
        need_cleanup=True,
        error_if_exist=True,
        key_serdes_type=meta.key_serdes_type,
        value_serdes_type=meta.value_serdes_type,
        partitioner_type=meta.partitioner_type,
    )
    for number, pairs in enumerate(partitions):
        # the engine waits for the disk at each commit; what a crash of the host takes is a table of a job that it ends
        path = Path(session.data_dir, table.namespace, table.name, str(number))
        path.mkdir(parents=True)
        with (
            lmdb.open(str(path), sync=False, map_size=_MAP_BYTES) as environment,
            environment.begin(write=True) as transaction,
        ):
            for key, value in pairs:
                transaction.put(key, value)
    return Table(table)


class _Given:
    """Runs in a worker: the pairs of its partition, which came with the function."""

    def __init__(self, partitions: Sequence[Sequence[Pair]]) -> None:
        self._partitions = partitions

    def __call__(self, partition: int, _placeholder: Iterable[Pair]) -> Iterator[Pair]:
        return iter(self._partitions[partition])


def _prefix_bytes(partitions: int) -> int:
    return _HEADER.size + 8 * partitions


def encode_small(partitions: Sequence[Sequence[Pair]]) -> bytes:
    """A table as it lies in an object."""
    pairs = list(itertools.chain.from_iterable(partitions))
    counts = struct.pack(f"<{len(partitions)}Q", *map(len, partitions))
    batch = bytearray(batch_bytes(pairs))
    encode_batch(pairs, True, memoryview(batch))
    return b"".join((_HEADER.pack(MAGIC, FORMAT_VERSION, 0, len(partitions)), counts, batch))


def decode_small(content: memoryview, partitions: int) -> tuple[Sequence[int], Iterator[Pair]]:
    """How many pairs each of so many partitions has, and the pairs of all in their order.

    Raises:
        FateError: PAYLOAD_MALFORMED when it is no table, or one of other partitions.
    """
    if len(content) > MOST_BYTES:
        raise malformed(f"a table in an object is {len(content)} bytes long, {MOST_BYTES} is the most")
    # the number itself may have more digits than Python writes
    if not 1 <= partitions <= MOST_PARTITIONS or len(content) < _prefix_bytes(partitions):
        raise malformed("a table in an object is of other partitions than it is described with")
    magic, version, _reserved, count = _HEADER.unpack_from(content)
    if (magic, version, count) != (MAGIC, FORMAT_VERSION, partitions):
        raise malformed(f"a table in an object starts with {magic!r}, version {version}, {count} partitions")
    counts = struct.unpack_from(f"<{partitions}Q", content, _HEADER.size)
    pairs, is_whole = decode_batch(content[_prefix_bytes(partitions) :])
    listed = list(pairs)
    if not is_whole or sum(counts) != len(listed):
        raise malformed("the partitions of a table in an object do not add up")
    return counts, iter(listed)
