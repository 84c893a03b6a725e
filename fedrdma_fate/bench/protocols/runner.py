"""Measures protocols, each in a testbed of its own, one setting after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrdma_fate.bench.baselines.interface import RowError
from fedrdma_fate.bench.incast.runner import Hosts
from fedrdma_fate.bench.protocols.results import ProtocolMeasurement, ProtocolRound, Usage, to_document
from fedrdma_fate.bench.protocols.rows import ProtocolRow, SentAgainBy
from fedrdma_fate.bench.protocols.settings import ProtocolSetting
from fedrdma_fate.bench.protocols.training import differing_weights
from fedrdma_fate.bench.sweep import SettingRun, Sweep, Tell, sweep_over
from fedrdma_fate.bench.wan.checkpoint import KeptMeasurements
from fedrdma_fate.bench.wan.testbed import TestbedRun, lines_of

SERVER = "0"

Log = KeptMeasurements[ProtocolSetting, ProtocolMeasurement]


@dataclasses.dataclass(slots=True)
class ProtocolRun(SettingRun[ProtocolSetting, ProtocolMeasurement]):
    """What was measured in one setting."""

    def to_document(self) -> dict[str, object]:
        """For `--json`."""
        return to_document(self.setting, self.measurements, self.failures)


ProtocolSweep = Sweep[ProtocolRun]
"""What came of all settings."""


def run_protocols(
    settings: Sequence[ProtocolSetting],
    rows: Sequence[ProtocolRow],
    make_hosts: Callable[[ProtocolSetting], Hosts],
    rounds: int,
    log: Log,
    tell: Tell,
) -> ProtocolSweep:
    """Measure each row in each setting. Ctrl-C and SystemExit end it early, with what there is.

    Args:
        settings: silos, models, networks.
        rows: what to measure.
        make_hosts: the hosts of a setting.
        rounds: of each row.
        log: what it knows is not measured again; what is measured is added.
        tell: is called with what is being done.
    """

    def measure_row(run: ProtocolRun, row: ProtocolRow) -> None:
        if log.find(run.setting, row.name) is None:
            if (problem := row.problem(run.setting)) is not None:
                run.failures[row.name] = problem
                return
            try:
                for made in with_others(run, row):
                    log.add(run.setting, made)
            except RowError as error:
                run.failures[row.name] = str(error)
                return
        measured = log.find(run.setting, row.name)
        assert measured is not None
        run.measurements.append(measured)

    def with_others(run: ProtocolRun, row: ProtocolRow) -> list[ProtocolMeasurement]:
        """The row and those that share its boot; the row alone where one of them fails."""
        setting = run.setting
        # on loopback a broker's memory is that of one row
        sharing = [] if setting.loopback else rows
        others = [other for other in sharing if other is not row and row.shares_boot_with(other)]
        open_ones = [
            other
            for other in others
            if not run.is_done(other.name) and log.find(setting, other.name) is None and other.problem(setting) is None
        ]
        if open_ones:
            with contextlib.suppress(RowError):
                return measure_together([row, *open_ones], setting, make_hosts(setting), rounds)
        return [measure(row, setting, make_hosts(setting), rounds)]

    sweep = sweep_over([ProtocolRun(setting) for setting in settings], lambda _: rows, measure_row, tell)
    loses = {row.name: row.loses for row in rows}
    for run in sweep.runs:
        if run.setting.training is not None:
            run.failures.update(differing_weights(run.measurements, loses))
    return sweep


def measure(row: ProtocolRow, setting: ProtocolSetting, hosts: Hosts, rounds: int) -> ProtocolMeasurement:
    """One row.

    Raises:
        RowError: the testbed failed, or the server did not say what its rounds took, or a protocol that loses nothing
            did.
    """
    (measured,) = measure_together([row], setting, hosts, rounds)
    return measured


def measure_together(
    rows: Sequence[ProtocolRow], setting: ProtocolSetting, hosts: Hosts, rounds: int
) -> list[ProtocolMeasurement]:
    """Rows one after the other in one boot; packets that it lost are counted for all of them.

    Raises:
        RowError: as for `measure`, of any of them.
    """
    first, *others = rows
    memory_bytes = max(row.guest_bytes(setting) for row in rows)
    done = hosts.run_all(first.program(setting, rounds, others), memory_bytes)
    printed = [line for line in lines_of(SERVER, done.stdout) if line.startswith("[")]
    if len(printed) != len(rows):
        raise RowError(f"the server did not say how long its rounds took: {printed}")
    return [_measurement(row, line, setting, done, rounds) for row, line in zip(rows, printed, strict=True)]


def _measurement(
    row: ProtocolRow, line: str, setting: ProtocolSetting, done: TestbedRun, rounds: int
) -> ProtocolMeasurement:
    try:
        told = json.loads(line)
        made = tuple(_round(row, one, setting) for one in told)
        usage = Usage(**told[0]["usage"]) if setting.loopback else None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RowError(f"the server did not say how long its rounds took: {line}") from error
    if len(made) != rounds:
        raise RowError(f"the server made {len(made)} rounds instead of {rounds}")
    if any(len(one.silo_seconds) != setting.silos or len(one.down_seconds) != setting.silos for one in made):
        raise RowError(f"the server did not say when the model of each of {setting.silos} silos was there")
    if setting.training is not None and any(one.accuracy is None or one.digest is None for one in made):
        raise RowError("the server did not say what came of training")
    measured = ProtocolMeasurement(
        name=row.name,
        rounds=made,
        lost_packets=sum(done.counts["lost"].values()),
        overflowed_packets=sum(done.counts["overflowed"].values()),
        wall_seconds=done.wall_seconds,
        usage=usage,
    )
    if measured.missing_bytes and not row.loses:
        raise RowError(f"{measured.missing_bytes} bytes were never delivered")
    return measured


def _round(row: ProtocolRow, told: Mapping[str, Any], setting: ProtocolSetting) -> ProtocolRound:
    resent: int | None = None
    # on loopback nobody counts: it would cost CPU time, which is measured there
    if row.sent_again_by is not SentAgainBy.DEVICE and not setting.loopback:
        counts = {SentAgainBy.NOBODY: 0, SentAgainBy.TCP: int(told["tcp_resent_bytes"])}
        resent = counts.get(row.sent_again_by, int(told["resent_bytes"]))
    # the kernel counts the other flows' segments with the models'
    if told.get("flow_bps") is not None and row.sent_again_by is SentAgainBy.TCP:
        resent = None
    return ProtocolRound(
        seconds=float(told["seconds"]),
        fedcomm_seconds=float(told["fedcomm_seconds"]),
        silo_seconds=tuple(float(seconds) for seconds in told["silo_seconds"]),
        down_seconds=tuple(float(seconds) for seconds in told["down_seconds"]),
        sent_bytes=int(told["sent_bytes"]),
        received_bytes=int(told["received_bytes"]),
        resent_bytes=resent,
        missing_down_bytes=int(told["missing_down_bytes"]),
        missing_up_bytes=int(told["missing_up_bytes"]),
        dropped=int(told["dropped"]),
        accuracy=None if told.get("accuracy") is None else float(told["accuracy"]),
        digest=None if told.get("digest") is None else str(told["digest"]),
        flow_bps=None if told.get("flow_bps") is None else float(told["flow_bps"]),
    )
