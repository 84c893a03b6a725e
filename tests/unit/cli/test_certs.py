"""`fedrdma certs`: a set of files that gateways take."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from fedrdma_fate.cli.main import main
from fedrdma_fate.gateway.config.schema import parse_config
from fedrdma_fate.gateway.peers.channel_security import credentials_of


def certs(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["certs", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def configured(printed: str, site: str) -> Any:
    return parse_config({"site": site, "parties": ["1"], **yaml.safe_load(printed)})


@pytest.mark.parametrize("site", ["bank-a", "Bank Köln/2", ".."])
def test_what_it_prints_is_a_configuration_that_a_gateway_takes(tmp_path: Path, site: str) -> None:
    printed = certs(str(tmp_path), site)
    credentials = credentials_of(configured(printed, site))
    assert credentials is not None
    assert credentials.current.site == site


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    certs(str(tmp_path), "a", "b")
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "a.pem": 0o644,
        "a.key": 0o600,
        "b.pem": 0o644,
        "b.key": 0o600,
    }


def test_another_site_comes_from_the_same_authority(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    authority = (tmp_path / "ca.pem").read_bytes()
    certs(str(tmp_path), "b")
    assert (tmp_path / "ca.pem").read_bytes() == authority


def test_nothing_is_written_over(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "FR105" in certs(str(tmp_path), "b", "a", code=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_the_authoritys_key_no_site_can_be_added(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    (tmp_path / "ca.key").unlink()
    assert "FR105" in certs(str(tmp_path), "b", code=1)


def test_revoked_certificates_stand_on_the_list_that_it_names(tmp_path: Path) -> None:
    certs(str(tmp_path), "a", "b", "c")
    certs(str(tmp_path), "--revoke", "b")
    (path,) = yaml.safe_load(certs(str(tmp_path), "--revoke", "c"))["tls"]["revocation_lists"]
    document = {"certificate": "a.pem", "key": "a.key", "authorities": ["ca.pem"]}
    tls: dict[str, Any] = {
        key: str(tmp_path / name) if isinstance(name, str) else [str(tmp_path / each) for each in name]
        for key, name in document.items()
    }
    credentials = credentials_of(configured(yaml.safe_dump({"tls": {**tls, "revocation_lists": [path]}}), "a"))
    assert credentials is not None
    (revoked,) = credentials.current.trust.lists
    assert len(list(revoked)) == 2
    assert "FR105" in certs(str(tmp_path), "--revoke", "nobody", code=1)
