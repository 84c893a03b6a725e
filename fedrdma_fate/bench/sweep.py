"""Rows measured in many settings, one setting after the other: what came of it, and how it is gone through."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

INTERRUPTED = "interrupted before it was measured"

Tell = Callable[[str], None]


class Named(Protocol):
    """A row, or a measurement of one."""

    @property
    def name(self) -> str:
        """Of the row."""
        ...


Setting = TypeVar("Setting")
Measurement = TypeVar("Measurement", bound=Named)
Row = TypeVar("Row", bound=Named)


@dataclasses.dataclass(slots=True)
class SettingRun(ABC, Generic[Setting, Measurement]):
    """What was measured in one setting.

    Attributes:
        measurements: in the order of the rows.
        failures: why the other rows were not measured, by name.
    """

    setting: Setting
    measurements: list[Measurement] = dataclasses.field(default_factory=list)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    @abstractmethod
    def to_document(self) -> dict[str, object]:
        """For `--json`."""

    def find(self, row: str) -> Measurement | None:
        """The measurement of this row; None where there is none."""
        return next((one for one in self.measurements if one.name == row), None)

    def is_done(self, row: str) -> bool:
        """Whether a row was measured, or is known to have failed."""
        return self.find(row) is not None or row in self.failures


Run = TypeVar("Run", bound="SettingRun")  # type: ignore[type-arg]


# no slots: with them, `Sweep[SomeRun](…)` raises TypeError, for typing sets an attribute of what is frozen
@dataclasses.dataclass(frozen=True)
class Sweep(Generic[Run]):
    """What came of all settings.

    Attributes:
        runs: one for each setting, in their order.
        interrupted: by the user or SIGTERM; rows without a measurement then say so under `failures`.
    """

    runs: Sequence[Run]
    interrupted: bool = False

    @property
    def failures(self) -> dict[str, str]:
        """By name of the row, and by setting where there are several."""
        several = len(self.runs) > 1
        return {
            f"{row} ({run.setting})" if several else row: reason
            for run in self.runs
            for row, reason in run.failures.items()
        }

    @property
    def measured(self) -> list[Run]:
        """The runs that hold a measurement."""
        return [run for run in self.runs if run.measurements]

    def to_document(self) -> dict[str, object]:
        """For `--json`: of one setting its document, of several a list of them under `runs`."""
        documents = [run.to_document() for run in self.runs]
        return documents[0] if len(documents) == 1 else {"runs": documents}


def sweep_over(
    runs: Sequence[Run], rows_of: Callable[[Run], Sequence[Row]], measure: Callable[[Run, Row], None], tell: Tell
) -> Sweep[Run]:
    """Measure each row in each setting. Ctrl-C and SystemExit end it early, with what there is.

    Args:
        runs: nothing is measured of them yet.
        rows_of: what is to be measured in the setting of a run.
        measure: adds to a run what came of a row.
        tell: is called with what is being done.
    """
    try:
        for number, run in enumerate(runs, start=1):
            where = f"{number}/{len(runs)}, {run.setting}: " if len(runs) > 1 else ""
            for row in rows_of(run):
                tell(f"{where}{row.name}")
                measure(run, row)
    except (KeyboardInterrupt, SystemExit):
        for run in runs:
            run.failures.update({row.name: INTERRUPTED for row in rows_of(run) if not run.is_done(row.name)})
        return Sweep(runs, interrupted=True)
    return Sweep(runs)
