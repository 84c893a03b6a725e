"""How long tables take between two parties that compute with Spark, beside Spark doing nothing with them.

`python -m tests.support.spark_times [--megabytes 1000] [--rounds 3]`, which needs pyspark and Java 17: both parties in
one driver, two executors on this host, two gateways. The kinds of work take turns, round by round:

- `in`: Spark gives a table's partitions to a function that returns nothing; what a push is beside.
- `in and out`: to one that returns what it gets; what a pull is beside.
- `out`: to one that makes as many pairs out of nothing.
- `push`, `pull`: what the federation does in `ctx.put` and `ctx.get`. A pull is over when Spark has the partitions.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import pickle
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fate.arch.context import Context

from fedrdma_fate.fate.federation import FedRDMAFederation
from fedrdma_fate.fate.table_batches import Pair
from tests.support.sites import InProcesses, start_gateways
from tests.support.spark import Made, dropped, unchanged
from tests.support.spark_cluster import local_cluster, missing, running_spark

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}

PARTITIONS = 8
SHORT_ROWS = 1000
VALUE_BYTES = 1_000_000
MEMORY = {"send_bytes": "128MiB", "receive_bytes": "1280MiB", "ring_slot_bytes": "1MiB"}
"""The receiver's has all of a table of 1 GB, as its task gets it only when it was put."""

READY_SECONDS = 180.0
"""For a gateway of so much memory on a busy machine."""

EXECUTOR_MEGABYTES = 3072
"""Spark keeps a table that was pulled beside the one that was pushed."""


def mapped(table: Any, function: Callable[[int, Iterable[Pair]], Iterable[Pair]]) -> Any:
    """What workers make of a table; FATE's engine returns when Spark has it."""
    return table.mapPartitionsWithIndexNoSerdes(
        function,
        output_key_serdes_type=table.key_serdes_type,
        output_value_serdes_type=table.value_serdes_type,
        output_partitioner_type=table.partitioner_type,
    )


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def measure(
    parties: dict[tuple[str, str], Context], rows: int, value: bytes, rounds: int, warm_ups: int
) -> dict[str, list[float]]:
    """Seconds of each kind of work, by round; without the first ones, in which workers start."""
    guest, host = parties[GUEST], parties[HOST]
    empty = guest.computing.parallelize(range(PARTITIONS), include_key=False, partition=PARTITIONS)
    make = Made(rows // PARTITIONS, value)
    table = mapped(empty, make)
    times: dict[str, list[float]] = {}
    for number in range(rounds + warm_ups):
        name = f"table-{len(value)}-{number}"
        took = {}
        for kind, source, function in (
            ("in", table, dropped),
            ("in and out", table, unchanged),
            ("out", empty, make),
        ):
            took[kind], _ = timed(functools.partial(mapped, source, function))
            gc.collect()
        took["push"], _ = timed(functools.partial(guest.hosts[0].put, name, table))
        took["pull"], found = timed(functools.partial(host.guest.get, name))
        if found.count() != rows:
            raise SystemExit(f"{found.count()} rows came of {rows}")
        del found
        gc.collect()
        if number >= warm_ups:
            for kind, seconds in took.items():
                times.setdefault(kind, []).append(seconds)
    return times


BESIDE = {"push": ("in",), "pull": ("in and out", "out")}
"""What a work's median is divided by."""


def rows_of(title: str, times: dict[str, list[float]]) -> list[str]:
    """Lines of the table."""
    medians = {kind: statistics.median(each) for kind, each in times.items()}
    lines = []
    for kind, each in times.items():
        beside = ", ".join(f"{medians[kind] / medians[other]:.2f} of {other}" for other in BESIDE.get(kind, ()))
        told = (title, kind, f"{medians[kind]:.2f} s", f"{min(each):.2f} to {max(each):.2f} s", beside)
        lines.append("| " + " | ".join(told) + " |")
    return lines


@contextlib.contextmanager
def both_by_spark(directory: Path, context: Any) -> Iterator[dict[tuple[str, str], Context]]:
    """Two parties with a gateway each, that compute with the same Spark."""
    del context
    from fate.arch.computing.backends.spark import CSession

    session = f"spark-{secrets.token_hex(4)}"
    layout = {site: [party[1]] for party, site in SITE_OF.items()}
    with start_gateways(layout, directory, runner=InProcesses(READY_SECONDS), memory=MEMORY) as sites:
        parties = {}
        for party, site in SITE_OF.items():
            computing = CSession(session)
            federation = FedRDMAFederation(session, computing, party, list(SITE_OF), gateway=sites[site].address)
            parties[party] = Context(computing=computing, federation=federation)
        yield parties


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="of the large table, in values of 1 MB")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if lacking := missing():
        raise SystemExit(lacking)
    tables = (
        (f"{SHORT_ROWS:,} short rows", SHORT_ROWS, b"short"),
        (f"{given.megabytes} MB in values of 1 MB", given.megabytes, bytes(VALUE_BYTES)),
    )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory, load = Path(name), os.getloadavg()[0]
        cluster = local_cluster(EXECUTOR_MEGABYTES)
        memory = {"spark_executor_memory": f"{EXECUTOR_MEGABYTES}m"}
        context = stack.enter_context(running_spark(cluster, directory / "spark", **memory))
        parties = stack.enter_context(both_by_spark(directory / "gateways", context))
        print("| table | work | median | least and most | beside |\n|---|---|---|---|---|", flush=True)
        for number, (title, rows, value) in enumerate(tables):
            # workers go on from table to table
            found = measure(parties, rows, pickle.dumps(value), given.rounds, warm_ups=int(number == 0))
            print("\n".join(rows_of(title, found)), flush=True)
        print(f"\nload before: {load:.1f}")


if __name__ == "__main__":
    main()
