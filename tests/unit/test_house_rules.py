"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast

import pytest

from tests.support.repository import ROOT

FOLDERS = ("fedrdma_fate", "scripts", "deploy", "examples", "tests")
LONG_LINES = 500
"""A file of more lines than this has more than one subject, unless it says why it has not."""


def says_why_it_is_long(text: str) -> bool:
    """Whether a source file is no longer than it may be, or its docstring speaks of its length in lines."""
    if len(text.splitlines()) <= LONG_LINES:
        return True
    return "lines" in (ast.get_docstring(ast.parse(text)) or "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_past_500_lines_says_why_in_its_docstring(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [str(path.relative_to(ROOT)) for path in files if not says_why_it_is_long(path.read_text())] == []


@pytest.mark.parametrize(
    ("docstring", "statements", "right"),
    [
        ("Buffers.", LONG_LINES - 1, True),
        ("Buffers.", LONG_LINES, False),
        ("Buffers. More than 500 lines: a table of the standard.", LONG_LINES, True),
    ],
)
def test_a_long_file_without_a_reason_is_found(docstring: str, statements: int, right: bool) -> None:
    assert says_why_it_is_long(f'"""{docstring}"""\n' + "lines = 1\n" * statements) is right


def test_a_long_file_without_a_docstring_is_found() -> None:
    assert not says_why_it_is_long("lines = 1\n" * (LONG_LINES + 1))
