"""How long a small table takes by ctx.put and ctx.get through two gateways, beside FATE's standalone federation.

`python -m tests.support.table_times [--rounds 20]` prints a row for each case. The federations take turns, table by
table, in one process with the same computing sessions, so that all have the same load beside them, on this host.
"""

from __future__ import annotations

import argparse
import contextlib
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fate.arch.computing.backends.standalone import CSession
from fate.arch.context import Context
from fate.arch.federation.backends.standalone import StandaloneFederation

from fedrdma_fate.fate import small_tables
from fedrdma_fate.fate.federation import FedRDMAFederation
from tests.support.sites import InProcesses, start_gateways

GUEST, HOST = ("guest", "9999"), ("host", "10000")
SITE_OF = {GUEST: "a", HOST: "b"}
WARM_UPS = 3
WORKERS = 2
"""Of each computing session."""

CASES = ((100, 8), (1000, 8), (100, 32), (100_000, 8))
"""Rows and partitions; the last one is too long for an object, and goes by workers."""

Contexts = dict[tuple[str, str], Context]


@contextlib.contextmanager
def contexts(directory: Path, addresses: dict[str, str]) -> Iterator[dict[str, Contexts]]:
    """Both parties, by either federation."""
    session = f"tables-{secrets.token_hex(4)}"
    computing = {
        party: CSession(f"{session}-{party[0]}", data_dir=str(directory), options={"task_cores": WORKERS})
        for party in SITE_OF
    }
    made: dict[str, Contexts] = {"standalone": {}, "gateways": {}}
    everybody = list(SITE_OF)
    for party, engine in computing.items():
        standalone = StandaloneFederation(engine, session, party, everybody)
        ours = FedRDMAFederation(session, engine, party, everybody, gateway=addresses[SITE_OF[party]])
        made["standalone"][party] = Context(computing=engine, federation=standalone)
        made["gateways"][party] = Context(computing=engine, federation=ours)
    try:
        yield made
    finally:
        for party in SITE_OF:
            made["gateways"][party].federation.destroy()
            computing[party].destroy()


def exchange(parties: Contexts, name: str, table: Any, rows: int) -> tuple[float, float]:
    """Seconds of the put and of the get."""
    start = time.perf_counter()
    parties[GUEST].hosts[0].put(name, table)
    put = time.perf_counter()
    found = parties[HOST].guest.get(name)
    end = time.perf_counter()
    if found.count() != rows:
        raise SystemExit(f"{found.count()} rows came of {rows}")
    return put - start, end - put


def measure(made: dict[str, Contexts], rows: int, partitions: int, rounds: int) -> dict[str, list[float]]:
    """By name of the row: medians in ms of put, get and both together."""
    content = [(number, number) for number in range(rows)]
    table = made["gateways"][GUEST].computing.parallelize(content, include_key=True, partition=partitions)
    times: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds + WARM_UPS):
        for name, most in (("standalone", None), ("gateways", None), ("gateways, by workers", 0)):
            most_partitions = small_tables.MOST_PARTITIONS if most is None else most
            with mock.patch.object(small_tables, "MOST_PARTITIONS", most_partitions):
                parties = made[name.partition(",")[0]]
                took = exchange(parties, f"{name}-{rows}-{partitions}-{number}", table, rows)
            if number >= WARM_UPS:
                times.setdefault(name, []).append(took)
    return {
        name: [1e3 * statistics.median(each) for each in (*zip(*taken, strict=True), map(sum, taken))]
        for name, taken in times.items()
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        layout = {"a": ["9999"], "b": ["10000"]}
        with start_gateways(layout, Path(directory), runner=InProcesses()) as sites:
            addresses = {name: site.address for name, site in sites.items()}
            with contexts(Path(directory) / "data", addresses) as made:
                print("| rows, partitions | federation | put | get | both |\n|---|---|---|---|---|", flush=True)
                for rows, partitions in CASES:
                    for name, (put, get, both) in measure(made, rows, partitions, rounds).items():
                        print(
                            f"| {rows:,}, {partitions} | {name} | {put:.1f} | {get:.1f} | {both:.1f} ms |", flush=True
                        )


if __name__ == "__main__":
    main()
