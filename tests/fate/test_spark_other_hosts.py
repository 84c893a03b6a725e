"""Tables of FATE's Spark engine where no socket of the gateway's is, as on another host: by its port for tasks.

Skipped where pyspark or a Java is missing; `pip install pyspark==3.5.3` and a Java 17 are all it takes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fate.arch.context import Context

from fedrdma_fate.fate import tables
from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.settings import FederationOptions
from fedrdma_fate.wire.errors import ErrorCode, FedRDMAError
from tests.support.spark import KilledOnce
from tests.support.spark_cluster import by_spark, missing, running_spark
from tests.support.task_port import TaskPorts, task_ports

pytestmark = [pytest.mark.fate, pytest.mark.timeout(300), pytest.mark.skipif(bool(missing()), reason=missing())]

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}
ROWS = {number: bytes([number]) * 50_000 for number in range(40)}
"""Each partition lies in a slot."""
PARTITIONS = 3


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two threads that run workers, which try each task four times."""
    with running_spark("local[2,4]", tmp_path_factory.mktemp("local")) as context:
        yield context


@pytest.fixture(scope="module")
def ports(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskPorts]:
    del spark
    with task_ports(tmp_path_factory.mktemp("ports"), layout={"a": ["9999"], "b": ["10000"]}) as running:
        yield running


@pytest.fixture
def parties(ports: TaskPorts) -> dict[tuple[str, str], Context]:
    """Of one session, each with the file by which it gets to its gateway."""
    session = f"other-hosts-{secrets.token_hex(4)}"
    return {party: joined(session, party, str(ports.files[site])) for party, site in SITE_OF.items()}


def joined(session: str, party: tuple[str, str], file: str) -> Context:
    options = FederationOptions(tasks_access=file)
    computing = by_spark(session)
    federation = FedRDMAFederation(session, computing, party, list(SITE_OF), "unix:///nowhere/gateway.sock", options)
    return Context(computing=computing, federation=federation)


def test_tables_and_objects_go_both_ways(parties: dict[tuple[str, str], Context]) -> None:
    guest, host = parties[GUEST], parties[HOST]
    table = host.computing.parallelize(list(ROWS.items()), include_key=True, partition=PARTITIONS)
    host.guest.put("table", table)
    found = guest.hosts[0].get("table")
    assert found.count() == len(ROWS)
    assert dict(found.collect()) == ROWS

    guest.hosts.put("object", ROWS)
    assert host.guest.get("object") == ROWS


def test_a_table_whose_workers_are_killed_in_push_and_pull_is_whole_and_comes_once(
    parties: dict[tuple[str, str], Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, made = tables.run_over, tables.made_by_spark
    monkeypatch.setattr(tables, "run_over", lambda table, function: run(table, KilledOnce(function, tmp_path)))
    monkeypatch.setattr(tables, "made_by_spark", lambda meta, make: made(meta, KilledOnce(make, tmp_path)))
    guest, host = parties[GUEST], parties[HOST]
    table = host.computing.parallelize(list(ROWS.items()), include_key=True, partition=PARTITIONS)

    host.guest.put("killed", table)
    found = guest.hosts[0].get("killed")

    assert found.count() == len(ROWS)
    assert dict(found.collect()) == ROWS
    # in a push nothing comes of a partition, so its worker has no middle
    assert {path.name for path in tmp_path.iterdir()} >= {f"{number}-middle" for number in range(PARTITIONS)}


def test_workers_on_a_host_without_the_file_are_told_so_and_the_table_arrives_when_it_is_there(
    ports: TaskPorts, parties: dict[tuple[str, str], Context]
) -> None:
    guest, host = parties[GUEST], parties[HOST]
    table = host.computing.parallelize(list(ROWS.items()), include_key=True, partition=PARTITIONS)
    file = ports.files["b"]
    away = file.rename(file.with_suffix(".away"))
    try:
        with pytest.raises(FedRDMAError) as raised:
            host.guest.put("later", table)
    finally:
        away.rename(file)
    assert raised.value.code is ErrorCode.NO_TASK_ACCESS

    host.guest.put("later", table)

    assert dict(guest.hosts[0].get("later").collect()) == ROWS
