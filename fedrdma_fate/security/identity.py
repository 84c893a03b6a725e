"""Who a certificate speaks for: one site, named by a URI in its alternative names (RFC 5280, section 4.2.1.6)."""

from __future__ import annotations

import dataclasses
from urllib.parse import quote, unquote_to_bytes

from cryptography import x509

SCHEME = "fedrdma:"
"""Of the URIs that are about us; others, such as those of SPIFFE, may stand beside."""

_PREFIX = "fedrdma://site/"


@dataclasses.dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What is known of the other end of a control channel with TLS.

    Attributes:
        site: the site that its certificate names.
        certificate: the certificate, DER.
        own_certificate: ours on this channel, DER.
        chain: the certificates that vouch for it, DER: its own first, that of an authority of ours last.
    """

    site: str
    certificate: bytes
    own_certificate: bytes
    chain: tuple[bytes, ...]


def uri_of_site(site: str) -> str:
    """The one URI of a site: its name in UTF-8, all but RFC 3986's unreserved characters (section 2.3) as %XX."""
    return _PREFIX + quote(site, safe="")


def site_of(certificate: x509.Certificate) -> str:
    """The site that a certificate names.

    Raises:
        ValueError: it names none, or several, or in a spelling that is not the one of `uri_of_site`.
    """
    uris = [uri for uri in _uris(certificate) if uri.lower().startswith(SCHEME)]
    if not uris:
        raise ValueError(f"names no site: none of its alternative names is a URI {_PREFIX}NAME")
    if len(uris) > 1:
        raise ValueError(f"names {len(uris)} sites where there may be one: {', '.join(uris[:2])}")
    (uri,) = uris
    try:
        site = unquote_to_bytes(uri.removeprefix(_PREFIX)).decode()
    except UnicodeDecodeError:
        site = ""
    if not site or uri_of_site(site) != uri:
        raise ValueError(f"names its site as {uri!r}, which is not spelt {_PREFIX}NAME as it has to be")
    return site


def site_of_pem(pem: bytes) -> str:
    """The site that a certificate in PEM names.

    Raises:
        ValueError: see `site_of`; or it is no certificate.
    """
    return site_of(x509.load_pem_x509_certificate(pem))


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)
