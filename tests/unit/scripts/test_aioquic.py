"""aioquic in a directory of its own: there whole or not at all, and as the lock names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.lib import aioquic
from scripts.lib.console import CommandError
from scripts.lib.uv import Uv


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    made.mkdir()
    (made / aioquic.LOCK).write_text("aioquic==1.3.0\n")
    return made


def putting(monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
    """In uv's place: one file for what the lock names, or a part of it and an end."""

    def put(_self: Uv, lock: Path, directory: Path) -> None:
        directory.mkdir()
        (directory / "installed").write_text(lock.read_text())
        if fails:
            raise CommandError(fails, "Look at the network.")

    monkeypatch.setattr(Uv, "put", put)


def test_it_is_put_where_it_is_looked_for_and_anew_where_the_lock_is_another(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    putting(monkeypatch)
    venv = root / ".venv"
    assert not aioquic.is_there(venv, root)
    for release in ("1.3.0", "1.7.2"):
        (root / aioquic.LOCK).write_text(f"aioquic=={release}\n")
        assert not aioquic.is_there(venv, root)
        aioquic.provide(venv, root)
        assert aioquic.is_there(venv, root)
        assert (venv / "lib/aioquic/installed").read_text() == f"aioquic=={release}\n"
        assert [each.name for each in (venv / "lib").iterdir()] == ["aioquic"]


def test_what_cannot_be_fetched_leaves_what_was_there_and_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = root / ".venv"
    putting(monkeypatch, fails="installing the locked packages failed 3 times.")
    with pytest.raises(CommandError):
        aioquic.provide(venv, root)
    assert not list(venv.glob("lib/*"))
    putting(monkeypatch)
    aioquic.provide(venv, root)
    putting(monkeypatch, fails="installing the locked packages failed 3 times.")
    monkeypatch.setattr(aioquic, "ROOT", root)
    monkeypatch.setattr(aioquic.sys, "prefix", str(venv))
    assert aioquic.main() == 1
    said = capsys.readouterr().err
    assert "failed 3 times" in said
    assert "Look at the network." in said
    assert aioquic.is_there(venv, root)
    assert [each.name for each in (venv / "lib").iterdir()] == ["aioquic"]


def test_nothing_is_built_or_taken_whose_hash_is_not_in_the_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("scripts.lib.uv.read_pip_config", lambda _: {})
    monkeypatch.setattr("scripts.lib.uv.run_with_retries", lambda command, *_: asked.append(command))
    Uv(root / "python").put(root / aioquic.LOCK, root / "there")
    (command,) = asked
    wanted = {"--require-hashes", "--no-deps", "--only-binary=:all:", f"--target={root / 'there'}"}
    assert wanted <= set(command)
