"""RabbitMQ and Erlang from Debian's packages: there whole or not at all, and no part of scripts/setup."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from scripts.lib import debian, provision, rabbitmq
from scripts.lib.debian import PackageUnavailableError


def packages(root: Path, erlexec: str | None) -> Path:
    """As they lie when they are unpacked."""
    (root / "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/sbin").mkdir(parents=True)
    if erlexec is not None:
        emulator = root / "usr/lib/erlang/erts-13.1.5/bin/erlexec"
        emulator.parent.mkdir(parents=True)
        emulator.write_text(f"#!/bin/sh\n{erlexec}\n")
        emulator.chmod(0o755)
    return root


def test_it_is_put_where_it_is_looked_for_also_in_the_place_of_a_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = packages(
        tmp_path / "root", 'test "$BINDIR" = "$(dirname "$0")" && test "$ROOTDIR/erts-13.1.5/bin" = "$BINDIR"'
    )
    monkeypatch.setattr(debian, "unpack", lambda _: root)
    home = tmp_path / "venv/lib/rabbitmq"
    for _ in range(2):
        rabbitmq.install(tmp_path, tmp_path / "venv")
        assert (home / "usr/lib/erlang/erts-13.1.5/bin/erlexec").is_file()
        assert [each.name for each in home.parent.iterdir()] == ["rabbitmq"]


@pytest.mark.parametrize(
    ("erlexec", "reason"), [(None, "have another layout"), ("exit 1", "Debian's Erlang does not run here")]
)
def test_what_does_not_run_here_leaves_nothing(
    erlexec: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "unpack", lambda _: packages(tmp_path / "root", erlexec))
    with pytest.raises(PackageUnavailableError, match=reason):
        rabbitmq.install(tmp_path, tmp_path / "venv")
    assert not list((tmp_path / "venv").glob("lib/*"))


def test_where_packages_cannot_be_fetched_it_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name, **_: None)
    assert rabbitmq.main() == 1
    assert capsys.readouterr().err == "this is no Debian\n"


def test_the_set_up_does_not_fetch_it() -> None:
    assert "rabbitmq" not in inspect.getsource(provision)
