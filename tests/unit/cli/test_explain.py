"""`fedrdma explain`: every code has its page, also where there is only the wheel."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fedrdma_fate.cli.main import main
from fedrdma_fate.wire.errors import ErrorCode
from tests.support.repository import ROOT


@pytest.mark.parametrize("code", ErrorCode, ids=str)
def test_every_code_is_explained_by_its_page(code: ErrorCode) -> None:
    result = CliRunner().invoke(main, ["explain", code.value.lower()])
    assert result.exit_code == 0, result.output
    assert result.output == (ROOT / "docs" / "errors" / f"{code.value}.md").read_text()
    assert code.value in code.explanation


@pytest.mark.parametrize("code", ["FR999", "index", "../index", ""])
def test_what_is_no_code_is_refused(code: str) -> None:
    result = CliRunner().invoke(main, ["explain", code])
    assert result.exit_code == 2
    assert "is no code of an error" in result.output
    assert len(result.output) < 300
