"""Runs the rows one after the other, each in a testbed of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.wan.results import WanMeasurement
from fedrdma_fate.bench.wan.rows import WanRow
from fedrdma_fate.bench.wan.testbed import HostRun

Tell = Callable[[str], None]


class Hosts(Protocol):
    """Two hosts and a link between them."""

    def run(self, program: Sequence[str], memory_bytes: int) -> HostRun:
        """Run a module with arguments on both.

        Raises:
            RowError: it failed.
        """
        ...


def run_wan_rows(
    rows: Sequence[WanRow], hosts: Hosts, payload_bytes: int, repeats: int, tell: Tell
) -> tuple[list[WanMeasurement], dict[str, str]]:
    """Measure each row.

    Args:
        rows: what to measure, in this order.
        hosts: where.
        payload_bytes: of each transfer.
        repeats: transfers after the first.
        tell: is called with what is being done.

    Returns:
        What was measured, and by name of the row why the others could not be.
    """
    measurements: list[WanMeasurement] = []
    failures: dict[str, str] = {}
    for row in rows:
        tell(row.name)
        try:
            measurements.append(_measure(row, hosts, payload_bytes, repeats))
        except RowError as error:
            failures[row.name] = str(error)
    return measurements, failures


def _measure(row: WanRow, hosts: Hosts, payload_bytes: int, repeats: int) -> WanMeasurement:
    problem = row.problem(payload_bytes)
    if problem is not None:
        raise RowError(problem)
    done = hosts.run(row.program(payload_bytes, 1 + repeats), row.guest_bytes(payload_bytes))
    try:
        (line,) = (line for line in done.printed if line.startswith("["))
        document = json.loads(line)
        first, *later = [row.to_transfer(told, payload_bytes, done.rdma_packet_bytes) for told in document]
        begun = [float(told.get("begun", 0.0)) for told in document]
    except (ValueError, KeyError, TypeError) as error:
        raise RowError(f"host 0 did not say how long its transfers took: {list(done.printed)}") from error
    if len(later) != repeats:
        raise RowError(f"host 0 made {1 + len(later)} transfers instead of {1 + repeats}")
    return WanMeasurement(
        name=row.name,
        first=first,
        later=tuple(later),
        lost_packets=done.lost_packets,
        overflowed_packets=done.overflowed_packets,
        policed_packets=done.policed_packets,
        wall_seconds=done.wall_seconds,
        first_queue_bytes=max((size for ended, size in done.queue if ended <= begun[1]), default=0),
        queue_bytes=max((size for ended, size in done.queue if ended > begun[1]), default=0),
    )
