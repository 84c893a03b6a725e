"""How long tables take between two parties that compute with Spark, beside Spark doing nothing with them.

`python -m tests.support.spark_times [--megabytes 1000] [--rounds 3] [--paths default] [--brief]`, which needs pyspark
and Java 17: both parties in one driver, two executors on this host, two gateways, with the data paths and memory of
`PATHS`. The kinds of work take turns, round by round:

- `in`: FATE's engine gives a table's partitions to a function that returns nothing; what a push is beside.
- `in and out`: to one that returns what it gets; what a pull is beside.
- `out`: to one that makes as many pairs out of nothing.
- `in, one stage`, `out, one stage`: the same without FATE's dealing of pairs to partitions behind it, as a push and a
  pull go.
- `push`, `pull`: what the federation does in `ctx.put` and `ctx.get`. A pull is over when Spark has the partitions.
- `push by workers`, `pull by workers`: the same of a small table, which else lies in its object.

Ratios are of seconds, and, in brackets, of processors' seconds of all processes: these depend less on what runs beside.
The next column says which processes had them: Spark's Java, its Python workers, the gateways, and the driver. With
`--brief` what FATE's engine does in two stages is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import os
import pickle
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from fate.arch.context import Context

from fedrdma_fate.fate import small_tables
from fedrdma_fate.fate.spark_engine import made_by_spark, run_over
from fedrdma_fate.fate.table_batches import Pair
from fedrdma_fate.gateway.config.schema import MemoryConfig
from tests.support.sites import InProcesses
from tests.support.spark import Made, dropped, unchanged
from tests.support.spark_cluster import READY_SECONDS, by_spark, joined, local_cluster, missing, running_spark

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}

PARTITIONS = 8
SHORT_ROWS = 1000
VALUE_BYTES = 1_000_000
WARM_UPS = 1
"""Rounds in which workers start, and Java compiles what it runs often."""
_MEMORY = MemoryConfig()
PATHS: dict[str, dict[str, Any]] = {
    "default": {
        "transport": "auto",
        "shm": {"lend": True},
        "memory": {
            each: int(getattr(_MEMORY, each))
            for each in ("send_bytes", "receive_bytes", "ring_slots", "ring_slot_bytes")
        },
    },
    "room": {
        "transport": "auto",
        "shm": {"lend": True},
        "memory": {"send_bytes": "1280MiB", "receive_bytes": "128MiB", "ring_slot_bytes": "1MiB"},
    },
    "tcp": {"memory": {"send_bytes": "128MiB", "receive_bytes": "1280MiB", "ring_slot_bytes": "1MiB"}},
}
"""By `--paths`. `default` is what a user has who sets nothing: gateways of one host lend each other what lies in shared
memory, as far as there is room in 1 GiB. With `room` there is for all of a table of 1 GB; with `tcp`, as between hosts,
the receiver's memory has all of it, as its task gets it only when it was put."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class Took:
    """Of one piece of work: seconds by the clock, and of processors, by which of `PROCESSES` had them."""

    seconds: float
    by_process: Mapping[str, float]

    @property
    def processors(self) -> float:
        """Of all together."""
        return sum(self.by_process.values())


def timed(work: Callable[[], Any]) -> tuple[Took, Any]:
    """How long it took, and what came of it."""
    start, before = time.perf_counter(), processor_seconds()
    made = work()
    seconds, after = time.perf_counter() - start, processor_seconds()
    return Took(seconds, {name: after[name] - before[name] for name in after}), made


JAVA, WORKERS, GATEWAYS, DRIVER = PROCESSES = ("Java", "workers", "gateways", "driver")


def processor_seconds() -> dict[str, float]:
    """Of this process and all under it: Spark's, whose workers go on from one to the next, and the gateways'."""
    own = psutil.Process()
    total = dict.fromkeys(PROCESSES, 0.0)
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total[kind_of(process, own)] += sum(process.cpu_times()[:4])
    return total


def kind_of(process: psutil.Process, own: psutil.Process) -> str:
    """Which of `PROCESSES` it is."""
    if process.pid == own.pid:
        return DRIVER
    if process.name() == "java":
        return JAVA
    return WORKERS if "pyspark.daemon" in process.cmdline() else GATEWAYS


def measure(
    parties: dict[tuple[str, str], Context], rows: int, value: bytes, rounds: int, warm_ups: int, *, brief: bool
) -> dict[str, list[Took]]:
    """What each kind of work took, by round; without the first ones, in which workers start."""
    guest, host = parties[GUEST], parties[HOST]
    empty = guest.computing.parallelize(range(PARTITIONS), include_key=False, partition=PARTITIONS)
    make = Made(rows // PARTITIONS, value)
    table = mapped(empty, make)
    times: dict[str, list[Took]] = {}
    for number in range(rounds + warm_ups):
        name = f"table-{len(value)}-{number}"
        took = {}
        for kind, work in (
            ("in", functools.partial(mapped, table, dropped)),
            ("in, one stage", functools.partial(run_over, table, dropped)),
            ("in and out", functools.partial(mapped, table, unchanged)),
            ("out", functools.partial(mapped, empty, make)),
            ("out, one stage", functools.partial(made_by_spark, empty, make)),
        ):
            if brief and "one stage" not in kind:
                continue
            took[kind], _ = timed(work)
            gc.collect()
        for suffix, most in (("", small_tables.MOST_PARTITIONS), (" by workers", 0)):
            if suffix and rows * len(value) > small_tables.MOST_BYTES:
                continue
            with mock.patch.object(small_tables, "MOST_PARTITIONS", most):
                took[f"push{suffix}"], _ = timed(functools.partial(guest.hosts[0].put, f"{name}{suffix}", table))
                took[f"pull{suffix}"], found = timed(functools.partial(host.guest.get, f"{name}{suffix}"))
            if found.count() != rows:
                raise SystemExit(f"{found.count()} rows came of {rows}")
            del found
            gc.collect()
            # as it does with its next get, in which a job's task would wait by now
            host.federation._forget()
        if number >= warm_ups:
            for kind, each in took.items():
                times.setdefault(kind, []).append(each)
    return times


_PUSH, _PULL = ("in", "in, one stage"), ("in and out", "out", "out, one stage")
BESIDE = {"push": _PUSH, "push by workers": _PUSH, "pull": _PULL, "pull by workers": _PULL}
"""What a work's medians are divided by."""


def rows_of(title: str, times: dict[str, list[Took]]) -> list[str]:
    """Lines of the table."""
    seconds = {kind: statistics.median(took.seconds for took in each) for kind, each in times.items()}
    processors = {kind: statistics.median(took.processors for took in each) for kind, each in times.items()}
    lines = []
    for kind, each in times.items():
        span = f"{min(took.seconds for took in each):.2f} to {max(took.seconds for took in each):.2f} s"
        beside = ", ".join(
            f"{seconds[kind] / seconds[other]:.2f} ({processors[kind] / processors[other]:.2f}) of {other}"
            for other in BESIDE.get(kind, ())
            if other in times
        )
        split = ", ".join(
            f"{name} {statistics.median(took.by_process[name] for took in each):.2f}" for name in PROCESSES
        )
        told = (title, kind, f"{seconds[kind]:.2f} s", span, f"{processors[kind]:.2f} s", split, beside)
        lines.append("| " + " | ".join(told) + " |")
    return lines


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--megabytes", type=int, default=1000, help="of the large table, in values of 1 MB; 0: without it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paths", choices=PATHS, default="default", help="see `PATHS`")
    parser.add_argument("--brief", action="store_true", help="leave out what FATE's engine does in two stages")
    given = parser.parse_args()
    if lacking := missing():
        raise SystemExit(lacking)
    tables = (
        (f"{SHORT_ROWS:,} short rows", SHORT_ROWS, b"short"),
        (f"{given.megabytes} MB in values of 1 MB", given.megabytes, secrets.token_bytes(VALUE_BYTES)),
    )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory, load = Path(name), os.getloadavg()[0]
        cluster = local_cluster(EXECUTOR_MEGABYTES)
        memory = {"spark_executor_memory": f"{EXECUTOR_MEGABYTES}m"}
        stack.enter_context(running_spark(cluster, directory / "spark", **memory))
        engines = [by_spark for _ in SITE_OF]
        gateways = joined(SITE_OF, engines, directory / "gateways", InProcesses(READY_SECONDS), **PATHS[given.paths])
        parties = stack.enter_context(gateways)
        print(
            "| table | work | median | least and most | processors | of them | beside |\n|---|---|---|---|---|---|---|",
            flush=True,
        )
        for number, (title, rows, value) in enumerate(tables[: 2 if given.megabytes else 1]):
            # workers go on from table to table
            warm_ups = 0 if number else WARM_UPS
            found = measure(parties, rows, pickle.dumps(value), given.rounds, warm_ups, brief=given.brief)
            print("\n".join(rows_of(title, found)), flush=True)
        print(f"\nload before: {load:.1f}")


if __name__ == "__main__":
    main()
