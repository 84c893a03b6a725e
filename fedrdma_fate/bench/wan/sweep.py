"""Rows over many links, one link after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fedrdma_fate.bench.wan.checkpoint import MeasurementLog
from fedrdma_fate.bench.wan.results import WanMeasurement, to_document
from fedrdma_fate.bench.wan.rows import WanRow
from fedrdma_fate.bench.wan.runner import Hosts, Tell, run_wan_rows
from fedrdma_fate.bench.wan.settings import Setting

INTERRUPTED = "interrupted before it was measured"


@dataclasses.dataclass(slots=True)
class SettingRun:
    """What was measured over one link with one payload.

    Attributes:
        measurements: in the order of the rows.
        failures: why the other rows were not measured, by name.
    """

    setting: Setting
    measurements: list[WanMeasurement] = dataclasses.field(default_factory=list)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_document(self) -> dict[str, object]:
        """For `--json`."""
        return to_document(self.setting.link, self.setting.payload_bytes, self.measurements, self.failures)

    def find(self, row: str) -> WanMeasurement | None:
        """The measurement of this row; None where there is none."""
        return next((one for one in self.measurements if one.name == row), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """What came of all links.

    Attributes:
        runs: one for each setting, in their order.
        interrupted: by the user or SIGTERM; rows without a measurement then say so under `failures`.
    """

    runs: Sequence[SettingRun]
    interrupted: bool = False

    @property
    def failures(self) -> dict[str, str]:
        """Of all links, by name of the row, and by link where there are several."""
        several = len(self.runs) > 1
        return {
            f"{row} ({run.setting})" if several else row: reason
            for run in self.runs
            for row, reason in run.failures.items()
        }

    @property
    def measured(self) -> list[SettingRun]:
        """The runs that hold a measurement."""
        return [run for run in self.runs if run.measurements]

    def to_document(self) -> dict[str, object]:
        """For `--json`: of one link the document of `to_document`, of several a list of them under `runs`."""
        documents = [run.to_document() for run in self.runs]
        return documents[0] if len(documents) == 1 else {"runs": documents}


def run_sweep(
    settings: Sequence[Setting],
    rows: Sequence[WanRow],
    make_hosts: Callable[[Setting], Hosts],
    repeats: int,
    log: MeasurementLog,
    tell: Tell,
) -> Sweep:
    """Measure each row over each link. Ctrl-C and SystemExit end it early, with what there is.

    Args:
        settings: links and payloads.
        rows: what to measure.
        make_hosts: two hosts with the link of a setting between them.
        repeats: transfers after the first.
        log: what it knows is not measured again; what is measured is added.
        tell: is called with what is being done.
    """
    runs = [SettingRun(setting) for setting in settings]
    try:
        for number, run in enumerate(runs, start=1):
            where = f"{number}/{len(runs)}, {run.setting}: " if len(runs) > 1 else ""
            for row in _rows_of(run, rows):
                tell(f"{where}{row.name}")
                _run_row(run, row, make_hosts(run.setting), repeats, log)
    except (KeyboardInterrupt, SystemExit):
        for run in runs:
            run.failures.update({row.name: INTERRUPTED for row in _rows_of(run, rows) if not _is_done(run, row)})
        return Sweep(runs, interrupted=True)
    return Sweep(runs)


def _run_row(run: SettingRun, row: WanRow, hosts: Hosts, repeats: int, log: MeasurementLog) -> None:
    known = log.find(run.setting, row.name)
    if known is not None:
        run.measurements.append(known)
        return
    measured, failures = run_wan_rows([row], hosts, run.setting.payload_bytes, repeats, lambda _: None)
    for measurement in measured:
        log.add(run.setting, measurement)
    run.measurements.extend(measured)
    run.failures.update(failures)


def _rows_of(run: SettingRun, rows: Sequence[WanRow]) -> list[WanRow]:
    return [row for row in rows if row.name not in run.setting.left_out]


def _is_done(run: SettingRun, row: WanRow) -> bool:
    return run.find(row.name) is not None or row.name in run.failures
