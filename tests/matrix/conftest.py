"""How many runs a cell of the matrix gets, and the table at the end."""

from __future__ import annotations

import pytest

from tests.support.matrix_table import table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of all cells that ran."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    rows = [value for report in reports for name, value in report.user_properties if name == "cell"]
    if rows:
        terminalreporter.section("matrix of faults")
        terminalreporter.write_line(table(rows))
