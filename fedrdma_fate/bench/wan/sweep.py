"""Rows over many links, one link after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from fedrdma_fate.bench import sweep
from fedrdma_fate.bench.wan.checkpoint import MeasurementLog
from fedrdma_fate.bench.wan.results import WanMeasurement, to_document
from fedrdma_fate.bench.wan.rows import WanRow
from fedrdma_fate.bench.wan.runner import Hosts, Tell, run_wan_rows
from fedrdma_fate.bench.wan.settings import Setting


@dataclasses.dataclass(slots=True)
class SettingRun(sweep.SettingRun[Setting, WanMeasurement]):
    """What was measured over one link with one payload."""

    def to_document(self) -> dict[str, object]:
        """For `--json`."""
        return to_document(self.setting.link, self.setting.payload_bytes, self.measurements, self.failures)


Sweep = sweep.Sweep[SettingRun]
"""What came of all links."""


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

    def rows_of(run: SettingRun) -> list[WanRow]:
        return [row for row in rows if row.name not in run.setting.left_out]

    def measure(run: SettingRun, row: WanRow) -> None:
        _run_row(run, row, make_hosts(run.setting), repeats, log)

    return sweep.sweep_over([SettingRun(setting) for setting in settings], rows_of, measure, tell)


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
