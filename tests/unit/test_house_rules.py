"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast
import itertools
import re

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


SELF_EVIDENT = (
    # of a unit of measure
    re.compile(r"^(MEGABYTE|GIGABYTE|GIB|PER_CENT) = "),
    # of a format or protocol, which counts up
    re.compile(r"^\w*VERSION = \d+$"),
    # how many values a field of this width has
    re.compile(r"^\w+ = 1 << (32|64)$"),
)


def _is_number(value: ast.expr) -> bool:
    """Whether it is written with numerals, and not by a call or in a collection."""
    nodes = list(ast.walk(value))
    if any(isinstance(node, ast.Call | ast.List | ast.Dict | ast.Set | ast.Tuple | ast.JoinedStr) for node in nodes):
        return False
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return any(isinstance(constant, int | float) and not isinstance(constant, bool) for constant in constants)


def _is_commented(lines: list[str], number: int) -> bool:
    """Whether a comment stands on line `number`, or above the unbroken run of assignments that it ends."""
    if "#" in lines[number]:
        return True
    while number > 0 and re.match(r"\w+(: \w+)? = ", lines[number]):
        number -= 1
    return lines[number].startswith("#")


def numbers_without_a_reason(text: str) -> list[str]:
    """Numbers of a module that no docstring and no comment explains, as they stand there."""
    lines, body = text.splitlines(), ast.parse(text).body
    found = []
    for node, after in itertools.zip_longest(body, body[1:]):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not _is_number(node.value):
            continue
        is_documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        line = lines[node.lineno - 1]
        if not (
            is_documented or _is_commented(lines, node.lineno - 1) or any(kind.match(line) for kind in SELF_EVIDENT)
        ):
            found.append(line)
    return found


def test_every_number_of_a_module_has_its_line_of_reason() -> None:
    files = sorted((ROOT / "fedrdma_fate").rglob("*.py"))
    found = {str(path.relative_to(ROOT)): numbers_without_a_reason(path.read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "text",
    [
        '"""A module."""\n\nMOST = 4\n\nLEAST = 2\n"""Fewer are none."""\n',
        "# of frames\n\nMOST = 4\n",
        '"""Of frames."""\nMOST: int = 2**10\n',
        "MOST = 1 << 20\n",
        "MOST = 2 * LEAST\n",
        "FIRST = 2\nMOST = FIRST\n",
    ],
)
def test_a_number_without_a_reason_is_found(text: str) -> None:
    assert len(numbers_without_a_reason(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        'MOST = 4\n"""More would not fit."""\n',
        "# of frames\nMOST = 4\nLEAST = 2\n",
        "MOST = 4  # NumPy's limit\n",
        "FORMAT_VERSION = 2\n",
        "_KEYS = 1 << 32\n",
        "MOST = LEAST\n",
        'NAMES = ("a", 1)\nNAME = "a"\nIS_ON = True\n',
    ],
)
def test_a_number_that_has_its_reason_or_needs_none_is_not(text: str) -> None:
    assert numbers_without_a_reason(text) == []


def test_no_number_is_defined_in_two_modules_by_one_name() -> None:
    defined: dict[str, list[str]] = {}
    for path in sorted((ROOT / "fedrdma_fate").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_number(value):
                    defined.setdefault(f"{name} = {ast.unparse(value)}", []).append(str(path.relative_to(ROOT)))
    twice = {line: paths for line, paths in defined.items() if len(paths) > 1 and not line.startswith("_")}
    assert {line for line in twice if not re.match(SELF_EVIDENT[1], line)} == set()


FROM_AN_INDEX = re.compile(r"pip install\s+(?:-\S+\s+)*['\"]?fedrdma[-_]fate")
"""The package is on no index: what is there under its name, once, is somebody else's."""


def test_nobody_is_told_to_install_the_package_from_an_index() -> None:
    said = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    said += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "fedrdma_fate").rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in said if FROM_AN_INDEX.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("pip install 'fedrdma-fate[llm]'", True),
        ("pip install --upgrade fedrdma_fate", True),
        ("pip install build/wheel/fedrdma_fate-*.whl", False),
        ('pip install "$(echo build/wheel/fedrdma_fate-*.whl)[fate]"', False),
    ],
)
def test_a_command_that_takes_the_package_from_an_index_is_found(command: str, found: bool) -> None:
    assert bool(FROM_AN_INDEX.search(command)) is found
