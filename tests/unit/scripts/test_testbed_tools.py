"""scripts/setup and the testbed's programs: left alone where they are, installed by root, told to others."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.softroce import run as run_module
from scripts.lib import testbed_tools
from scripts.lib.debian import PackageUnavailableError
from scripts.lib.provision import Provision


def test_the_package_has_all_that_a_guest_is_missing_without_it() -> None:
    assert {tool for tool, package in run_module._TOOLS.items() if package == testbed_tools.PACKAGE} == set(
        testbed_tools.TOOLS
    )


def test_programs_of_administrators_count_for_ordinary_users_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(testbed_tools, "_ADMIN_PATH", str(tmp_path / "sbin"))
    assert not testbed_tools.are_there()
    (tmp_path / "sbin").mkdir()
    for tool in testbed_tools.TOOLS:
        (tmp_path / "sbin" / tool).touch(mode=0o755)
    assert testbed_tools.are_there()


@pytest.mark.parametrize(("uid", "apt", "reason"), [(1000, "/usr/bin/apt-get", "only root"), (0, None, "no Debian")])
def test_who_cannot_install_them_is_told_why(
    uid: int, apt: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("shutil.which", lambda _: apt)
    with pytest.raises(PackageUnavailableError, match=reason):
        testbed_tools.provide()


@pytest.mark.parametrize("failing", ["update", "iproute2"])
def test_a_failing_installation_is_told(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, int(command[-1] == failing))

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/apt-get")
    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(PackageUnavailableError, match=f"{failing} failed"):
        testbed_tools.provide()


def test_a_set_up_goes_on_without_them_and_says_what_an_administrator_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testbed_tools, "are_there", lambda: False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    Provision(tmp_path)._provide_testbed_tools()
    said = capsys.readouterr().out
    assert "note: no iproute2 (only root installs it)" in said
    assert "Run as root:  apt-get update && apt-get install -y --no-install-recommends iproute2" in said
