"""Whom we trust, and whether what a peer has shown still holds: authorities, and lists of what they have revoked.

A handshake is checked by OpenSSL. This is for afterwards, while a channel goes on: certificates expire, are revoked,
and authorities are replaced.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm


@dataclasses.dataclass(frozen=True, slots=True)
class Trust:
    """Authorities, and their revocation lists (RFC 5280).

    Attributes:
        authorities: whose certificates are believed.
        lists: what they, or authorities below them, have revoked.
    """

    authorities: tuple[x509.Certificate, ...]
    lists: tuple[x509.CertificateRevocationList, ...]

    def objection(self, chain: Sequence[bytes], now: datetime.datetime) -> str | None:
        """Why a chain that was good once is not any more; None where it is.

        Args:
            chain: DER; a peer's certificate first, that of an authority last.
            now: with its time zone.
        """
        certificates = [x509.load_der_x509_certificate(der) for der in chain]
        if not certificates or certificates[-1] not in self.authorities:
            return "no authority of ours vouches for it any more"
        for place, certificate in enumerate(certificates):
            what = "its certificate" if place == 0 else f"the certificate of {certificate.subject.rfc4514_string()}"
            if now > certificate.not_valid_after_utc:
                return f"{what} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            issuer = certificates[min(place + 1, len(certificates) - 1)]
            if any(_revokes(revoked, issuer, certificate) for revoked in self.lists):
                return f"{what}, serial {certificate.serial_number:x}, was revoked"
        return None


def _revokes(revoked: x509.CertificateRevocationList, issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    if revoked.issuer != certificate.issuer:
        return False
    if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is None:
        return False
    try:
        return revoked.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]  # a kind that signs, or TypeError
    except (InvalidSignature, UnsupportedAlgorithm, TypeError):
        return False
