"""Tables between FATE's Spark engine, `local[2]`, and its standalone one, through two gateways.

Skipped where pyspark or a Java is missing; `pip install pyspark==3.5.3` and a Java 17 are all it takes.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fate.arch.context import Context

from fedrdma_fate.fate import small_tables, tables
from fedrdma_fate.fate.gateway_client import to_party
from fedrdma_fate.wire.errors import ErrorCode, GatewayError
from tests.support.sites import eventually
from tests.support.spark import KilledOnce, StoppedWithSlot, imported
from tests.support.spark_cluster import missing, running_spark, standalone_and_spark

pytestmark = [pytest.mark.fate, pytest.mark.skipif(bool(missing()), reason=missing())]

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}
ROWS = {number: bytes([number]) * (number * 100) for number in range(100)}
LARGE = {number: bytes([number]) * 50_000 for number in range(20)}
"""More than a gateway takes inline: each partition lies in a slot."""
STARTED_SECONDS = 60.0
"""For a worker to start, or to be ended, on a busy machine."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two threads that run workers, which try each task four times."""
    with running_spark("local[2,4]", tmp_path_factory.mktemp("local")) as context:
        yield context


@pytest.fixture(scope="module")
def parties(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Context]]:
    """The guest computes with the standalone engine, the host with Spark."""
    del spark
    with standalone_and_spark(SITE_OF, tmp_path_factory.mktemp("spark")) as made:
        yield made


@pytest.fixture
def killing(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of Spark that move a partition are killed, each partition's once in the middle and once at its end."""
    del spark
    run, made = tables.run_over, tables.made_by_spark
    monkeypatch.setattr(tables, "run_over", lambda table, function: run(table, KilledOnce(function, tmp_path)))
    monkeypatch.setattr(tables, "made_by_spark", lambda meta, make: made(meta, KilledOnce(make, tmp_path)))


def sent_by_spark(parties: dict[tuple[str, str], Context], rows: dict[int, bytes], name: str) -> dict[int, bytes]:
    """What the guest finds of a table of the host's."""
    table = parties[HOST].computing.parallelize(list(rows.items()), include_key=True, partition=3)
    parties[HOST].guest.put(name, table)
    found = parties[GUEST].hosts[0].get(name)
    assert found.num_partitions == 3
    assert found.count() == len(rows)
    return dict(found.collect())


@pytest.mark.parametrize("rows", [ROWS, LARGE], ids=["many", "large"])
def test_a_table_of_sparks_arrives(parties: dict[tuple[str, str], Context], rows: dict[int, bytes]) -> None:
    assert sent_by_spark(parties, rows, f"of-spark-{len(rows)}") == rows


@pytest.mark.parametrize("rows", [{1: b"one", 2: b"two"}, LARGE], ids=["small", "large"])
def test_a_table_comes_to_spark_and_is_joined_there(
    parties: dict[tuple[str, str], Context], rows: dict[int, bytes]
) -> None:
    guest, host = parties[GUEST], parties[HOST]
    name = f"to-spark-{len(rows)}"
    guest.hosts.put(name, guest.computing.parallelize(list(rows.items()), include_key=True, partition=3))
    local = host.computing.parallelize([(key, b"!") for key in rows], include_key=True, partition=3)

    found = host.guest.get(name)

    assert found.num_partitions == 3
    assert dict(local.join(found, lambda mine, theirs: theirs + mine).collect()) == {
        key: value + b"!" for key, value in rows.items()
    }


SMALL = {number: str(number) for number in range(1000)}


def dealt(table: Any) -> list[list[Any]]:
    """What is in each partition of a table of Spark's."""
    found: list[list[Any]] = table.rdd.glom().collect()
    return [sorted(part) for part in found]


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker of Spark's sends or makes a partition."""

    def never(*_: Any) -> Any:
        pytest.fail("a worker moves a partition")

    monkeypatch.setattr(tables, "run_over", never)
    monkeypatch.setattr(tables, "made_by_spark", never)


@pytest.mark.parametrize("rows", [SMALL, {1: "one"}], ids=["many", "in one partition of three"])
def test_a_small_table_of_sparks_needs_no_worker_and_comes_as_it_was_dealt(
    parties: dict[tuple[str, str], Context], no_worker: None, rows: dict[int, str]
) -> None:
    del no_worker
    guest, host = parties[GUEST], parties[HOST]
    name = f"small-{len(rows)}"
    table = host.computing.parallelize(list(rows.items()), include_key=True, partition=3)

    host.guest.put(name, table)
    found = guest.hosts[0].get(name)
    assert found.num_partitions == 3
    assert dict(found.collect()) == rows
    guest.hosts.put(name, found)
    back = host.guest.get(name)

    assert dealt(back) == dealt(table)
    assert back.count() == len(rows)
    # and what came so goes on so
    host.guest.put(f"{name}-again", back)
    assert dict(guest.hosts[0].get(f"{name}-again").collect()) == rows


def test_a_small_table_that_spark_has_not_kept_goes_by_workers(parties: dict[tuple[str, str], Context]) -> None:
    host = parties[HOST]
    table = host.computing.parallelize(list(SMALL.items()), include_key=True, partition=3)
    assert small_tables.read_small(table, small_tables.MOST_BYTES) is not None

    table.rdd.unpersist(blocking=True)

    assert small_tables.read_small(table, small_tables.MOST_BYTES) is None
    host.guest.put("not-kept", table)
    assert dict(parties[GUEST].hosts[0].get("not-kept").collect()) == SMALL


def test_a_table_that_spark_compresses_goes_by_workers_where_it_would_be_too_long(
    parties: dict[tuple[str, str], Context],
) -> None:
    table = parties[HOST].computing.parallelize([(n, bytes(50_000)) for n in range(20)], include_key=True, partition=3)

    assert small_tables.read_small(table, small_tables.MOST_BYTES) is None


def test_a_table_whose_workers_are_killed_after_they_sent_arrives_once(
    parties: dict[tuple[str, str], Context], tmp_path: Path, killing: None
) -> None:
    del killing

    assert sent_by_spark(parties, LARGE, "sent-again") == LARGE

    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-end", "1-end", "2-end"]


@pytest.mark.parametrize("size", [10, 50_000], ids=["inline", "slots"])
def test_a_table_whose_workers_are_killed_while_they_have_it_is_whole_and_is_forgotten_with_its_table(
    parties: dict[tuple[str, str], Context],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killing: None,
    size: int,
) -> None:
    del killing
    monkeypatch.setattr(small_tables, "MOST_PARTITIONS", 0)
    guest, host = parties[GUEST], parties[HOST]
    rows = {number: bytes([number]) * size for number in range(20)}
    guest.hosts.put(f"killed-{size}", guest.computing.parallelize(list(rows.items()), include_key=True, partition=2))

    found = host.guest.get(f"killed-{size}")

    assert dict(found.collect()) == rows
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-end", "0-middle", "1-end", "1-middle"]
    # as where an executor is lost with what it had cached
    found.rdd.unpersist(blocking=True)
    assert dict(found.collect()) == rows
    kept = host.federation._client.status()["mailbox"]["messages"]
    assert kept >= 2

    del found
    gc.collect()
    host.federation._forget()

    assert host.federation._client.status()["mailbox"]["messages"] <= kept - 2


def test_a_task_that_sends_other_bytes_under_the_same_name_is_refused(
    parties: dict[tuple[str, str], Context],
) -> None:
    host = parties[HOST]
    first, other = (
        host.computing.parallelize([(1, value)], include_key=True, partition=1) for value in (b"first", b"other")
    )
    push = functools.partial(
        tables.push_table,
        name="same",
        tag="0",
        destinations=[to_party(GUEST)],
        connector=host.federation._connector,
        put_timeout=None,
        journal=None,
    )
    push(first)
    push(first)

    with pytest.raises(GatewayError) as caught:
        push(other)

    assert caught.value.code is ErrorCode.DUPLICATE_PUSH

    [found] = parties[GUEST].federation.pull_table("same", "0", [HOST], [first])
    assert dict(found.collect()) == {1: b"first"}


def test_a_table_whose_executors_do_not_reach_the_gateway_is_refused_and_may_be_put_again(
    parties: dict[tuple[str, str], Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = parties[HOST]
    table = host.computing.parallelize(list(LARGE.items()), include_key=True, partition=1)
    # as on a host that has no gateway
    elsewhere = dataclasses.replace(host.federation._connector, address=f"unix://{tmp_path}/none", connect_timeout=0.1)
    with monkeypatch.context() as patch:
        patch.setattr(host.federation, "_connector", elsewhere)

        with pytest.raises(GatewayError) as caught:
            host.guest.put("from-elsewhere", table)

    assert caught.value.code is ErrorCode.GATEWAY_UNREACHABLE
    host.guest.put("from-elsewhere", table)
    assert dict(parties[GUEST].hosts[0].get("from-elsewhere").collect()) == LARGE


def test_a_table_that_spark_is_told_to_give_up_in_its_push_leaves_no_slot_and_may_be_put_again(
    spark: Any, parties: dict[tuple[str, str], Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = parties[HOST]
    table = host.computing.parallelize(list(LARGE.items()), include_key=True, partition=2)
    run, stopped = tables.run_over, tmp_path / "stopped"
    sending = functools.partial(StoppedWithSlot, stopped=stopped, kills=False)
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as thread:
        patch.setattr(tables, "run_over", lambda table, function: run(table, sending(function)))
        put = thread.submit(host.guest.put, "given-up", table)
        eventually(stopped.exists, STARTED_SECONDS)
        spark.cancelAllJobs()

        with pytest.raises(Exception, match="cancelled"):
            put.result()

    eventually(lambda: not host.federation._client.status()["pools"][0]["slots"], STARTED_SECONDS)
    host.guest.put("given-up", table)
    assert dict(parties[GUEST].hosts[0].get("given-up").collect()) == LARGE


def test_workers_that_move_partitions_import_neither_torch_nor_grpc(
    spark: Any, parties: dict[tuple[str, str], Context]
) -> None:
    assert sent_by_spark(parties, ROWS, "slim") == ROWS

    found = spark.parallelize(range(2), 2).mapPartitionsWithIndex(imported).collect()

    assert found == ["", ""]
