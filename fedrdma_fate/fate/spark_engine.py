"""Tables of FATE's Spark engine: functions run in its workers, each partition once, in one job of one stage.

Imports pyspark only where a table or a session of that engine is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedrdma_fate.fate.table_batches import Pair
from fedrdma_fate.wire.errors import FedRDMAError, error_from_code

_ENGINE = "fate.arch.computing.backends.spark"
"""Where FATE's engine of that name is; asked for by name, as it imports pyspark."""

_SORTED_MEMORY_MB = 512
"""Of a worker of Spark's that sorts a partition, before it goes on on disk: Spark's own default."""

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
    from fate.arch.computing.backends.spark import Table
    from pyspark import SparkContext, StorageLevel

    count = meta.num_partitions
    rdd = SparkContext.getOrCreate().parallelize(range(count), count).mapPartitionsWithIndex(make)
    # the engine's level
    rdd.persist(StorageLevel.MEMORY_AND_DISK)
    _run(rdd)
    return Table(rdd, meta.key_serdes_type, meta.value_serdes_type, meta.partitioner_type)


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
