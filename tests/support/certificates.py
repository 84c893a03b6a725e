"""Certificates of tests: an authority, sites of it, and what is wrong with some."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrdma_fate.security.trial_authority import KeyPair, make_authority, make_revocation_list, make_site

DAY = datetime.timedelta(days=1)


def now() -> datetime.datetime:
    """Now."""
    return datetime.datetime.now(datetime.timezone.utc)


class TestAuthority:
    """An authority whose files lie in a directory."""

    __test__ = False

    def __init__(self, directory: Path, name: str = "authority", hosts: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._hosts = hosts
        self.pair = make_authority(name, now(), DAY)
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(self.pair.certificate_pem)
        self.list_path = directory / f"{name}.crl"

    def issue(
        self,
        site: str | Sequence[str],
        at: datetime.datetime | None = None,
        valid: datetime.timedelta = DAY,
        name: str | None = None,
    ) -> KeyPair:
        """A certificate and its key, in NAME.pem and NAME.key, written over what was there."""
        sites = [site] if isinstance(site, str) else list(site)
        pair = make_site(self.pair, sites, at or now(), valid, self._hosts)
        stem = name or (sites[0] if sites else "none")
        (self.directory / f"{stem}.pem").write_bytes(pair.certificate_pem)
        key = self.directory / f"{stem}.key"
        key.touch(0o600)
        key.chmod(0o600)
        key.write_bytes(pair.key_pem)
        return pair

    def revoke(self, *pairs: KeyPair) -> Path:
        """A list with these on it; the path of the list."""
        serials = [pair.certificate.serial_number for pair in pairs]
        self.list_path.write_bytes(make_revocation_list(self.pair, serials, now(), DAY))
        return self.list_path

    def settings(self, name: str, **changes: Any) -> dict[str, Any]:
        """`tls` of the configuration of a site whose files have this name."""
        return {
            "certificate": str(self.directory / f"{name}.pem"),
            "key": str(self.directory / f"{name}.key"),
            "authorities": [str(self.path)],
            **changes,
        }
