"""stress-ng for those who ask for it: one line of what came of it, whatever that is."""

from __future__ import annotations

import pytest

from scripts.lib import stress_ng


def test_where_it_cannot_be_had_the_reason_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name, **_: None)
    assert stress_ng.main() == 1
    assert capsys.readouterr().err == "this is no Debian\n"
