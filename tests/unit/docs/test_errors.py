"""Every error code has a page that helps, and every page a code."""

from __future__ import annotations

import re

import pytest

from fedrdma_fate.wire.errors import ErrorCode
from tests.support.repository import ROOT

PAGES = ROOT / "docs" / "errors"
HEADINGS = ["What happened", "Why", "What to do", "Example"]


def _sections(page: str) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def test_codes_and_pages_are_the_same() -> None:
    assert {path.stem for path in PAGES.glob("FR*.md")} == {code.value for code in ErrorCode}


@pytest.mark.parametrize("code", ErrorCode)
def test_a_page_says_what_happened_why_and_what_to_do(code: ErrorCode) -> None:
    page = (PAGES / f"{code.value}.md").read_text()
    assert page.startswith(f"# {code.value}: {code.name}\n")
    sections = _sections(page)
    assert list(sections) == HEADINGS
    assert [name for name, text in sections.items() if len(text) < 40] == []
    assert f"[{code.value}] " in sections["Example"]


def test_the_index_names_every_code_once() -> None:
    index = (PAGES / "index.md").read_text()
    listed = re.findall(r"^\| \[(FR\d+)\]\(\1\.md\) \| `(\w+)` \| \S", index, flags=re.MULTILINE)
    assert listed == [(code.value, code.name) for code in ErrorCode]
