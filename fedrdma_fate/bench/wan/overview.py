"""Many links side by side: for everything that varies, a table and plots of the shares of the link."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from fedrdma_fate.bench.plots import Series, point_plot
from fedrdma_fate.bench.report import DataTable, Plot
from fedrdma_fate.bench.wan.results import PER_CENT, WanMeasurement
from fedrdma_fate.bench.wan.settings import AXES
from fedrdma_fate.bench.wan.sweep import SettingRun

NOT_MEASURED = "–"


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """Runs that differ along one axis only.

    Attributes:
        axis: one of `AXES`.
        rest: of the other axes that vary, where these runs stand; and those that do not vary.
        runs: in the order in which they were asked for.
        name: for files.
    """

    axis: str
    rest: str
    runs: Sequence[SettingRun]
    name: str

    @property
    def places(self) -> list[str]:
        """Where each run stands."""
        return [run.setting.place(self.axis) for run in self.runs]

    @property
    def rows(self) -> list[str]:
        """Names of the rows that any of the runs holds."""
        return list(dict.fromkeys(one.name for run in self.runs for one in run.measurements))


def slices(runs: Sequence[SettingRun]) -> Iterator[Slice]:
    """For each axis along which the runs vary, one slice for each combination of the others."""
    for axis in AXES:
        if len({run.setting.place(axis) for run in runs}) < 2:
            continue
        groups: dict[str, list[SettingRun]] = {}
        for run in runs:
            told = (other for other in AXES if other != axis and _is_told(other, run))
            rest = ", ".join(f"{other} {run.setting.place(other)}" for other in told)
            groups.setdefault(rest, []).append(run)
        for number, (rest, group) in enumerate(groups.items(), start=1):
            suffix = f"-{number}" if len(groups) > 1 else ""
            yield Slice(axis, rest, group, f"by-{axis.lower()}{suffix}")


def _is_told(axis: str, run: SettingRun) -> bool:
    """Links mostly have no jitter, and then nothing is said of it."""
    return axis != "jitter" or run.setting.link.jitter_ns > 0


def to_overview(shown: Slice) -> DataTable:
    """Shares of the link, a row for each way and a column for each link: first transfer / median of the later ones."""
    columns = ("", *shown.places)
    rows = [(name, *(_cell(run, name) for run in shown.runs)) for name in shown.rows]
    title = f"% of the link by {shown.axis} ({shown.rest}): first transfer / median of the later ones"
    return DataTable(title, columns, rows)


def to_overview_plots(shown: Slice) -> list[Plot]:
    """The same as lines: one plot of the later transfers, one of the first.

    Raises:
        ConfigError: CONFIG_BAD_VALUE when matplotlib is not installed.
    """
    later = _plot(shown, "later transfers, median", lambda measured: measured.median_seconds)
    first = _plot(shown, "first transfer", lambda measured: measured.first.seconds)
    return [
        Plot(f"bench-wan-{shown.name}", f"Goodput by {shown.axis}, later transfers; {shown.rest}.", later),
        Plot(f"bench-wan-{shown.name}-first", f"Goodput by {shown.axis}, first transfer; {shown.rest}.", first),
    ]


def _plot(shown: Slice, what: str, seconds: Callable[[WanMeasurement], float]) -> bytes:
    series = [Series(name, [_share(run, name, seconds) for run in shown.runs]) for name in shown.rows]
    return point_plot(f"{what}; {shown.rest}", shown.axis, "goodput, % of the link", shown.places, series)


def _cell(run: SettingRun, row: str) -> str:
    first = _share(run, row, lambda measured: measured.first.seconds)
    later = _share(run, row, lambda measured: measured.median_seconds)
    return NOT_MEASURED if first is None or later is None else f"{first:.1f} / {later:.1f}"


def _share(run: SettingRun, row: str, seconds: Callable[[WanMeasurement], float]) -> float | None:
    measured = run.find(row)
    if measured is None:
        return None
    return run.setting.link.share(run.setting.payload_bytes, seconds(measured)) * PER_CENT
