"""The step `audit`: what a gateway runs fails it, FATE's own pins are printed, and not knowing is not passing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.lib import audit as audit_module
from scripts.lib.audit import (
    CANARY,
    Finding,
    NoAdvisoriesError,
    audit,
    gateway_packages,
    newest_pins,
    pins,
    read_findings,
)
from scripts.lib.console import CommandError
from tests.support.repository import ROOT

LOCK = (
    "cryptography==47.0.0 \\\n    --hash=sha256:00\ntorch==2.3.1 ; python_version < '3.12' \\\n    --hash=sha256:11\n"
)
QUIC_LOCK = (
    "aioquic==1.3.0 ; python_full_version < '3.11' \\\n    --hash=sha256:00\n"
    "aioquic==1.7.2 ; python_full_version >= '3.11' \\\n    --hash=sha256:11\n"
    "cryptography==50.0.0 \\\n    --hash=sha256:22\n"
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "requirements.lock").write_text(LOCK)
    (tmp_path / "requirements-quic.lock").write_text(QUIC_LOCK)
    return tmp_path


def pip_audit(directory: Path, monkeypatch: pytest.MonkeyPatch, known: Mapping[str, str]) -> None:
    """Puts a program in pip-audit's place that knows of one weakness each in these releases."""
    program = directory / "pip-audit"
    program.write_text(
        "#!/usr/bin/env python3\n"
        "import json, sys\n"
        f"known = {dict(known)!r}\n"
        "asked = open(sys.argv[-1].split('=', 1)[1]).read().split()\n"
        "print(json.dumps({'dependencies': [{'name': pin.split('==')[0], 'version': pin.split('==')[1], 'vulns':\n"
        "  [{'id': known[pin], 'fix_versions': ['99']}] if pin in known else []} for pin in asked]}))\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(audit_module, "_provide", lambda _root: program)


def test_a_weakness_of_what_a_gateway_runs_is_found(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_audit(repository, monkeypatch, {CANARY: "OLD", "cryptography==47.0.0": "NEW"})
    assert audit(repository) == [Finding("cryptography", "47.0.0", "NEW", ("99",))]


def test_a_weakness_of_what_fate_pins_is_printed_and_fails_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip_audit(repository, monkeypatch, {CANARY: "OLD", "torch==2.3.1": "WEAK"})
    assert audit(repository) == []
    assert "pinned by FATE or FATE-LLM: torch 2.3.1: WEAK, mended in 99" in capsys.readouterr().out


def test_a_weakness_of_what_benchmarks_alone_run_is_printed_and_fails_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip_audit(repository, monkeypatch, {CANARY: "OLD", "aioquic==1.7.2": "WEAK", "cryptography==50.0.0": "NEW"})
    assert audit(repository) == []
    said = capsys.readouterr().out
    assert "of QUIC in benchmarks: aioquic 1.7.2: WEAK, mended in 99" in said
    assert "of QUIC in benchmarks: cryptography 50.0.0: NEW" in said


def test_of_a_lock_for_several_pythons_each_package_is_asked_about_once() -> None:
    assert newest_pins(QUIC_LOCK) == "aioquic==1.7.2\ncryptography==50.0.0\n"


def test_a_finding_that_does_not_concern_a_gateway_is_printed_with_the_reason(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pip_audit(repository, monkeypatch, {CANARY: "OLD", "cryptography==47.0.0": "NEW"})
    monkeypatch.setattr(audit_module, "EXPLAINED", {"NEW": "only on other systems"})
    assert audit(repository) == []
    assert "NEW, mended in 99: only on other systems" in capsys.readouterr().out


def test_an_index_that_knows_of_no_weakness_at_all_is_not_believed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_audit(repository, monkeypatch, {})
    with pytest.raises(NoAdvisoriesError, match=r"knows of no weakness in requests==2\.19\.0"):
        audit(repository)


def test_no_network_is_said_and_is_no_pass(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = repository / "pip-audit"
    program.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(audit_module, "_provide", lambda _root: program)
    with pytest.raises(NoAdvisoriesError, match="no route to host"):
        audit(repository)


def test_what_is_no_report_is_an_error() -> None:
    with pytest.raises(CommandError, match="no report"):
        read_findings('{"else": 1}')


def test_a_gateway_runs_what_the_wheel_names_and_what_those_need() -> None:
    packages = gateway_packages()
    assert {"cryptography", "cffi", "grpcio", "msgspec"} <= packages
    assert not packages & {"torch", "pyfate", "pytest", "fedrdma-fate"}


def test_every_package_of_the_lock_is_asked_about_without_hashes_or_markers() -> None:
    assert pins(LOCK) == "cryptography==47.0.0\ntorch==2.3.1\n"
    lock = (ROOT / "requirements.lock").read_text()
    assert len(pins(lock).splitlines()) == sum("==" in line and not line.startswith(" ") for line in lock.splitlines())


def test_a_report_names_release_weakness_and_remedy() -> None:
    report = {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": []}]}]}
    (finding,) = read_findings(json.dumps(report))
    assert str(finding) == "a 1: X-1, not mended in any release"
