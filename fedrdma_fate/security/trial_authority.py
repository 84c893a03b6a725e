"""A small certificate authority for a trial: one key, in a file. An organisation has better ones of its own."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedrdma_fate.security.identity import uri_of_site

VALID_DAYS = 365
"""Of a certificate: a trial ends before, and who forgot it finds out."""

_EARLIER = datetime.timedelta(hours=1)
"""A certificate is valid so long before it was made: clocks of two hosts may differ."""

_HOST_NAME = "gateway.fedrdma.invalid"
"""For grpcio, which takes no certificate without the name of a host; .invalid is nobody's (RFC 2606, section 2)."""

_LONGEST_COMMON_NAME = 64
"""RFC 5280, appendix A.1, ub-common-name; the site is named by its URI, this is for people."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, on curve P-256: small, fast, and known to every TLS there is."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as it stands in a file."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key as it stands in a file."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @classmethod
    def parse(cls, certificate: bytes, key: bytes) -> KeyPair:
        """Read both from their files.

        Raises:
            ValueError: they are none, or the key is of another kind than ours.
        """
        private = load_pem_private_key(key, None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is not one that this command has made")
        return cls(x509.load_pem_x509_certificate(certificate), private)


def make_authority(
    name: str, now: datetime.datetime, valid: datetime.timedelta, issuer: KeyPair | None = None
) -> KeyPair:
    """A new authority.

    Args:
        name: for people.
        now: with its time zone.
        valid: for how long.
        issuer: the authority above; None makes one that stands for itself.
    """
    builder, key = _begin(name, now, valid, issuer)
    usage = _usage(digital_signature=False, signs_others=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return KeyPair(builder.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)


def make_site(
    issuer: KeyPair,
    sites: Sequence[str],
    now: datetime.datetime,
    valid: datetime.timedelta,
    hosts: Sequence[str] = (),
) -> KeyPair:
    """A certificate of a site.

    Args:
        issuer: the authority.
        sites: the site; tests name none, or several, which no gateway takes.
        now: with its time zone.
        valid: for how long.
        hosts: names of its host, which gateways do not look at, and OSX brokers do.
    """
    builder, key = _begin(next(iter(sites), "no site"), now, valid, issuer)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True, signs_others=False), critical=True)
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    builder = builder.add_extension(uses, critical=False)
    if sites:
        uris = [x509.UniformResourceIdentifier(uri_of_site(site)) for site in sites]
        names = x509.SubjectAlternativeName([*uris, *map(x509.DNSName, (_HOST_NAME, *hosts))])
        builder = builder.add_extension(names, critical=False)
    return KeyPair(builder.sign(issuer.key, hashes.SHA256()), key)


def make_revocation_list(
    issuer: KeyPair, revoked: Sequence[int], now: datetime.datetime, valid: datetime.timedelta
) -> bytes:
    """What an authority has revoked, in PEM.

    Args:
        issuer: the authority.
        revoked: serial numbers.
        now: with its time zone.
        valid: until the next list.
    """
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.certificate.subject)
    builder = builder.last_update(now - _EARLIER).next_update(now + valid)
    for serial in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    builder = builder.add_extension(_key_identifier(issuer), critical=False)
    return builder.sign(issuer.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _begin(
    name: str, now: datetime.datetime, valid: datetime.timedelta, issuer: KeyPair | None
) -> tuple[x509.CertificateBuilder, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_LONGEST_COMMON_NAME])])
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.issuer_name(subject if issuer is None else issuer.certificate.subject)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + valid)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if issuer is not None:
        builder = builder.add_extension(_key_identifier(issuer), critical=False)
    return builder, key


def _key_identifier(issuer: KeyPair) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())


def _usage(*, digital_signature: bool, signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        encipher_only=False,
        decipher_only=False,
    )
