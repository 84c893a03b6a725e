"""Certificates, keys and authorities are checked as a whole when they are read, and read again when they change."""

from __future__ import annotations

import datetime
import errno
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from fedrdma_fate.security import reloading
from fedrdma_fate.security.credentials import CredentialFiles, Credentials, load_credentials
from fedrdma_fate.security.identity import site_of, uri_of_site
from fedrdma_fate.security.reloading import SiteCredentials
from fedrdma_fate.security.trial_authority import KeyPair, make_authority, make_revocation_list, make_site
from fedrdma_fate.security.trust import Trust
from fedrdma_fate.wire.errors import ConfigError, ErrorCode
from tests.support.certificates import DAY, TestAuthority, now


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    made = TestAuthority(tmp_path / "tls")
    made.issue("a")
    return made


def files(authority: TestAuthority, name: str = "a", *lists: Path) -> CredentialFiles:
    stem = authority.directory / name
    return CredentialFiles(stem.with_suffix(".pem"), stem.with_suffix(".key"), (authority.path,), lists)


def refused(which: CredentialFiles, site: str = "a") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_credentials(which, site, now())
    return caught.value


# --- the name of a site ---


@pytest.mark.parametrize("site", ["bank-a", "bank a", "Sparkasse/Köln", "a%2Fb", "..", "fedrdma://site/x"])
def test_a_site_is_named_by_one_uri_whatever_its_name(authority: TestAuthority, site: str) -> None:
    assert site_of(make_site(authority.pair, [site], now(), DAY).certificate) == site


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["spiffe://bank/a"],
        ["fedrdma://site/a", "fedrdma://site/b"],
        ["fedrdma://site/a", "fedrdma://site/a"],
        ["fedrdma://site/"],
        ["fedrdma://site/%61"],
        ["fedrdma://site/a%2fb"],
        ["fedrdma://site/a/b"],
        ["fedrdma://site/%FF"],
        ["fedrdma://SITE/a"],
        ["FEDRDMA://site/a"],
        ["fedrdma://peer/a"],
        ["fedrdma:a"],
    ],
)
def test_a_certificate_with_no_site_two_or_one_spelt_otherwise_names_none(
    authority: TestAuthority, uris: list[str]
) -> None:
    with pytest.raises(ValueError, match="name"):
        site_of(_with_uris(authority, uris))


def test_uris_of_others_may_stand_beside(authority: TestAuthority) -> None:
    assert site_of(_with_uris(authority, ["spiffe://bank/a", uri_of_site("a"), "https://bank.example"])) == "a"


def _with_uris(authority: TestAuthority, uris: list[str]) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    pair = make_site(authority.pair, [], now(), DAY)
    builder = x509.CertificateBuilder().subject_name(pair.certificate.subject).issuer_name(pair.certificate.issuer)
    builder = builder.public_key(pair.key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now()).not_valid_after(now() + DAY)
    if uris:
        names = [x509.UniformResourceIdentifier(uri) for uri in uris]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(authority.pair.key, hashes.SHA256())


# --- files ---


def test_files_that_belong_together_are_taken(authority: TestAuthority) -> None:
    credentials = load_credentials(files(authority), "a", now())
    assert credentials.site == "a"
    assert len(credentials.trust.authorities) == 1


def test_intermediate_authorities_and_lists_in_both_encodings_are_taken(authority: TestAuthority) -> None:
    below = make_authority("below", now(), DAY, issuer=authority.pair)
    pair = make_site(below, ["a"], now(), DAY)
    (authority.directory / "a.pem").write_bytes(pair.certificate_pem + below.certificate_pem)
    (authority.directory / "a.key").write_bytes(pair.key_pem)
    pem = authority.revoke()
    der = authority.directory / "list.der"
    der.write_bytes(x509.load_pem_x509_crl(pem.read_bytes()).public_bytes(Encoding.DER))
    both = authority.directory / "both.pem"
    both.write_bytes(pem.read_bytes() * 2)
    assert len(load_credentials(files(authority, "a", pem, der, both), "a", now()).trust.lists) == 4


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o606])
def test_a_key_that_others_may_use_is_refused(authority: TestAuthority, mode: int) -> None:
    (authority.directory / "a.key").chmod(mode)
    error = refused(files(authority))
    assert error.code is ErrorCode.KEY_EXPOSED
    assert f"{mode:04o}" in error.message
    assert "chmod 600" in error.remedy


@pytest.mark.parametrize("name", ["ca.pem", "a.pem"])
def test_authorities_and_certificates_that_every_user_may_write_are_refused(
    authority: TestAuthority, name: str
) -> None:
    path = authority.path if name == "ca.pem" else authority.directory / name
    path.chmod(0o664)
    load_credentials(files(authority), "a", now())
    path.chmod(0o666)
    error = refused(files(authority))
    assert error.code is ErrorCode.TLS_FILE_UNUSABLE
    assert "every user" in error.message


def test_a_key_of_another_certificate_is_refused(authority: TestAuthority) -> None:
    other = make_site(authority.pair, ["a"], now(), DAY)
    (authority.directory / "a.key").write_bytes(other.key_pem)
    assert refused(files(authority)).code is ErrorCode.KEY_MISMATCH


@pytest.mark.parametrize(("sites", "words"), [([], "names no site"), (["a", "b"], "names 2 sites"), (["b"], "'b'")])
def test_a_certificate_without_this_site_alone_is_refused(
    authority: TestAuthority, sites: list[str], words: str
) -> None:
    authority.issue(sites, name="a")
    error = refused(files(authority))
    assert error.code is ErrorCode.CERTIFICATE_SITE
    assert words in error.message


@pytest.mark.parametrize("at", [now() - 3 * DAY, now() + DAY], ids=["expired", "not-yet"])
def test_a_certificate_that_is_not_valid_by_the_clock_here_is_refused(
    authority: TestAuthority, at: datetime.datetime
) -> None:
    authority.issue("a", at=at)
    error = refused(files(authority))
    assert error.code is ErrorCode.TLS_FILE_UNUSABLE
    assert "the clock of this host says" in error.message


@pytest.mark.parametrize("suffix", [".pem", ".key"])
@pytest.mark.parametrize("content", [None, b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nxx\n"])
def test_files_that_are_absent_or_garbage_are_refused(
    authority: TestAuthority, suffix: str, content: bytes | None
) -> None:
    path = authority.directory / f"a{suffix}"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    error = refused(files(authority))
    assert error.code is ErrorCode.TLS_FILE_UNUSABLE
    assert str(path) in error.message


def test_an_encrypted_key_is_refused_and_asks_nobody(authority: TestAuthority) -> None:
    pair = authority.issue("a")
    encrypted = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (authority.directory / "a.key").write_bytes(encrypted)
    assert "encrypted" in refused(files(authority)).message


def test_garbage_as_authority_or_list_is_refused(authority: TestAuthority) -> None:
    garbage = authority.directory / "garbage"
    garbage.write_bytes(b"garbage")
    assert refused(files(authority, "a", garbage)).code is ErrorCode.TLS_FILE_UNUSABLE
    authority.path.write_bytes(b"garbage")
    assert refused(files(authority)).code is ErrorCode.TLS_FILE_UNUSABLE


# --- what a peer has shown, later on ---


def chain_of(authority: TestAuthority, site: str = "b") -> tuple[tuple[bytes, ...], Credentials]:
    pair = authority.issue(site)
    credentials = load_credentials(files(authority), "a", now())
    der = tuple(each.public_bytes(Encoding.DER) for each in (pair.certificate, authority.pair.certificate))
    return der, credentials


def test_a_chain_holds_until_it_expires(authority: TestAuthority) -> None:
    chain, credentials = chain_of(authority)
    assert credentials.trust.objection(chain, now()) is None
    assert "expired" in str(credentials.trust.objection(chain, now() + 2 * DAY))


def test_a_chain_holds_until_a_certificate_of_it_is_revoked_by_its_own_issuer(
    authority: TestAuthority, tmp_path: Path
) -> None:
    chain, _ = chain_of(authority)
    pair = x509.load_der_x509_certificate(chain[0])

    def objection(by: TestAuthority) -> str | None:
        by.list_path.write_bytes(make_revocation_list(by.pair, [pair.serial_number], now(), DAY))
        return load_credentials(files(authority, "a", by.list_path), "a", now()).trust.objection(chain, now())

    # of the same name, but not the one that issued it: its list counts for nothing
    assert "is current" in str(objection(TestAuthority(tmp_path / "other")))
    assert "was revoked" in str(objection(authority))


def test_a_chain_does_not_outlive_the_revocation_list_of_its_authority(authority: TestAuthority) -> None:
    chain, _ = chain_of(authority)
    trust = load_credentials(files(authority, "a", authority.revoke()), "a", now()).trust
    assert trust.objection(chain, now()) is None
    lasting = Trust(trust.authorities, (crl(authority, DAY / 2), crl(authority, DAY / 4)))
    assert lasting.objection(chain, now() + DAY / 3) is None
    assert "no revocation list of CN=authority is current" in str(lasting.objection(chain, now() + DAY * 2 / 3))


def test_a_chain_needs_a_revocation_list_of_each_authority_where_there_are_any(
    authority: TestAuthority, tmp_path: Path
) -> None:
    chain, _ = chain_of(authority)
    other = TestAuthority(tmp_path / "other", "another")
    trust = Trust((authority.pair.certificate, other.pair.certificate), (crl(other, DAY),))
    assert "no revocation list of CN=authority is current" in str(trust.objection(chain, now()))


def crl(authority: TestAuthority, valid: datetime.timedelta) -> x509.CertificateRevocationList:
    return x509.load_pem_x509_crl(make_revocation_list(authority.pair, [], now(), valid))


def test_what_a_certificate_says_is_cut_before_it_is_told(authority: TestAuthority) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    loud = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "m" * 64)] * 50)
    builder = x509.CertificateBuilder().subject_name(loud).issuer_name(authority.pair.certificate.subject)
    builder = builder.public_key(key.public_key()).serial_number(7)
    builder = builder.not_valid_before(now() - DAY).not_valid_after(now() + DAY)
    middle = builder.sign(authority.pair.key, SHA256())
    site = make_site(KeyPair(middle, key), ["b"], now(), 3 * DAY)
    chain = [each.public_bytes(Encoding.DER) for each in (site.certificate, middle, authority.pair.certificate)]
    assert len(str(Trust((authority.pair.certificate,), ()).objection(chain, now() + 2 * DAY))) < 400


def test_a_chain_of_an_authority_that_is_believed_no_more_does_not_hold(
    authority: TestAuthority, tmp_path: Path
) -> None:
    chain, _ = chain_of(authority)
    new = TestAuthority(tmp_path / "new")
    new.issue("a")
    assert "no authority" in str(load_credentials(files(new), "a", now()).trust.objection(chain, now()))


# --- changes ---


def test_files_that_have_not_changed_are_not_read_again(authority: TestAuthority) -> None:
    held = SiteCredentials(files(authority), "a")
    first = held.current
    assert not held.look()
    assert held.current is first


def test_new_files_are_taken_and_broken_ones_are_not(authority: TestAuthority) -> None:
    held = SiteCredentials(files(authority), "a")
    first = held.current
    authority.issue("b", name="a")
    assert held.look()
    assert held.error is not None
    assert held.error.code is ErrorCode.CERTIFICATE_SITE
    assert held.current is first
    second = authority.issue("a")
    assert held.look()
    assert held.error is None
    assert held.current.certificate == second.certificate


def test_new_files_that_could_not_be_used_once_are_tried_again(
    authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = authority.revoke()
    held = SiteCredentials(files(authority, "a", revoked), "a")
    authority.revoke(authority.issue("b"))

    def no_descriptor(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", no_descriptor)
        assert held.look()
        assert held.error is not None
        # and is told once
        assert not held.look()
    assert held.look()
    assert held.error is None
    assert len(list(held.current.trust.lists[0])) == 1
    assert not held.look()


def test_a_look_that_fails_for_whatever_reason_is_made_again(
    authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = SiteCredentials(files(authority), "a")
    new = authority.issue("a")
    with monkeypatch.context() as patched:
        patched.setattr(reloading, "load_credentials", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            held.look()
    assert held.look()
    assert held.current.certificate == new.certificate


def test_a_file_that_is_written_over_and_given_its_old_time_is_noticed(authority: TestAuthority) -> None:
    held = SiteCredentials(files(authority), "a")
    status = authority.path.stat()
    authority.path.write_bytes(authority.path.read_bytes())
    os.utime(authority.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert held.look()


def test_a_file_of_the_same_length_and_time_that_replaces_another_is_noticed(authority: TestAuthority) -> None:
    held = SiteCredentials(files(authority), "a")
    path = authority.path
    status = path.stat()
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    copy.replace(path)
    assert held.look()
