"""What a gateway proves itself with, and whom it believes: files, checked as a whole, and TLS made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import ssl
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedrdma_fate.security.identity import PeerIdentity, site_of
from fedrdma_fate.security.tls_refusals import tls_refusal
from fedrdma_fate.security.trust import Trust
from fedrdma_fate.wire.errors import ConfigError, ErrorCode, FedRDMAError, TransportError

_MOST_FILE_BYTES = 64 * 1024 * 1024
"""Of one file: the longest revocation lists that public authorities publish have some ten MiB."""

_HOW = "`fedrdma certs` makes a set for a trial."


@dataclasses.dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Where it all lies.

    Attributes:
        certificate: PEM; ours, then those of intermediate authorities, if any.
        key: PEM, without a password; of our certificate.
        authorities: PEM; whom we believe.
        revocation_lists: PEM or DER; where there are any, every authority has to have one.
    """

    certificate: Path
    key: Path
    authorities: tuple[Path, ...]
    revocation_lists: tuple[Path, ...] = ()

    def all(self) -> tuple[Path, ...]:
        """Every file."""
        return (self.certificate, self.key, *self.authorities, *self.revocation_lists)


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    """One set of files as it was read, and found to be right.

    Attributes:
        site: whose they are.
        certificate: ours.
        trust: whom we believe.
        server: TLS for those who dial us.
        client: TLS for those whom we dial.
        tasks: TLS for tasks of other hosts, who show no certificate: they have a secret.
        pem: certificate with intermediates, key, and authorities, for gRPC.
    """

    site: str
    certificate: x509.Certificate
    trust: Trust
    server: ssl.SSLContext
    client: ssl.SSLContext
    tasks: ssl.SSLContext
    pem: tuple[bytes, bytes, bytes]

    def wrap(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *, server_side: bool) -> ssl.SSLObject:
        """TLS 1.3 on two buffers."""
        context = self.server if server_side else self.client
        return context.wrap_bio(incoming, outgoing, server_side=server_side)

    def identify(self, tls: ssl.SSLObject) -> PeerIdentity:
        """Who is at the other end; its handshake is done, so its certificate is believed.

        Raises:
            TransportError: PEER_IDENTITY when the certificate names no site.
        """
        chain = _verified_chain(tls)
        return PeerIdentity(peer_site(chain[0]), chain[0], self.certificate.public_bytes(Encoding.DER), chain)

    def site_at(self, tls: ssl.SSLSocket) -> str:
        """Which site's certificate is at the other end; its handshake is done, so it is believed.

        Raises:
            TransportError: PEER_IDENTITY when the certificate names no site.
        """
        return peer_site(tls.getpeercert(binary_form=True) or b"")

    def refusal(self, error: ssl.SSLError, now: datetime.datetime) -> FedRDMAError:
        """What a failed handshake means; TLS_REFUSED."""
        return tls_refusal(error, self.certificate, now)


def load_credentials(files: CredentialFiles, site: str, now: datetime.datetime) -> Credentials:
    """Read all files, and check that they belong together.

    Args:
        files: where they lie.
        site: who we are.
        now: with its time zone.

    Raises:
        ConfigError: TLS_FILE_UNUSABLE, KEY_EXPOSED, KEY_MISMATCH or CERTIFICATE_SITE.
    """
    chain_pem, key_pem = _read(files.certificate, "tls.certificate"), read_private(files.key, "tls.key", "the key")
    chain = _certificates(files.certificate, "tls.certificate", chain_pem)
    certificate = chain[0]
    _check_key(files, certificate, key_pem)
    _check_site(files.certificate, certificate, site)
    _check_time(files.certificate, certificate, now)
    _check_use(files.certificate, certificate)
    authorities_pem = [_read(path, "tls.authorities") for path in files.authorities]
    authorities = tuple(
        authority
        for path, pem in zip(files.authorities, authorities_pem, strict=True)
        for authority in _certificates(path, "tls.authorities", pem)
    )
    lists = tuple(
        revoked
        for path in files.revocation_lists
        for revoked in _revocation_lists(path, _read(path, "tls.revocation_lists"))
    )
    trust = Trust(authorities, lists)
    try:
        server, client = (_context(server_side, chain_pem, key_pem, trust) for server_side in (True, False))
        tasks = _context(True, chain_pem, key_pem, trust)
        tasks.verify_mode = ssl.CERT_NONE
    except (ssl.SSLError, OSError) as error:
        raise _unusable("tls", files.certificate, f"OpenSSL does not take these files: {error}") from error
    pem = (chain_pem, key_pem, b"\n".join(authorities_pem))
    return Credentials(site, certificate, trust, server, client, tasks, pem)


# -- TLS ----------------------------------------------------------------------------------------------------------


def _context(server_side: bool, chain: bytes, key: bytes, trust: Trust) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # a site is known by the URI of its certificate, wherever it is dialled
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if server_side:
        # a session that is resumed would skip the check of the certificate (RFC 8446, section 2.2)
        context.num_tickets = 0
    # read once and checked, so not by their paths, behind which there may be others by now
    with _as_file(chain) as chain_file, _as_file(key) as key_file:
        context.load_cert_chain(chain_file, key_file, password=lambda: b"")
    authorities = b"".join(each.public_bytes(Encoding.PEM) for each in trust.authorities)
    context.load_verify_locations(cadata=authorities.decode())
    if trust.lists:
        with _as_file(b"".join(each.public_bytes(Encoding.PEM) for each in trust.lists)) as lists_file:
            context.load_verify_locations(cafile=lists_file)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a file in memory that nobody else has."""
    descriptor = os.memfd_create("fedrdma-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def peer_site(certificate: bytes) -> str:
    """The site that a certificate in DER names, which was verified.

    Raises:
        TransportError: PEER_IDENTITY when it names none.
    """
    try:
        return site_of(x509.load_der_x509_certificate(certificate))
    except ValueError as error:
        raise TransportError(
            ErrorCode.PEER_IDENTITY, f"the certificate {error}.", "Have one made that names its site."
        ) from error


def _verified_chain(tls: ssl.SSLObject) -> tuple[bytes, ...]:
    """DER, as OpenSSL verified it. Public from Python 3.13 on; the same below, under another name, from 3.10."""
    public = getattr(tls, "get_verified_chain", None)
    if public is not None:
        return tuple(public())
    return tuple(
        ssl.PEM_cert_to_DER_cert(each.public_bytes())
        for each in tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    )


# -- files --------------------------------------------------------------------------------------------------------


def _read(path: Path, key: str) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise _unusable(key, path, str(error.strerror or error)) from error
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise _unusable(key, path, f"it has mode {stat.S_IMODE(mode):04o}, and so every user of the host may write it")
    if len(content) > _MOST_FILE_BYTES:
        raise _unusable(key, path, f"it has more than {_MOST_FILE_BYTES} bytes")
    return content


def read_private(path: Path, key: str, what: str) -> bytes:
    """A file that nobody else may read.

    Args:
        path: where it lies.
        key: of the configuration that names it.
        what: it is, for people.

    Raises:
        ConfigError: TLS_FILE_UNUSABLE or KEY_EXPOSED.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_MOST_FILE_BYTES)
    except OSError as error:
        raise _unusable(key, path, str(error.strerror or error)) from error
    # a key that root has and lets our group read is as private as one of our own
    group_of_ours = status.st_uid == 0 and os.geteuid() != 0
    exposed = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if group_of_ours else stat.S_IRWXG)
    if status.st_mode & exposed:
        raise ConfigError(
            ErrorCode.KEY_EXPOSED,
            f"{what} {path} has mode {stat.S_IMODE(status.st_mode):04o}: others than its owner may use it.",
            f"chmod 600 {path}; if somebody may have read it, have a new one made.",
        )
    return content


def _certificates(path: Path, key: str, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise _unusable(key, path, f"it has no certificates in PEM: {error}") from error


def _revocation_lists(path: Path, content: bytes) -> list[x509.CertificateRevocationList]:
    begin = b"-----BEGIN X509 CRL-----"
    try:
        if begin not in content:
            return [x509.load_der_x509_crl(content)]
        return [x509.load_pem_x509_crl(begin + part) for part in content.split(begin)[1:]]
    except ValueError as error:
        raise _unusable("tls.revocation_lists", path, f"it is no revocation list: {error}") from error


def _check_key(files: CredentialFiles, certificate: x509.Certificate, pem: bytes) -> None:
    try:
        key = load_pem_private_key(pem, None)
    except TypeError as error:
        raise _unusable("tls.key", files.key, "it is encrypted; nobody is there to enter its password") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable("tls.key", files.key, f"it has no private key in PEM: {error}") from error
    encoding = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*encoding) != certificate.public_key().public_bytes(*encoding):
        raise ConfigError(
            ErrorCode.KEY_MISMATCH,
            f"the key {files.key} is not that of the certificate {files.certificate}.",
            "Name the two that were made together; the site's certificate stands first in its file.",
        )


def _check_site(path: Path, certificate: x509.Certificate, site: str) -> None:
    try:
        named = site_of(certificate)
    except ValueError as error:
        raise _wrong_site(path, str(error)) from error
    if named != site:
        raise _wrong_site(path, f"is that of the site {named!r}; this is {site!r}")


def _wrong_site(path: Path, what: str) -> ConfigError:
    return ConfigError(
        ErrorCode.CERTIFICATE_SITE, f"the certificate {path} {what}.", "Have one made that names this site, once."
    )


def _check_time(path: Path, certificate: x509.Certificate, now: datetime.datetime) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        raise _unusable(
            "tls.certificate",
            path,
            f"it is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and the clock of this host says"
            f" {now:%Y-%m-%d %H:%M}",
        )


def _check_use(path: Path, certificate: x509.Certificate) -> None:
    """A gateway dials and is dialled; where a certificate says what it is for, it has to say both."""
    try:
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    wanted = {ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth", ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth"}
    missing = [name for use, name in wanted.items() if use not in uses]
    if missing:
        raise _unusable(
            "tls.certificate", path, f"its extended key usage lacks {' and '.join(missing)}: a site needs both"
        )


def _unusable(key: str, path: Path, what: str) -> ConfigError:
    return ConfigError(ErrorCode.TLS_FILE_UNUSABLE, f"key {key!r}: {path} will not do: {what.rstrip('.')}.", _HOW)


def files_stamp(paths: Sequence[Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """What changes when one of these files does: its inode, its length, when it was last changed; None without one.

    The time is that of the inode, which nobody can set back.
    """
    stamps: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_ino, status.st_size, status.st_ctime_ns))
    return tuple(stamps)
