"""Cells that have passed are kept, and those that have not are run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kept_cells import CELL, KeptCells, kept_in


def report(test: str, outcome: str = "passed", when: str = "call", cells: tuple[str, ...] = ("none;grpc",)) -> object:
    return pytest.TestReport(
        test,
        ("file", 1, test),
        {},
        outcome,  # type: ignore[arg-type]
        None,
        when,  # type: ignore[arg-type]
        user_properties=[(CELL, cell) for cell in cells],
    )


def told(results: Path, *reports: object) -> list[tuple[str, list[str]]]:
    kept = KeptCells(results)
    for each in reports:
        kept.pytest_runtest_logreport(each)  # type: ignore[arg-type]
    return list(kept_in(results))


def test_what_passed_is_kept_with_all_its_cells_and_what_failed_is_not(tmp_path: Path) -> None:
    results = tmp_path / "results"
    assert list(kept_in(results)) == []
    passed = report("passed", cells=("none;grpc", "none;fedrdma"))
    others = report("failed", outcome="failed"), report("passed", when="setup"), report("no cell", cells=())
    assert told(results, passed, *others) == [("passed", ["none;grpc", "none;fedrdma"])]


def test_a_run_that_was_killed_in_the_middle_of_a_line_goes_on(tmp_path: Path) -> None:
    results = tmp_path / "results"
    told(results, report("first"))
    with results.open("a") as file:
        file.write('{"test": "cut')
    assert [test for test, _ in kept_in(results)] == ["first"]
    assert [test for test, _ in told(results, report("second"))] == ["first", "second"]
