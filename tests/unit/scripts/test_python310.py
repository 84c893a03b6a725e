"""The environment of Python 3.10: found or said to be absent, made once, and FATE's own packages stay as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.lib import python310
from scripts.lib.console import CommandError
from scripts.lib.interpreters import find_python
from scripts.lib.python310 import Python310, PythonAbsentError, pins_of_others

# no interpreter of this version is on any machine
VERSION, NAME = (3, 77), "python3.77"


# --- finding it ---


def interpreter(path: Path, *, works: bool = True) -> Path:
    """A program that says of itself that it is of the wanted version, or not."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    path.chmod(0o755)
    return path


PLACES = ["path", "home/.pyenv/versions/3.77.2/bin", "home/.local/share/uv/python/cpython-3.77.2-linux/bin"]


@pytest.mark.parametrize("place", PLACES)
def test_an_interpreter_is_found_on_path_of_pyenv_and_of_uv(tmp_path: Path, place: str) -> None:
    there = interpreter(tmp_path / place / NAME)
    assert find_python(VERSION, {"PATH": str(tmp_path / "path"), "HOME": str(tmp_path / "home")}) == there


def test_the_chosen_interpreter_comes_before_all_others(tmp_path: Path) -> None:
    interpreter(tmp_path / "path" / NAME)
    chosen = interpreter(tmp_path / "mine" / "python")
    assert find_python(VERSION, {"PATH": str(tmp_path / "path"), "PYTHON377": str(chosen)}) == chosen


def test_one_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    interpreter(tmp_path / "path" / NAME, works=False)
    there = interpreter(tmp_path / "home/.pyenv/versions/3.77.0/bin" / NAME)
    assert find_python(VERSION, {"PATH": str(tmp_path / "path"), "HOME": str(tmp_path / "home")}) == there


def test_without_one_and_without_a_home_none_is_found(tmp_path: Path) -> None:
    assert find_python(VERSION, {"PATH": str(tmp_path)}) is None


# --- making it ---


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fedrdma_fate").mkdir()
    names = ("requirements.lock", "requirements-py310.lock", "requirements-py310-tests.lock")
    for name in ("fedrdma_fate/__init__.py", "fedrdma_fate.pth", "pyproject.toml", "README.md", *names):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(python310, "VERSION", sys.version_info[:2])
    monkeypatch.setattr(python310, "find_python", lambda *_: Path(sys.executable))
    return tmp_path


class Recorder(Python310):
    """Records what it would do; its environment counts as usable."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.python.parent.mkdir(parents=True, exist_ok=True)
        if not self.python.is_symlink():
            self.python.symlink_to(sys.executable)
        self.done: list[str] = []

    def _install_fate(self, interpreter: Path) -> None:
        assert interpreter == Path(sys.executable)
        self.done.append("fate")

    def _install_wheel(self) -> None:
        self.done.append("wheel")

    def _install_tools(self) -> None:
        self.done.append("tools")


def provide(tree: Path) -> list[str]:
    recorder = Recorder(tree)
    recorder.provide()
    return recorder.done


def test_it_is_made_once(tree: Path) -> None:
    assert provide(tree) == ["fate", "wheel", "tools"]
    assert provide(tree) == []


@pytest.mark.parametrize("name", ["fedrdma_fate/new.py", "requirements-py310.lock", "requirements-py310-tests.lock"])
def test_a_changed_source_or_lock_makes_it_anew(tree: Path, name: str) -> None:
    provide(tree)
    (tree / name).write_text("other")
    assert provide(tree) == ["fate", "wheel", "tools"]


def test_one_that_broke_off_is_made_anew(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Recorder) -> None:
        raise CommandError("no network")

    provide(tree)
    (tree / "README.md").write_text("other")
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_install_wheel", broken)
        with pytest.raises(CommandError):
            provide(tree)
    assert provide(tree) == ["fate", "wheel", "tools"]


def test_without_an_interpreter_it_says_where_it_looked(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python310, "find_python", lambda *_: None)
    with pytest.raises(PythonAbsentError, match=r"not found on PATH.*PYTHON310="):
        provide(tree)


# --- FATE's packages ---


class Installed(Python310):
    """Its pip tells what the test says."""

    freeze: list[str]
    check: list[str]

    def _pip(self, *arguments: str) -> list[str]:
        return self.freeze if arguments[0] == "freeze" else self.check


@pytest.mark.parametrize(
    ("freeze", "check", "trouble"),
    [
        (["numpy==1.26.4", "rich==13.7.1", "msgspec==0.22.0"], ["No broken requirements found."], None),
        (["numpy==2.0.0", "rich==13.7.1"], ["No broken requirements found."], "numpy==1.26.4"),
        (["rich==13.7.1"], ["No broken requirements found."], "numpy==1.26.4"),
        (["numpy==1.26.4", "rich==13.7.1"], ["x 1 has requirement rich<13"], "x 1 has requirement rich<13"),
    ],
)
def test_an_installation_may_only_add(tmp_path: Path, freeze: list[str], check: list[str], trouble: str | None) -> None:
    site = Installed(tmp_path)
    site.freeze, site.check = ["numpy==1.26.4", "rich==13.7.1"], ["No broken requirements found."]

    def install() -> None:
        with site._nothing_replaced():
            site.freeze, site.check = freeze, check

    if trouble is None:
        install()
        return
    with pytest.raises(CommandError, match=trouble):
        install()


def test_a_pip_that_does_not_work_is_not_taken_for_one_that_finds_no_fault(tmp_path: Path) -> None:
    site = Python310(tmp_path)
    site.python = interpreter(tmp_path / "bin" / "python", works=False)
    with pytest.raises(CommandError, match="pip freeze says nothing"), site._nothing_replaced():
        pass


def test_only_what_fate_does_not_have_is_held_to_our_lock() -> None:
    ours = "numpy==1.26.4 \\\n    --hash=sha256:aa\nmsgspec==0.22.0 \\\n    --hash=sha256:bb\n"
    theirs = "numpy==1.26.3 \\\n    --hash=sha256:cc\n"
    assert pins_of_others(ours, theirs) == "msgspec==0.22.0\n"
