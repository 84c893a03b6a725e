"""The table of all cells that ran, and a file in which those of a long run are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kept_cells import CELL, KeptCells, kept_in
from tests.support.matrix_table import table


def pytest_configure(config: pytest.Config) -> None:
    """Cells are kept by the process that hears of all of them."""
    results = config.getoption("--matrix-results")
    if results is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(KeptCells(Path(results)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table of all cells that ran, now or before."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [value for report in reports for name, value in report.user_properties if name == CELL]
    results = config.getoption("--matrix-results")
    if results is not None:
        ran = {report.nodeid for report in reports}
        rows = [cell for test, cells in kept_in(Path(results)) if test not in ran for cell in cells] + rows
    if rows:
        terminalreporter.section("matrix of faults")
        terminalreporter.write_line(table(rows))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What has passed before is not run again."""
    results = config.getoption("--matrix-results")
    if results is None:
        return
    passed = {test for test, _ in kept_in(Path(results))}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]
