"""Measures rows of rounds, each in a testbed of its own, one setting after the other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.incast.results import IncastMeasurement, Round, to_document
from fedrdma_fate.bench.incast.rows import IncastRow
from fedrdma_fate.bench.incast.settings import IncastSetting
from fedrdma_fate.bench.sweep import SettingRun, Sweep, Tell, sweep_over
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.rows import ResentBy
from fedrdma_fate.bench.wan.testbed import TestbedRun, lines_of

ARBITER = "0"

Log = KeptMeasurements[IncastSetting, IncastMeasurement]


class Hosts(Protocol):
    """An arbiter, silos, and the links between them."""

    def run_all(self, program: Sequence[str], memory_bytes: int) -> TestbedRun:
        """Run a module with arguments on all.

        Raises:
            RowError: it failed.
        """
        ...


@dataclasses.dataclass(slots=True)
class IncastRun(SettingRun[IncastSetting, IncastMeasurement]):
    """What was measured in one setting."""

    def to_document(self) -> dict[str, object]:
        """For `--json`."""
        return to_document(self.setting, self.measurements, self.failures)


IncastSweep = Sweep[IncastRun]
"""What came of all settings."""


def run_incast(
    settings: Sequence[IncastSetting],
    rows: Sequence[IncastRow],
    make_hosts: Callable[[IncastSetting], Hosts],
    rounds: int,
    log: Log,
    tell: Tell,
) -> IncastSweep:
    """Measure each row in each setting. Ctrl-C and SystemExit end it early, with what there is.

    Args:
        settings: silos, links, payloads.
        rows: what to measure.
        make_hosts: the hosts of a setting.
        rounds: of each row.
        log: what it knows is not measured again; what is measured is added.
        tell: is called with what is being done.
    """

    def measure_row(run: IncastRun, row: IncastRow) -> None:
        _run_row(run, row, make_hosts(run.setting), rounds, log)

    return sweep_over([IncastRun(setting) for setting in settings], lambda _: rows, measure_row, tell)


def _run_row(run: IncastRun, row: IncastRow, hosts: Hosts, rounds: int, log: Log) -> None:
    known = log.find(run.setting, row.name)
    if known is not None:
        run.measurements.append(known)
        return
    try:
        measured = measure(row, run.setting, hosts, rounds)
    except RowError as error:
        run.failures[row.name] = str(error)
        return
    log.add(run.setting, measured)
    run.measurements.append(measured)


def measure(row: IncastRow, setting: IncastSetting, hosts: Hosts, rounds: int) -> IncastMeasurement:
    """One row.

    Raises:
        RowError: the testbed failed, or the arbiter did not say what its rounds took.
    """
    done = hosts.run_all(row.program(setting, rounds), row.guest_bytes(setting))
    printed = [line for line in lines_of(ARBITER, done.stdout) if line.startswith("[")]
    try:
        (line,) = printed
        told = json.loads(line)
        begun = [float(one["begun"]) for one in told]
        queue = [(float(ended), int(size)) for peaks in done.counts["queues"].values() for ended, size in peaks]
        ends = [*begun[1:], float("inf")]
        deepest = [
            max((size for ended, size in queue if begin < ended <= end), default=0)
            for begin, end in zip(begun, ends, strict=True)
        ]
        made = tuple(_round(row, one, size) for one, size in zip(told, deepest, strict=True))
    except (ValueError, KeyError, TypeError) as error:
        raise RowError(f"the arbiter did not say how long its rounds took: {printed}") from error
    if len(made) != rounds:
        raise RowError(f"the arbiter made {len(made)} rounds instead of {rounds}")
    if any(len(one.silo_seconds) != setting.silos for one in made):
        raise RowError(f"the arbiter did not say when the payload of each of {setting.silos} silos was there")
    return IncastMeasurement(
        name=row.name,
        rounds=made,
        lost_packets=sum(done.counts["lost"].values()),
        overflowed_packets=sum(done.counts["overflowed"].values()),
        wall_seconds=done.wall_seconds,
    )


def _round(row: IncastRow, told: Mapping[str, Any], queue_bytes: int) -> Round:
    resent = told["tcp_resent_bytes" if row.resent_by is ResentBy.TCP else "resent_bytes"]
    return Round(
        seconds=float(told["seconds"]),
        up_seconds=float(told["up_seconds"]),
        silo_seconds=tuple(float(seconds) for seconds in told["silo_seconds"]),
        resent_bytes=int(resent),
        sent_bytes=int(told["sent_bytes"]),
        queue_bytes=queue_bytes,
        missing_share=float(told.get("missing_share", 0.0)),
    )
