"""Tables of FATE's Spark engine: functions run in its workers, each partition once, in one job of one stage.

Imports pyspark only where a table or a session of that engine is there.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fedrdma_fate.fate.table_batches import Pair
from fedrdma_fate.wire.errors import FedRDMAError, error_from_code

_ENGINE = "fate.arch.computing.backends.spark"
"""Where FATE's engine of that name is; asked for by name, as it imports pyspark."""

_SORTED_MEMORY_MB = 512
"""Of a worker of Spark's that sorts a partition, before it goes on on disk: Spark's own default."""

_FRAME = struct.Struct("!i")
"""Length in front of what Spark and its workers send each other: its own format."""

_BOUNDED_CODECS = {
    "lz4",
    "lzf",
    "snappy",
    "org.apache.spark.io.lz4compressioncodec",
    "org.apache.spark.io.lzfcompressioncodec",
    "org.apache.spark.io.snappycompressioncodec",
}
"""Of those that Spark has (`spark.io.compression.codec`): a byte of these stands for 255 at most. Of the other,
Zstandard, four stand for a block of 128 KiB, so that 64 KiB may be 2 GiB."""

# the last line of what Python says of an exception, in the text of one of Java's
_WORKER_FAILURE = re.compile(r"^[\w.]+: \[(FR\d{3})\] (.*)$", re.MULTILINE)


def is_sparks(table_or_session: Any) -> bool:
    """Whether this table, or this computing session, is of FATE's Spark engine."""
    return type(table_or_session).__module__.startswith(_ENGINE)


def run_over(table: Any, function: Callable[[int, Iterable[Pair]], Iterable[Pair]]) -> None:
    """Give each partition of a table to a function that returns nothing, in a worker.

    FATE's engine would make a table of that nothing: it deals the pairs anew, a second stage of as many tasks.

    Raises:
        FedRDMAError: what a worker raised, where it has a code.
        Exception: else as Spark raises it.
    """
    _run(table.rdd.mapPartitionsWithIndex(function))


def made_by_spark(meta: Any, make: Callable[[int, Iterable[Pair]], Iterator[Pair]]) -> Any:
    """As FATE's engine makes a table, but that it would deal the pairs to their partitions once more.

    They are in them: the sender's engine has dealt them, by the same partitioner. It would cost a shuffle of the table.

    Args:
        meta: what table it is (FATE's TableMeta).
        make: the pairs of a partition by its number; called in workers.

    Raises:
        FedRDMAError: what a worker raised, where it has a code.
        Exception: else as Spark raises it.
    """
    from pyspark import SparkContext

    count = meta.num_partitions
    return _kept(SparkContext.getOrCreate().parallelize(range(count), count).mapPartitionsWithIndex(make), meta)


def _kept(rdd: Any, meta: Any) -> Any:
    """The table of what is in it, once Spark has all of it."""
    from fate.arch.computing.backends.spark import Table
    from pyspark import StorageLevel

    # the engine's level
    rdd.persist(StorageLevel.MEMORY_AND_DISK)
    _run(rdd)
    return Table(rdd, meta.key_serdes_type, meta.value_serdes_type, meta.partitioner_type)


def read_kept(table: Any, most_bytes: int) -> list[list[Pair]] | None:
    """The pairs of each partition of a table that Spark keeps whole and that is small; None where it is not.

    Java collects them as they are kept: no worker of Python's has any part in it. Spark knows how long they are as it
    keeps them, compressed by default, so what comes here may be 255 times as long, and no more: where Spark compresses
    by what has no such bound, nothing is read.

    Args:
        table: FATE's, of its Spark engine.
        most_bytes: as which Spark keeps it.

    Raises:
        Exception: as Spark raises it.
    """
    rdd = table.rdd
    java, context = rdd._jrdd, rdd.ctx
    known = [each for each in context._jsc.sc().getRDDStorageInfo() if each.id() == java.id()]
    if not known or known[0].numCachedPartitions() < table.num_partitions:
        return None
    if known[0].memSize() + known[0].diskSize() > most_bytes or not _unpacks_bounded(context.getConf()):
        return None
    from pyspark import RDD

    # of each partition a list of what Spark calls batches: some pairs each, as Python pickled them
    collected = RDD(context._jvm.SerDeUtil.javaToPython(java.glom()), context).collect()
    return [_pairs_in(batches, rdd._jrdd_deserializer) for batches in collected]


def _unpacks_bounded(settings: Any) -> bool:
    """Whether what Spark keeps is not much longer than it is kept."""
    if settings.get("spark.rdd.compress", "true").lower() == "false":
        return True
    return settings.get("spark.io.compression.codec", "lz4").lower() in _BOUNDED_CODECS


def _pairs_in(batches: Iterable[bytes], serializer: Any) -> list[Pair]:
    framed = io.BytesIO(b"".join(part for batch in batches for part in (_FRAME.pack(len(batch)), batch)))
    return list(serializer.load_stream(framed))


def made_of(meta: Any, partitions: Sequence[Sequence[Pair]]) -> Any:
    """As `made_by_spark`, of pairs that are here: no worker of Python's has any part in it.

    Args:
        meta: what table it is (FATE's TableMeta).
        partitions: the pairs of each.

    Raises:
        Exception: as Spark raises it.
    """
    from pyspark import RDD, SparkContext
    from pyspark.serializers import BatchedSerializer

    context = SparkContext.getOrCreate()
    # each partition as one thing, so that Spark deals one to each; then as the pairs that are in it
    whole = context.parallelize(partitions, len(partitions))
    return _kept(RDD(whole._jrdd, context, BatchedSerializer(whole._jrdd_deserializer)), meta)


def in_order(pairs: Iterable[Pair]) -> Iterable[Pair]:
    """Pairs by their bytes, sorted on disk where they are many: one that was lost and is made anew is the same push."""
    from pyspark.serializers import CPickleSerializer
    from pyspark.shuffle import ExternalSorter

    found: Iterable[Pair] = ExternalSorter(_SORTED_MEMORY_MB, CPickleSerializer()).sorted(iter(pairs))
    return found


def _run(rdd: Any) -> None:
    """Have all partitions made, counted by Java as they are: `rdd.count()` gives what is kept to workers once more."""
    try:
        rdd._jrdd.count()
    except Exception as error:
        told = failure_in(str(error))
        if told is None:
            raise
        raise told from error


def failure_in(text: str) -> FedRDMAError | None:
    """The exception with a code that ended a worker, in the text of Spark's; None where it ended by something else."""
    told = _WORKER_FAILURE.findall(text)
    return error_from_code(*told[-1]) if told else None
