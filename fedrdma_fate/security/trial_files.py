"""The files of a trial's authority and of its sites, in one directory: SITE.pem, SITE.key, ca.pem, ca.key."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cryptography import x509

from fedrdma_fate.security.trial_authority import KeyPair, make_authority, make_revocation_list, make_site
from fedrdma_fate.wire.errors import ConfigError, ErrorCode

_AUTHORITY = "ca"
_REVOKED = "revoked.pem"


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
            _write(directory, site, make_site(authority, [site], now, valid))
    except OSError as error:
        raise _unusable(f"{error.filename or directory}: {error.strerror or error}.") from error


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
    directory: Path, sites: Sequence[str], now: datetime.datetime, valid: datetime.timedelta
) -> Path:
    """Put the certificates of sites on the authority's list, beside those that are on it; where that lies.

    Args:
        directory: of the authority.
        sites: whose.
        now: with its time zone.
        valid: until the next list.

    Raises:
        ConfigError: TLS_FILE_UNUSABLE when files cannot be read or written.
    """
    authority, path = _read(directory, _AUTHORITY), directory / _REVOKED
    try:
        serials = {_certificate(directory, site).serial_number for site in sites}
        if path.exists():
            serials |= {entry.serial_number for entry in x509.load_pem_x509_crl(path.read_bytes())}
        # at once: gateways may be reading it
        new = path.with_suffix(".new")
        new.write_bytes(make_revocation_list(authority, sorted(serials), now, valid))
        os.replace(new, path)
    except (OSError, ValueError) as error:
        raise _unusable(f"{error}.") from error
    return path


def _certificate(directory: Path, site: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate_path(directory, site).read_bytes())


def _read(directory: Path, name: str) -> KeyPair:
    try:
        return KeyPair.parse(certificate_path(directory, name).read_bytes(), key_path(directory, name).read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(f"the authority in {directory} cannot be used: {error}.") from error


def _write(directory: Path, name: str, pair: KeyPair) -> None:
    for path, content in (
        (key_path(directory, name), pair.key_pem),
        (certificate_path(directory, name), pair.certificate_pem),
    ):
        _check_absent(path)
        # made for its owner alone from the first moment on; a certificate is for everybody
        mode = 0o600 if path.suffix == ".key" else 0o644
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
