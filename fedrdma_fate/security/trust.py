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
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_SHOWN_CHARACTERS = 100
"""Of a name that somebody else chose; a common name has 64 at most (RFC 5280, appendix A.1)."""

_MOST_REMEMBERED = 1024
"""Pairs of list and issuer: intermediate authorities come with the chains of peers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trust:
    """Authorities, and their revocation lists (RFC 5280).

    Attributes:
        authorities: whose certificates are believed.
        lists: what they, or authorities below them, have revoked; where there are any, each issuer has to have one
            that has not run out, as OpenSSL asks at a handshake.
    """

    authorities: tuple[x509.Certificate, ...]
    lists: tuple[x509.CertificateRevocationList, ...]
    _signed: dict[tuple[int, bytes], bool] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Whether a list, by its place, is signed with a public key: lists are long, and looked at every few seconds."""

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
            what = "its certificate" if place == 0 else f"the certificate of {_name(certificate)}"
            if now > certificate.not_valid_after_utc:
                return f"{what} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            issuer = certificates[min(place + 1, len(certificates) - 1)]
            lists = self._lists_of(issuer)
            if any(revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) for revoked in lists):
                return f"{what}, serial {certificate.serial_number:x}, was revoked"
            if self.lists and not any(_is_current(revoked, now) for revoked in lists):
                return f"no revocation list of {_name(issuer)} is current, so {what} may have been revoked"
        return None

    def above(self, chain: Sequence[x509.Certificate]) -> tuple[x509.Certificate, ...]:
        """Those authorities without which a chain would not be believed: who issued it, and who issued those."""
        needed, known = list(chain), set[x509.Certificate]()
        while needed:
            certificate = needed.pop()
            found = {each for each in self.authorities if each == certificate or _has_issued(each, certificate)} - known
            known |= found
            needed += found
        return tuple(each for each in self.authorities if each in known)

    def _lists_of(self, issuer: x509.Certificate) -> list[x509.CertificateRevocationList]:
        key = issuer.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        lists = []
        for place, revoked in enumerate(self.lists):
            if revoked.issuer != issuer.subject:
                continue
            if (place, key) not in self._signed:
                if len(self._signed) >= _MOST_REMEMBERED:
                    self._signed.clear()
                self._signed[place, key] = _is_signed(revoked, issuer)
            if self._signed[place, key]:
                lists.append(revoked)
        return lists


def _name(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string()[:_SHOWN_CHARACTERS]


def _has_issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False
    return True


def _is_signed(revoked: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    try:
        return revoked.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]  # a kind that signs, or TypeError
    except (InvalidSignature, UnsupportedAlgorithm, TypeError):
        return False


def _is_current(revoked: x509.CertificateRevocationList, now: datetime.datetime) -> bool:
    end = revoked.next_update_utc
    return revoked.last_update_utc <= now and (end is None or now <= end)
