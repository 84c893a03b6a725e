"""Tables between FATE's Spark engine on two executors, each a process, and its standalone one, while executors die.

Skipped where pyspark or a Java is missing; `pip install pyspark==3.5.3` and a Java 17 are all it takes.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fate.arch.context import Context

from fedrdma_fate.fate import tables
from tests.support.sites import eventually
from tests.support.spark import ExecutorKilledOnce, StoppedWithSlot
from tests.support.spark_cluster import EXECUTORS, local_cluster, missing, running_spark, standalone_and_spark

pytestmark = [pytest.mark.fate, pytest.mark.timeout(300), pytest.mark.skipif(bool(missing()), reason=missing())]

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}
PARTITIONS = 4
"""Two for each executor."""
ROWS = {number: bytes([number]) * 50_000 for number in range(40)}
"""Each partition lies in a slot."""
STARTED_SECONDS = 120.0
"""For an executor to start on a busy machine."""


def executors() -> list[psutil.Process]:
    """Processes of Spark's that run tasks."""
    return [child for child in psutil.Process().children(recursive=True) if _is_executor(child)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return process.name() == "java" and any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two executors."""
    with running_spark(local_cluster(), tmp_path_factory.mktemp("cluster")) as context:
        yield context


@pytest.fixture(scope="module")
def parties(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Context]]:
    """The guest computes with the standalone engine, the host with Spark."""
    del spark
    with standalone_and_spark(SITE_OF, tmp_path_factory.mktemp("parties")) as made:
        yield made


def all_run() -> None:
    """Return when as many executors run as there are to be."""
    eventually(lambda: len(executors()) == EXECUTORS, STARTED_SECONDS)


@pytest.mark.parametrize(
    "dying",
    [
        functools.partial(ExecutorKilledOnce, partition=PARTITIONS - 1),
        functools.partial(StoppedWithSlot, kills=True),
    ],
    ids=["reading", "holding-a-slot"],
)
def test_a_table_of_which_an_executor_dies_in_the_middle_of_its_push_arrives_whole_and_once(
    parties: dict[tuple[str, str], Context], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: Any
) -> None:
    all_run()
    before = {process.pid for process in executors()}
    name, dead = f"pushed-{secrets.token_hex(4)}", tmp_path / "dead"
    table = parties[HOST].computing.parallelize(list(ROWS.items()), include_key=True, partition=PARTITIONS)
    run = tables.run_over

    monkeypatch.setattr(tables, "run_over", lambda table, function: run(table, dying(function, dead)))
    parties[HOST].guest.put(name, table)

    found = parties[GUEST].hosts[0].get(name)
    assert dead.exists()
    assert {process.pid for process in executors()} != before
    assert found.count() == len(ROWS)
    assert dict(found.collect()) == ROWS


def test_a_table_is_whole_and_once_after_an_executor_that_had_a_part_of_it_has_died(
    parties: dict[tuple[str, str], Context],
) -> None:
    guest, host = parties[GUEST], parties[HOST]
    all_run()
    guest.hosts.put("pulled", guest.computing.parallelize(list(ROWS.items()), include_key=True, partition=PARTITIONS))
    found = host.guest.get("pulled")
    assert found.count() == len(ROWS)

    dead = executors()[0]
    dead.kill()
    eventually(lambda: not dead.is_running() or dead.status() == psutil.STATUS_ZOMBIE)

    assert found.count() == len(ROWS)
    assert dict(found.collect()) == ROWS


def test_pairs_come_to_the_partitions_that_the_sender_had_them_in(parties: dict[tuple[str, str], Context]) -> None:
    guest, host = parties[GUEST], parties[HOST]
    sent = guest.computing.parallelize([(number, number) for number in range(1000)], include_key=True, partition=3)
    guest.hosts.put("dealt", sent)

    found = host.guest.get("dealt")
    own = host.computing.parallelize([(number, number) for number in range(1000)], include_key=True, partition=3)

    # as FATE's Spark engine deals the same pairs
    assert [sorted(part) for part in found.rdd.glom().collect()] == [sorted(part) for part in own.rdd.glom().collect()]
