"""Cells of the matrix that have passed, in a file: what was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

CELL = "cell"
"""Name of the property in which a test tells what came of a cell; it may have several."""


def kept_in(results: Path) -> Iterator[tuple[str, list[str]]]:
    """Tests that have passed, by their names, and their cells; a line that was being written counts for nothing."""
    if not results.exists():
        return
    for line in results.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            kept = json.loads(line)
            yield kept["test"], kept["cells"]


class KeptCells:
    """Writes a line for each test that has passed."""

    def __init__(self, results: Path) -> None:
        self._results = results
        if results.exists():
            text = results.read_text()
            # not behind half a line
            results.write_text(text[: text.rfind("\n") + 1])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep its cells."""
        cells = [value for name, value in report.user_properties if name == CELL]
        if report.when == "call" and report.passed and cells:
            with self._results.open("a") as results:
                results.write(json.dumps({"test": report.nodeid, "cells": cells}) + "\n")
