"""`fedrdma certs`: a set of files that gateways take."""

from __future__ import annotations

import datetime
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509

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


def serials(directory: Path, name: str) -> set[int]:
    if name == "revoked.pem":
        return {entry.serial_number for entry in x509.load_pem_x509_crl((directory / name).read_bytes())}
    return {x509.load_pem_x509_certificate((directory / name).read_bytes()).serial_number}


def test_a_renewed_certificate_is_in_the_place_of_the_old_one_which_stays_beside_it(tmp_path: Path) -> None:
    certs(str(tmp_path), "a", "Bank B")
    old, old_key = serials(tmp_path, "Bank B.pem"), (tmp_path / "Bank B.key").read_bytes()
    for _ in range(2):
        credentials = credentials_of(configured(certs(str(tmp_path), "--renew", "Bank B"), "Bank B"))
        assert credentials is not None
        assert {credentials.current.certificate.serial_number} == serials(tmp_path, "Bank B.pem")
    assert (tmp_path / "Bank B.key").read_bytes() != old_key
    assert stat.S_IMODE((tmp_path / "Bank B.key").stat().st_mode) == 0o600
    kept = [path.name for path in tmp_path.glob("Bank B.*.pem")]
    assert len(kept) == 2
    assert old <= serials(tmp_path, kept[0]) | serials(tmp_path, kept[1])
    assert not list(tmp_path.glob("*.new"))


def test_what_was_never_made_cannot_be_renewed(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    assert "FR105" in certs(str(tmp_path), "--renew", "b", code=1)


def test_revoking_a_site_revokes_every_certificate_that_it_ever_had(tmp_path: Path) -> None:
    certs(str(tmp_path), "a", "b")
    had = serials(tmp_path, "a.pem")
    for _ in range(3):
        certs(str(tmp_path), "--renew", "a")
        had |= serials(tmp_path, "a.pem")
    certs(str(tmp_path), "--revoke", "a")
    assert len(had) == 4
    assert serials(tmp_path, "revoked.pem") == had


def test_only_what_was_renewed_can_be_revoked_so_that_the_new_one_goes_on(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    old = serials(tmp_path, "a.pem")
    certs(str(tmp_path), "--renew", "a")
    certs(str(tmp_path), "--revoke", "--superseded", "a")
    assert serials(tmp_path, "revoked.pem") == old
    # and one that comes after a revocation is not on the list
    certs(str(tmp_path), "--revoke", "a")
    certs(str(tmp_path), "--renew", "a")
    assert not serials(tmp_path, "a.pem") & serials(tmp_path, "revoked.pem")


def test_a_list_can_be_made_before_anything_is_revoked_and_anew_before_it_runs_out(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    certs(str(tmp_path), "--revoke")
    assert serials(tmp_path, "revoked.pem") == set()
    certs(str(tmp_path), "--revoke", "a")
    certs(str(tmp_path), "--revoke", "--days", "700")
    assert serials(tmp_path, "revoked.pem") == serials(tmp_path, "a.pem")
    revoked = x509.load_pem_x509_crl((tmp_path / "revoked.pem").read_bytes())
    assert revoked.next_update_utc is not None
    assert revoked.next_update_utc - revoked.last_update_utc >= datetime.timedelta(days=699)


def test_a_certificate_holds_no_longer_than_its_authority(tmp_path: Path) -> None:
    certs(str(tmp_path), "--days", "10", "a")
    certs(str(tmp_path), "--days", "700", "b")
    certs(str(tmp_path), "--days", "700", "--renew", "a")
    ends = {
        name: x509.load_pem_x509_certificate((tmp_path / f"{name}.pem").read_bytes()).not_valid_after_utc
        for name in ("ca", "a", "b")
    }
    assert ends["a"] <= ends["ca"]
    assert ends["b"] <= ends["ca"]


def test_a_file_that_is_no_certificate_stops_a_revocation(tmp_path: Path) -> None:
    certs(str(tmp_path), "a")
    (tmp_path / "a.1.pem").write_text("what was it?")
    told = certs(str(tmp_path), "--revoke", "a", code=1)
    assert "a.1.pem" in told
    assert not (tmp_path / "revoked.pem").exists()


@pytest.mark.parametrize("arguments", [[], ["--renew"], ["--renew", "--revoke", "a"], ["--superseded", "a"]])
def test_options_that_make_no_sense_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    certs(str(tmp_path / "made"), *arguments, code=2)
    assert not (tmp_path / "made").exists()
