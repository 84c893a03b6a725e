"""Cells of the matrix that have passed, in a file: what was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kept_lines import keep_whole_lines, kept_lines

CELL = "cell"
"""Name of the property in which a test tells what came of a cell; it may have several."""


def kept_in(results: Path) -> Iterator[tuple[str, list[str]]]:
    """Tests that have passed, by their names, and their cells; a line that was being written counts for nothing."""
    for kept in kept_lines(results):
        yield kept["test"], kept["cells"]


class KeptCells:
    """Writes a line for each test that has passed."""

    def __init__(self, results: Path) -> None:
        self._results = results
        keep_whole_lines(results)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep its cells."""
        cells = [value for name, value in report.user_properties if name == CELL]
        if report.when == "call" and report.passed and cells:
            with self._results.open("a") as results:
                results.write(json.dumps({"test": report.nodeid, "cells": cells}) + "\n")
