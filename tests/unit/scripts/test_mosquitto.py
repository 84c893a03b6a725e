"""scripts/setup and mosquitto: left alone where there is one, and never a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.lib.mosquitto import MOSQUITTO
from scripts.lib.provision import Provision


def test_the_set_up_goes_on_without_mosquitto_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name, **_: None)
    Provision(tmp_path)._provide_mosquitto()
    said = "note: no mosquitto (this is no Debian); fedrdma bench protocols leaves out the rows that need it\n"
    assert capsys.readouterr().out == said


def test_a_mosquitto_that_only_root_s_path_has_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"{path}/{name}" if path == "/usr/sbin" else None)
    assert MOSQUITTO.is_there(tmp_path)
