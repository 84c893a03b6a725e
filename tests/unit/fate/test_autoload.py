"""What happens at interpreter start: next to nothing, and never a noise."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fedrdma_fate.fate import autoload
from fedrdma_fate.fate.registration import EXTENSIONS
from tests.support.repository import ROOT

PTH = ROOT / "fedrdma_fate.pth"


def start(tmp_path: Path, *paths: Path, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A bare interpreter that reads our .pth file from a site directory of its own."""
    site_directory = tmp_path / "site"
    site_directory.mkdir(exist_ok=True)
    (site_directory / PTH.name).write_text(PTH.read_text())
    program = (
        f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}; import site; before = set(sys.modules);"
        f"site.addsitedir({str(site_directory)!r}); loaded = sorted(set(sys.modules) - before); {code}"
    )
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        env={**os.environ, "FEDRDMA_FATE_DISABLE": "", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


SHOW = "print(loaded); print(any(type(finder).__name__ == 'PostImportFinder' for finder in sys.meta_path))"


def test_the_pth_file_is_one_line_that_site_executes() -> None:
    assert PTH.read_text().startswith("import ")
    assert PTH.read_text().count("\n") == 1


def test_it_loads_only_itself(tmp_path: Path) -> None:
    loaded, installed = start(tmp_path, ROOT, code=SHOW).stdout.splitlines()

    assert loaded == "['fedrdma_fate', 'fedrdma_fate.fate', 'fedrdma_fate.fate.autoload']"
    assert installed == "True"


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    done = start(tmp_path, ROOT, code=SHOW, FEDRDMA_FATE_DISABLE="1")

    assert done.stdout.splitlines() == ["[]", "False"]


def test_a_missing_package_is_silent(tmp_path: Path) -> None:
    done = start(tmp_path, code=SHOW)

    assert done.stdout.splitlines() == ["[]", "False"]
    assert done.stderr == ""


def test_a_broken_package_is_silent(tmp_path: Path) -> None:
    package = tmp_path / "broken" / "fedrdma_fate"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemError('half an upgrade')")

    done = start(tmp_path, tmp_path / "broken", code=SHOW)

    assert done.stdout.splitlines()[1] == "False"
    assert done.stderr == ""


def test_fate_still_loads_when_the_extensions_are_broken(tmp_path: Path) -> None:
    fate = tmp_path / "fate" / "arch" / "federation"
    fate.mkdir(parents=True)
    (fate / "_builder.py").write_text("ready = True")
    code = (
        "sys.modules['fedrdma_fate.fate.registration'] = None;"
        "import fate.arch.federation._builder as builder; print(builder.ready)"
    )

    done = start(tmp_path, ROOT, tmp_path, code=code)

    assert done.stdout == "True\n"
    assert "fedrdma-fate is broken" in done.stderr


def test_it_knows_the_modules_that_are_extended() -> None:
    assert EXTENSIONS.keys() == autoload.TARGETS


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module that is declared a target."""
    (tmp_path / "target_of_a_test.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(autoload, "TARGETS", frozenset({"target_of_a_test"}))
    monkeypatch.delitem(sys.modules, "target_of_a_test", raising=False)
    return "target_of_a_test"


def test_a_target_is_extended_after_it_has_loaded_and_shows_its_own_loader(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    finder = autoload.PostImportFinder(lambda module: seen.append(module.value))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    module = importlib.import_module(target)

    assert seen == [1]
    assert not isinstance(module.__loader__, autoload._ExtendingLoader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    importlib.reload(module)
    assert seen == [1, 1]


def test_other_modules_and_missing_targets_are_not_found_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = autoload.PostImportFinder(lambda _module: pytest.fail("nothing to extend"))
    monkeypatch.setattr(autoload, "TARGETS", frozenset({"there_is_no_such_module"}))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    assert finder.find_spec("json") is None
    assert finder.find_spec("there_is_no_such_module") is None


def test_installing_extends_what_is_loaded_already_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    extended: list[str] = []
    bare = [finder for finder in sys.meta_path if not isinstance(finder, autoload.PostImportFinder)]
    monkeypatch.setattr(sys, "meta_path", bare)
    monkeypatch.setattr(autoload, "TARGETS", frozenset({"loaded_before_us", "not_loaded"}))
    monkeypatch.setattr(autoload, "_extend", lambda module: extended.append(module.__name__))
    monkeypatch.setitem(sys.modules, "loaded_before_us", types.ModuleType("loaded_before_us"))

    assert not autoload.is_installed()
    autoload.install()
    autoload.install()

    assert autoload.is_installed()
    assert extended == ["loaded_before_us"]
    assert sum(isinstance(finder, autoload.PostImportFinder) for finder in sys.meta_path) == 1
