"""What comes of a figure or a table: the same for people, for programs and for the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrdma_fate.bench.paper.published import NOT_STATED
from fedrdma_fate.bench.report import DataTable, Plot, format_seconds

NOT_MEASURED = "-"


def no_plots() -> list[Plot]:
    """For what has none."""
    return []


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """A figure or table of the paper, beside what was measured.

    Attributes:
        name: such as `figure7`; also of the files.
        title: for people.
        tables: ours beside the paper's.
        notes: what is compared with what, and where it comes from.
        document: for programs.
        failures: by what was to be measured, why it was not.
        draw: its plots. Raises ConfigError, CONFIG_BAD_VALUE, when matplotlib is not installed.
    """

    name: str
    title: str
    tables: Sequence[DataTable]
    notes: Sequence[str]
    document: Mapping[str, Any]
    failures: Mapping[str, str]
    draw: Callable[[], list[Plot]] = no_plots

    def to_document(self) -> dict[str, Any]:
        """The whole for `--json`."""
        return {
            "name": self.name,
            "title": self.title,
            **self.document,
            "notes": list(self.notes),
            "failures": dict(self.failures),
        }


def seconds_cell(seconds: float | None) -> str:
    """A time of ours."""
    return NOT_MEASURED if seconds is None else format_seconds(seconds)


def per_cent_cell(share: float | None) -> str:
    """A share of ours."""
    return NOT_MEASURED if share is None else f"{share * 100:.1f} %"


def factor_cell(factor: float | None) -> str:
    """A ratio of ours."""
    return NOT_MEASURED if factor is None else f"{factor:.2f}×"


def paper_cell(value: float | None, unit: str) -> str:
    """A figure of the paper's, as it prints it."""
    return NOT_STATED if value is None else f"{value:g}{unit}"


def saved(before: float | None, after: float | None) -> float | None:
    """The share that is saved, None where one of the two is not known."""
    return None if before is None or after is None else 1 - after / before
