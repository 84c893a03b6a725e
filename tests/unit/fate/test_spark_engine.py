"""What ended a worker of Spark's, found in the text of Spark's exception; which tables need no worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedrdma_fate.fate.spark_engine import failure_in, is_sparks, read_kept
from fedrdma_fate.wire.errors import ErrorCode, GatewayError

# as py4j tells of a stage that failed: Python's words, Java's, and both again as their cause
TOLD = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times:
Traceback (most recent call last):
  File "worker.py", line 1247, in main
    process()
{words}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1247, in main
{words}

\t... 1 more
"""


def test_a_code_in_sparks_text_is_a_typed_error() -> None:
    words = "fedrdma_fate.wire.errors.GatewayError: [FR603] 'x#0#0' was already pushed. Use another name."

    found = failure_in(TOLD.format(words=words))

    assert isinstance(found, GatewayError)
    assert found.code is ErrorCode.DUPLICATE_PUSH
    assert str(found) == "[FR603] 'x#0#0' was already pushed. Use another name."


def test_of_several_the_last_ended_the_worker() -> None:
    words = (
        "fedrdma_fate.wire.errors.GatewayError: [FR601] there is none.\n\nDuring handling of the above exception\n\n"
        "fedrdma_fate.wire.errors.MemoryPoolError: [FR404] no room."
    )

    found = failure_in(TOLD.format(words=words))

    assert found is not None
    assert found.code is ErrorCode.REGION_UNAVAILABLE


@pytest.mark.parametrize(
    "words", ["ValueError: [1] no code", "KeyError: 'FR603'", "a log line says [FR603] in passing"]
)
def test_what_has_no_code_stays_sparks_own(words: str) -> None:
    assert failure_in(TOLD.format(words=words)) is None


def test_what_is_not_of_fates_engine_is_not_sparks() -> None:
    assert not is_sparks(object())


def a_table(partitions: int, settings: dict[str, str] | None = None, **kept: int) -> Any:
    """As `read_kept` looks at one, without a Spark; what it keeps of it, and something else that it keeps whole."""

    def info(number: int, whole: int, memory: int, disk: int) -> Any:
        found = {"id": number, "numCachedPartitions": whole, "memSize": memory, "diskSize": disk}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in found.items()})

    infos = [info(1, partitions, 10, 0)]
    if kept:
        infos.append(info(2, kept["whole"], kept["memory"], kept["disk"]))
    java = SimpleNamespace(id=lambda: 2, glom=lambda: pytest.fail("it was read"))
    spark = SimpleNamespace(getRDDStorageInfo=lambda: infos)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark), getConf=lambda: settings or {})
    return SimpleNamespace(rdd=SimpleNamespace(_jrdd=java, ctx=context), num_partitions=partitions)


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"whole": 3, "memory": 10, "disk": 0},
        {"whole": 4, "memory": 101, "disk": 0},
        {"whole": 4, "memory": 51, "disk": 50},
    ],
    ids=["not kept", "a partition is not", "too large", "too large with what is on disk"],
)
def test_a_table_that_spark_does_not_keep_whole_or_that_is_large_is_not_read_by_its_task(kept: dict[str, int]) -> None:
    assert read_kept(a_table(4, **kept), 100) is None


LZ4 = "org.apache.spark.io.LZ4CompressionCodec"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.rdd.compress": "True"},
        {"spark.io.compression.codec": "LZF"},
        {"spark.io.compression.codec": LZ4},
        {"spark.rdd.compress": "false", "spark.io.compression.codec": "zstd"},
    ],
)
def test_a_table_that_spark_keeps_and_that_is_small_is_read_by_its_task(settings: dict[str, str]) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(pytest.fail.Exception, match="it was read"):
        read_kept(a_table(4, settings, whole=4, memory=50, disk=50), 100)


@pytest.mark.parametrize("codec", ["zstd", "org.apache.spark.io.ZStdCompressionCodec", "my.own.Codec"])
def test_a_table_of_which_nobody_knows_how_long_it_unpacks_is_not_read_by_its_task(codec: str) -> None:
    settings = {"spark.io.compression.codec": codec}
    assert read_kept(a_table(4, settings, whole=4, memory=50, disk=50), 100) is None
