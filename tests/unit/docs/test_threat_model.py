"""Every line of the threat model names tests that show it, and these are there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "security.md"


def lines(page: str) -> list[str]:
    """The lines of the table of threats, its head left out."""
    section = page.partition("## Threat model")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def named_tests(line: str) -> Iterator[tuple[str, str]]:
    """File and function of each test that the last column of a line names: each file is followed by functions.

    Raises:
        ValueError: a file has none, or a function no file.
    """
    file, functions = "", 0
    for name in re.findall(r"`([^`]+)`", line.rstrip("| ").rpartition(" | ")[2]):
        if "/" in name:
            if file and not functions:
                raise ValueError(f"no test of {file} is named")
            file, functions = name, 0
        else:
            if not file:
                raise ValueError(f"{name} is named without its file")
            functions += 1
            yield file, name
    if not functions:
        raise ValueError(f"no test is named: {line}")


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    """The test functions of a file."""
    found = ast.parse(path.read_text()).body
    return frozenset(each.name for each in found if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"))


def missing(line: str) -> list[str]:
    """What a line names and is not there."""
    return [
        f"{file}::{function}"
        for file, function in named_tests(line)
        if not (ROOT / file).is_file() or function not in functions_of(ROOT / file)
    ]


def test_the_table_of_threats_is_found() -> None:
    assert len(lines(PAGE.read_text())) > 20


@pytest.mark.parametrize("line", lines(PAGE.read_text()), ids=lambda line: line.split(" | ")[1].strip("| ")[:40])
def test_every_line_of_the_threat_model_names_tests_that_are_there(line: str) -> None:
    assert missing(line) == []


def test_a_test_that_is_gone_is_found() -> None:
    assert (
        missing(
            "| who | what | refused | `tests/unit/docs/test_threat_model.py`: `test_a_test_that_is_gone_is_found` |"
        )
        == []
    )
    assert missing("| who | what | refused | `tests/unit/docs/test_threat_model.py`: `test_gone` |") != []
    assert missing("| who | what | refused | `tests/unit/docs/test_gone.py`: `test_gone` |") != []


@pytest.mark.parametrize(
    "tests", ["", "to be written", "`tests/unit/a.py`", "`tests/unit/a.py`; `tests/unit/b.py`: `test_b`", "`test_a`"]
)
def test_a_line_without_a_test_is_found(tests: str) -> None:
    with pytest.raises(ValueError, match="named"):
        missing(f"| who | what | refused | {tests} |")
