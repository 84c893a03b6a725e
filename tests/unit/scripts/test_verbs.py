"""scripts/setup and pyverbs: linked when installed, unpacked when it can be fetched, and never a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lib import verbs
from scripts.lib.debian import PackageUnavailableError, fetch
from scripts.lib.provision import Provision
from scripts.lib.verbs import assemble, provide

MODULES = {"pyverbs/__init__.py": "", "pyverbs/device.py": "", "pyverbs/qp.py": ""}


@pytest.fixture(scope="module")
def venv_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without anything in it."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    return venv / "bin" / "python"


@pytest.fixture
def python(venv_python: Path) -> Path:
    verbs._remove(verbs._site_packages(venv_python) / "pyverbs")
    return venv_python


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def _package(directory: Path, name: str, files: dict[str, str]) -> None:
    control = (
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.test>\nDescription: x\n"
    )
    tree = _tree(directory / f"{name}.tree", {"DEBIAN/control": control, **files})
    subprocess.run(["dpkg-deb", "--build", tree, directory / f"{name}.deb"], check=True, capture_output=True)


def test_an_installed_package_is_linked_alone(python: Path, tmp_path: Path) -> None:
    installed = _tree(tmp_path, MODULES) / "pyverbs"
    assert not verbs.importable(python)
    assert provide(python, installed) == "Debian's, linked"
    assert verbs.importable(python)
    assert (verbs._site_packages(python) / "pyverbs").readlink() == installed


def test_a_package_that_does_not_load_is_not_left_behind(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = _tree(tmp_path, {**MODULES, "pyverbs/qp.py": "raise ImportError('libibverbs.so.1')"}) / "pyverbs"
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(PackageUnavailableError, match="no Debian"):
        provide(python, installed)
    assert not (verbs._site_packages(python) / "pyverbs").is_symlink()


def test_fetched_packages_become_one_python_package_with_its_libraries(tmp_path: Path) -> None:
    modules = {f"usr/lib/python3/dist-packages/{name}": text for name, text in MODULES.items()}
    _package(tmp_path, "python3-pyverbs", modules)
    _package(tmp_path, "libnl", {"lib/x86_64-linux-gnu/libnl-3.so.200": "library"})
    _package(tmp_path, "providers", {"usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so": "provider"})
    target = tmp_path / "site" / "pyverbs"
    assemble(tmp_path, target)
    assert (target / "device.py").exists()
    assert (target / "debian_libraries" / "libnl-3.so.200").read_text() == "library"
    assert (target / "debian_libraries" / "libibverbs" / "librxe-rdmav34.so").exists()
    assert "libibverbs.so.1" in (target / "__init__.py").read_text()


def test_the_loader_falls_back_to_its_own_libraries_and_names_their_providers(tmp_path: Path) -> None:
    libraries = tmp_path / "debian_libraries"
    _tree(libraries, {"libibverbs/librxe-rdmav34.so": "", "libibverbs/libsiw-rdmav34.so": ""})
    (tmp_path / "__init__.py").write_text(verbs._LOADER.format(libraries=("libibverbs.so.1",)))
    script = f"""
import ctypes, os, runpy
opened = []
def open_library(name):
    opened.append(name)
    if "/" not in name:
        raise OSError(name)
ctypes.CDLL = open_library
runpy.run_path({str(tmp_path / "__init__.py")!r})
print(opened, os.environ["IBV_DRIVERS"])
"""
    # an earlier test of this process may have loaded pyverbs, which sets it
    environment = {name: value for name, value in os.environ.items() if name != "IBV_DRIVERS"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    drivers = f"{libraries}/libibverbs/librxe:{libraries}/libibverbs/libsiw"
    assert result.stdout == f"['libibverbs.so.1', '{libraries}/libibverbs.so.1'] {drivers}\n"


def test_packages_of_another_layout_are_refused(tmp_path: Path) -> None:
    _package(tmp_path, "python3-pyverbs", {"opt/pyverbs/__init__.py": ""})
    with pytest.raises(PackageUnavailableError, match="another layout"):
        assemble(tmp_path, tmp_path / "pyverbs")


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python3-pyverbs.deb").write_text("no archive")
    with pytest.raises(PackageUnavailableError, match=r"python3-pyverbs\.deb cannot be unpacked"):
        assemble(tmp_path, tmp_path / "pyverbs")


def test_without_apt_there_is_no_pyverbs(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(PackageUnavailableError, match="no Debian"):
        provide(python, tmp_path / "nothing")


@pytest.mark.parametrize(("user", "updates"), [(0, 1), (1000, 0)])
def test_only_root_brings_the_package_lists_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, updates: int
) -> None:
    apt = tmp_path / "bin" / "apt-get"
    _tree(
        tmp_path,
        {"bin/apt-get": f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\necho "E: no such package" >&2\nexit 100\n'},
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{apt.parent}:/usr/bin:/bin")
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(PackageUnavailableError, match="E: no such package"):
        fetch(["python3-pyverbs"], tmp_path)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sum(call.endswith(" update") for call in calls) == updates


def test_the_set_up_goes_on_without_pyverbs_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(_python: Path) -> str:
        raise PackageUnavailableError("this is no Debian")

    monkeypatch.setattr(verbs, "importable", lambda _python: False)
    monkeypatch.setattr(verbs, "provide", unavailable)
    Provision(tmp_path)._provide_pyverbs()
    assert capsys.readouterr().out == "note: no pyverbs (this is no Debian); everything but RDMA works\n"


def test_pyverbs_that_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verbs, "importable", lambda _python: True)
    Provision(tmp_path)._provide_pyverbs()
    assert capsys.readouterr().out == ""
