"""What came of the runs of the matrix, as a table for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tests.support.matrix import Outcome

VERDICTS = ("corrupt", "lost", "doubled", "hung", "slots", "error")
"""First words of what may be wrong with a run."""


@dataclasses.dataclass(slots=True)
class _Row:
    runs: int = 0
    struck: int = 0
    delivered: int = 0
    told: int = 0
    wrong: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))


@dataclasses.dataclass(slots=True)
class CellResult:
    """What came of the runs of one cell so far; each thing that is wrong has its seed."""

    fault: str
    mode: str
    path: str
    struck: int = 0
    delivered: int = 0
    told: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)

    def add(self, outcome: Outcome, seed: int, costs: Iterable[str] = ()) -> None:
        """One more run, and what it cost where it may cost nothing."""
        self.struck += outcome.struck
        self.delivered += outcome.delivered
        self.told += outcome.told
        self.wrong += [f"{sentence} (seed {seed})" for sentence in [*outcome.wrong, *costs]]

    def line(self, runs: int) -> str:
        """See `cell_line`."""
        return cell_line(self.fault, self.mode, self.path, runs, self.struck, self.delivered, self.told, self.wrong)


def cell_line(
    fault: str, mode: str, path: str, runs: int, struck: int, delivered: int, told: int, wrong: Iterable[str]
) -> str:
    """One cell as text, which pytest can keep with its test.

    Args:
        fault: of the cell, as are the next two.
        mode: how payloads go.
        path: what they go over.
        runs: how many there were.
        struck: in how many of them the fault happened.
        delivered: messages that came.
        told: messages that did not, as both ends know.
        wrong: what must not be, by its first word.
    """
    kinds = [sentence.split(":")[0] for sentence in wrong]
    counts = [str(kinds.count(verdict)) for verdict in VERDICTS]
    return ";".join([fault, mode, path, str(runs), str(struck), str(delivered), str(told), *counts])


def table(cells: Iterable[str]) -> str:
    """A row for each fault over all modes and paths, and the sum of all."""
    rows: dict[str, _Row] = {}
    for cell in cells:
        fault, _mode, _path, runs, struck, delivered, told, *wrong = cell.split(";")
        for row in (rows.setdefault(fault, _Row()), rows.setdefault("all", _Row())):
            row.runs += int(runs)
            row.struck += int(struck)
            row.delivered += int(delivered)
            row.told += int(told)
            for verdict, count in zip(VERDICTS, wrong, strict=True):
                row.wrong[verdict] += int(count)
    heads = ("runs", "struck", "whole", "told", *VERDICTS)
    lines = [f"{'fault':<24}" + "".join(f"{head:>9}" for head in heads)]
    for fault, row in [*((name, row) for name, row in rows.items() if name != "all"), ("all", rows["all"])]:
        counts = (row.runs, row.struck, row.delivered, row.told, *row.wrong.values())
        lines.append(f"{fault:<24}" + "".join(f"{count:>9}" for count in counts))
    return "\n".join(lines)
