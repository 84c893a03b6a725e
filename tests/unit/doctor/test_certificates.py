"""What the doctor says of certificates."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from fedrdma_fate.doctor.certificates import check_certificates
from fedrdma_fate.doctor.findings import Finding
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.security.trial_authority import make_authority
from tests.support.certificates import DAY, TestAuthority, now


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    made = TestAuthority(tmp_path / "tls")
    made.pair = make_authority("authority", now(), 400 * DAY)
    made.path.write_bytes(made.pair.certificate_pem)
    made.issue("a", valid=100 * DAY)
    return made


def check(authority: TestAuthority, at: datetime.datetime | None = None, **tls: Any) -> Finding:
    config = parse_config({"site": "a", "parties": ["1"], "tls": authority.settings("a", **tls)})
    return check_certificates(config, at or now())


def test_certificates_that_hold_are_fine(authority: TestAuthority) -> None:
    finding = check(authority)
    assert finding.level == "ok"
    assert "site a" in finding.found


def test_one_that_ends_soon_is_a_warning(authority: TestAuthority) -> None:
    assert check(authority, now() + 69 * DAY).level == "ok"
    finding = check(authority, now() + 71 * DAY)
    assert finding.level == "warning"
    assert "a.pem ends at" in finding.found


def test_one_that_has_ended_is_an_error(authority: TestAuthority) -> None:
    finding = check(authority, now() + 101 * DAY)
    assert finding.level == "error"
    assert "[FR105]" in finding.found


def test_an_authority_or_a_list_that_ends_soon_is_a_warning(authority: TestAuthority) -> None:
    short = TestAuthority(authority.directory / "short", "short")
    finding = check(authority, authorities=[str(authority.path), str(short.path)])
    assert finding.level == "warning"
    assert "the authority CN=short" in finding.found
    finding = check(authority, revocation_lists=[str(authority.revoke())])
    assert finding.level == "warning"
    assert "the revocation list of CN=authority" in finding.found


def test_a_key_that_others_may_read_is_an_error(authority: TestAuthority) -> None:
    (authority.directory / "a.key").chmod(0o644)
    finding = check(authority)
    assert finding.level == "error"
    assert "[FR106]" in finding.found


def test_another_sites_certificate_is_an_error(authority: TestAuthority) -> None:
    authority.issue("b", name="a")
    assert "[FR108]" in check(authority).found


def test_without_protection_there_is_a_warning() -> None:
    finding = check_certificates(parse_config({"site": "a", "parties": ["1"], "security": "off"}), now())
    assert finding.level == "warning"
    assert finding.remedy
    assert check_certificates(None, now()).level == "ok"
