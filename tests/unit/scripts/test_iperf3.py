"""scripts/setup and iperf3: left alone where there is one, unpacked when it can be fetched, and never a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.lib.debian import PackageUnavailableError
from scripts.lib.iperf3 import IPERF3
from scripts.lib.provision import Provision

CONTROL = "Package: {}\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.test>\nDescription: x\n"


def package(directory: Path, name: str, files: dict[str, str]) -> None:
    tree = directory / f"{name}.tree"
    for path, content in {"DEBIAN/control": CONTROL.format(name), **files}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(content)
        (tree / path).chmod(0o755)
    subprocess.run(["dpkg-deb", "--build", tree, directory / f"{name}.deb"], check=True, capture_output=True)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    return tmp_path / "venv"


def test_fetched_packages_become_a_program_that_finds_its_libraries(tmp_path: Path, venv: Path) -> None:
    package(tmp_path, "iperf3", {"usr/bin/iperf3": '#!/bin/sh\necho "$1 $(cat $LD_LIBRARY_PATH/libiperf.so.0)"\n'})
    package(tmp_path, "libiperf0", {"usr/lib/x86_64-linux-gnu/libiperf.so.0": "library"})
    IPERF3.install(tmp_path, venv)
    done = subprocess.run([venv / "bin" / "iperf3", "--client"], capture_output=True, text=True, check=True)
    assert done.stdout == "--client library\n"
    assert IPERF3.is_there(venv)


def test_a_program_that_does_not_run_is_not_left_behind(tmp_path: Path, venv: Path) -> None:
    package(tmp_path, "iperf3", {"usr/bin/iperf3": "#!/bin/sh\nexit 127\n"})
    with pytest.raises(PackageUnavailableError, match="does not run here"):
        IPERF3.install(tmp_path, venv)
    assert not (venv / "bin" / "iperf3").exists()
    assert not (venv / "lib" / "iperf3").exists()


def test_packages_of_another_layout_are_refused(tmp_path: Path, venv: Path) -> None:
    package(tmp_path, "iperf3", {"opt/iperf3": ""})
    with pytest.raises(PackageUnavailableError, match="another layout"):
        IPERF3.install(tmp_path, venv)


def test_the_set_up_goes_on_without_iperf3_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name, **_: None)
    Provision(tmp_path)._provide_iperf3()
    said = "note: no iperf3 (this is no Debian); fedrdma bench wan leaves out the rows that need it\n"
    assert capsys.readouterr().out == said


def test_iperf3_that_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/usr/bin/{name}")
    Provision(tmp_path)._provide_iperf3()
    assert capsys.readouterr().out == ""
