"""Tables between FATE's Spark engine, `local[2]`, and its standalone one, through two gateways.

Skipped where pyspark or a Java is missing; `pip install pyspark==3.5.3` and a Java 17 are all it takes.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fate.arch.context import Context

from fedrdma_fate.fate import small_tables, tables
from fedrdma_fate.fate.gateway_client import to_party
from tests.support.spark import KilledOnce, imported
from tests.support.spark_cluster import missing, running_spark, standalone_and_spark

pytestmark = [pytest.mark.fate, pytest.mark.skipif(bool(missing()), reason=missing())]

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}
ROWS = {number: bytes([number]) * (number * 100) for number in range(100)}
LARGE = {number: bytes([number]) * 50_000 for number in range(20)}
"""More than a gateway takes inline: each partition lies in a slot."""


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
    from fate.arch.computing.backends.spark import Table

    moved = Table.mapPartitionsWithIndexNoSerdes

    def with_kills(table: Any, function: Any, **types: Any) -> Any:
        return moved(table, KilledOnce(function, tmp_path), **types)

    made = tables._made_by_spark
    monkeypatch.setattr(Table, "mapPartitionsWithIndexNoSerdes", with_kills)
    monkeypatch.setattr(tables, "_made_by_spark", lambda meta, make: made(meta, KilledOnce(make, tmp_path)))


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

    with pytest.raises(Exception, match="FR603"):
        push(other)

    [found] = parties[GUEST].federation.pull_table("same", "0", [HOST], [first])
    assert dict(found.collect()) == {1: b"first"}


def test_workers_that_move_partitions_import_neither_torch_nor_grpc(
    spark: Any, parties: dict[tuple[str, str], Context]
) -> None:
    assert sent_by_spark(parties, ROWS, "slim") == ROWS

    found = spark.parallelize(range(2), 2).mapPartitionsWithIndex(imported).collect()

    assert found == ["", ""]
