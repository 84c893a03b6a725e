"""The files of a trial's authority and of its sites, in one directory: SITE.pem, SITE.key, ca.pem, ca.key.

A certificate that was renewed stays beside the new one, as SITE.SERIAL.pem: until it ends it is believed, so it has to
be at hand when the site's certificates are revoked.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedrdma_fate.security.identity import site_of
from fedrdma_fate.security.trial_authority import KeyPair, make_authority, make_revocation_list, make_site
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_AUTHORITY = "ca"
_REVOKED = "revoked.pem"
_KEY_MODE = 0o600
"""A key is for its owner; a gateway refuses one that others may read."""
_CERTIFICATE_MODE = 0o644
"""A certificate is for everybody, and so is a list."""


def make_certificates(directory: Path, sites: Sequence[str], now: datetime.datetime, valid: datetime.timedelta) -> None:
    """Make what is missing; nothing that is there is written over.

    Args:
        directory: where to.
        sites: a certificate and a key for each.
        now: with its time zone.
        valid: for how long.

    Raises:
        ConfigError: TLS_FILE_UNUSABLE when files are there already, or cannot be read or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for site in sites:
            _check_absent(certificate_path(directory, site), key_path(directory, site))
        if certificate_path(directory, _AUTHORITY).exists():
            authority = _read(directory, _AUTHORITY)
        else:
            authority = make_authority("fedrdma trial authority", now, valid)
            _write(directory, _AUTHORITY, authority)
        for site in sites:
            _write(directory, site, _make_site(authority, site, now, valid))
    except OSError as error:
        raise _unusable(f"{error.filename or directory}: {error.strerror or error}.") from error


def renew_certificates(
    directory: Path, sites: Sequence[str], now: datetime.datetime, valid: datetime.timedelta
) -> None:
    """A new certificate and key for each site, in the place of the old; the old certificates stay beside them.

    Args:
        directory: of the authority.
        sites: whose.
        now: with its time zone.
        valid: for how long.

    Raises:
        ConfigError: TLS_FILE_UNUSABLE when files cannot be read or written.
    """
    authority = _read(directory, _AUTHORITY)
    try:
        replaced = {site: _certificate(certificate_path(directory, site)) for site in sites}
        for site, old in replaced.items():
            made = _make_site(authority, site, now, valid)
            kept = directory / f"{quote(site, safe=' ')}.{old.serial_number:x}.pem"
            _replace(kept, old.public_bytes(Encoding.PEM), _CERTIFICATE_MODE)
            _replace(key_path(directory, site), made.key_pem, _KEY_MODE)
            _replace(certificate_path(directory, site), made.certificate_pem, _CERTIFICATE_MODE)
    except OSError as error:
        raise _unusable(f"{error.filename or directory}: {error.strerror or error}.") from error


def _make_site(authority: KeyPair, site: str, now: datetime.datetime, valid: datetime.timedelta) -> KeyPair:
    """A site's certificate holds no longer than that of its authority, which nobody would believe any more."""
    left = authority.certificate.not_valid_after_utc - now
    if left <= datetime.timedelta():
        raise _unusable("the authority's certificate has ended.", "Make another one in another directory.")
    return make_site(authority, [site], now, min(valid, left))


def certificate_path(directory: Path, site: str) -> Path:
    """Where the certificate of a site lies."""
    return directory / f"{quote(site, safe=' ')}.pem"


def key_path(directory: Path, site: str) -> Path:
    """Where its key lies."""
    return directory / f"{quote(site, safe=' ')}.key"


def tls_settings(directory: Path, site: str) -> dict[str, Any]:
    """Key `tls` of the configuration of a site."""
    absolute = directory.resolve()
    return {
        "certificate": str(certificate_path(absolute, site)),
        "key": str(key_path(absolute, site)),
        "authorities": [str(certificate_path(absolute, _AUTHORITY))],
    }


def revoke_certificates(
    directory: Path,
    sites: Sequence[str],
    now: datetime.datetime,
    valid: datetime.timedelta,
    *,
    superseded: bool = False,
) -> Path:
    """Put all certificates of sites on the authority's list, beside those that are on it; where that lies.

    Args:
        directory: of the authority.
        sites: whose; none makes the list anew, perhaps an empty one.
        now: with its time zone.
        valid: until the next list.
        superseded: only those that were renewed, and not SITE.pem.

    Raises:
        ConfigError: TLS_FILE_UNUSABLE when files cannot be read or written.
    """
    authority, path = _read(directory, _AUTHORITY), directory / _REVOKED
    try:
        serials: set[int] = set()
        for site in sites:
            current = _certificate(certificate_path(directory, site)).serial_number
            serials |= _serials_of(directory, site) - ({current} if superseded else set())
        if path.exists():
            serials |= {entry.serial_number for entry in x509.load_pem_x509_crl(path.read_bytes())}
        _replace(path, make_revocation_list(authority, sorted(serials), now, valid), _CERTIFICATE_MODE)
    except (OSError, ValueError) as error:
        raise _unusable(f"{error}.") from error
    return path


def _serials_of(directory: Path, site: str) -> set[int]:
    """Of every certificate in the directory that names a site, whatever its file is called."""
    paths = sorted(path for path in directory.glob("*.pem") if path.name not in (_REVOKED, f"{_AUTHORITY}.pem"))
    certificates = [_certificate(path) for path in paths]
    return {certificate.serial_number for certificate in certificates if site_of(certificate) == site}


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise _unusable(f"{path} is no certificate: {error}.", "Take out of the directory what is none.") from error


def _read(directory: Path, name: str) -> KeyPair:
    try:
        return KeyPair.parse(certificate_path(directory, name).read_bytes(), key_path(directory, name).read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(f"the authority in {directory} cannot be used: {error}.") from error


def _write(directory: Path, name: str, pair: KeyPair) -> None:
    for path, content, mode in (
        (key_path(directory, name), pair.key_pem, _KEY_MODE),
        (certificate_path(directory, name), pair.certificate_pem, _CERTIFICATE_MODE),
    ):
        _check_absent(path)
        _create(path, content, mode)


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file at once: gateways may be reading it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    _create(new, content, mode)
    os.replace(new, path)


def _create(path: Path, content: bytes, mode: int) -> None:
    """Made with its mode, so that a key is for its owner alone from the first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _check_absent(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise _unusable(
                f"{path} is there already.", "Remove it if nobody needs it any more; nothing is written over."
            )


def _unusable(what: str, remedy: str = "") -> ConfigError:
    return ConfigError(ErrorCode.TLS_FILE_UNUSABLE, what, remedy)
